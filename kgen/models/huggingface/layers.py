"""From a ``config.json`` to its layers of attention, each value with the key that it came from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kgen.diagnostics import clipped
from kgen.models.huggingface.facts import Fact, Level, RefusedError, refuse
from kgen.models.huggingface.families import FAMILIES, Composite, EncoderDecoder, Family, Latent, Unsupported
from kgen.models.huggingface.rules import MOST_HEADS, divided, mha, v_head_dim, yarn_scale
from kgen.spec.model import HEAD_DIMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgen.diagnostics import Loc
    from kgen.models.huggingface.kinds import Kinds

_DTYPES = ("bfloat16", "float16", "float32")
_SUFFIXES = {"full_attention": "full", "sliding_attention": "sliding", "chunked_attention": "chunked"}
_WIDTHS = ("head_dim_qk", "head_dim_v", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Layer:
    """One type of attention layer.

    ``suffix`` tells it from the other layers of the model (empty where there is one), ``facts`` are the fields of
    ``attention`` in a spec, ``decodes`` says whether it has a cache to decode from. ``source`` is the object of the
    file that was read, ``where`` the layers of this type, ``notes`` sentences for the reader of the spec.
    """

    suffix: str
    kind: str
    facts: Mapping[str, Fact]
    dtype: Fact
    decodes: bool
    model_type: str
    source: str
    where: str = ""
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> dict[str, Any]:
        """The layer in the words of a spec."""
        return {"kind": self.kind, **{field: fact.value for field, fact in self.facts.items()}}


@dataclass(frozen=True)
class LeftOut:
    """A part of a model that is not imported, and why."""

    part: str
    reason: str


@dataclass(frozen=True)
class Imported:
    """Every layer type of a model that kgen can say, and the parts that it cannot."""

    layers: tuple[Layer, ...]
    left_out: tuple[LeftOut, ...] = ()


def import_config(config: Mapping[str, Any], dtype: str | None = None) -> Imported:
    """The layers that ``config``, the object of a ``config.json``, describes.

    ``dtype`` takes the place of the file's own.

    Raises:
        RefusedError: the model type is unknown, a key is missing or wrong, or a spec cannot say what it asks for.
    """
    top = Level(config, _model_type(config, (), None))
    chosen = Fact(dtype, f"{dtype} as asked", ()) if dtype else _stated_dtype(config, ())
    entry = FAMILIES[top.model_type]
    found = _composite(top, entry, chosen) if isinstance(entry, Composite) else _whole(top, chosen)

    for layer in found.layers:
        _check(layer)
    return found


def _whole(level: Level, dtype: Fact | None) -> Imported:
    return Imported(tuple(_layers(level, dtype)))


def _composite(top: Level, entry: Composite, dtype: Fact | None) -> Imported:
    nested = top.nested("text_config")
    if nested is not None:
        text = _part(top, "text_config", entry.text)
    elif entry.flat:
        text = Level(top.data, entry.text)
    else:
        refuse("KG503", (), f"text_config is missing, which holds the text model of {top.model_type}")
    layers = list(_layers(text, dtype))
    if entry.mask is not None:
        mask = Fact(dict(entry.mask), f"{entry.mask['kind']}: image and prompt see each other (the model's code)", ())
        layers = [replace(layer, facts={**layer.facts, "mask": mask}) for layer in layers]
    if entry.note:
        layers = [replace(layer, notes=(*layer.notes, entry.note)) for layer in layers]
    dual = not any(layer.decodes for layer in layers)
    if dual:
        layers = [replace(layer, suffix=_joined("text", layer.suffix)) for layer in layers]
    left_out = []
    for key, value in top.data.items():
        if not isinstance(value, dict) or not key.endswith("_config") or key in ("text_config", "quantization_config"):
            continue
        try:
            part = _part(top, key, entry.vision if key == "vision_config" else "")
            suffix = key.removesuffix("_config")
            layers += (replace(layer, suffix=_joined(suffix, layer.suffix)) for layer in _layers(part, dtype))
        except RefusedError as refusal:
            if dual and key == "vision_config":
                raise
            left_out.append(LeftOut(clipped(key), refusal.problem.message))
    return Imported(tuple(layers), tuple(left_out))


def _part(top: Level, key: str, otherwise: str) -> Level:
    inner = top.nested(key)
    assert inner is not None, "only called for keys that are there"
    return Level(inner.data, _model_type(inner.data, inner.loc, otherwise or None), inner.loc)


def _model_type(config: Mapping[str, Any], loc: Loc, otherwise: str | None) -> str:
    """The model type that an object states, one of the table."""
    name = config.get("model_type", otherwise)
    place = (*loc, "model_type")
    if name is None:
        what = "the file" if not loc else ".".join(map(str, loc))
        refuse("KG503", loc, f"model_type is missing, so what {what} means is unknown", "add model_type, such as llama")
    if not isinstance(name, str):
        refuse("KG502", place, "model_type must be a name, such as llama")
    entry = FAMILIES.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.8)
        guess = f"did you mean {near[0]}? if not, " if near else ""
        message = f"model_type is {clipped(name)}, whose attention kgen does not know"
        refuse("KG504", place, message, f"{guess}write the spec by hand: `kgen init` begins one")
    if isinstance(entry, Unsupported):
        shown = (*loc, entry.key) if entry.key in config else place
        refuse(
            "KG505",
            shown,
            f"{entry.key}: {entry.why} (model_type {name})" if shown != place else f"model_type is {name}: {entry.why}",
        )
    if loc and isinstance(entry, Composite):
        refuse("KG505", place, f"model_type {name} inside another model is not imported")
    return name


def _layers(level: Level, outer_dtype: Fact | None) -> list[Layer]:
    """The layers of one model that is no composite."""
    entry = FAMILIES[level.model_type]
    dtype = outer_dtype
    if dtype is None or (level.loc and not dtype.words.endswith("as asked")):
        dtype = _stated_dtype(level.data, level.loc) or dtype
    if dtype is None:
        message = "neither torch_dtype nor dtype tells the type of queries, keys and values"
        refuse("KG503", level.loc, message, "name one: --dtype bfloat16, float16 or float32")
    if isinstance(entry, Family):
        found = _grouped(level, entry, dtype)
    elif isinstance(entry, Latent):
        found = [_latent(level, entry, dtype)]
    else:
        assert isinstance(entry, EncoderDecoder), "the table's other entries were refused or taken apart"
        found = _encoder_decoder(level, entry, dtype)
    level.done()
    return found


def _grouped(level: Level, family: Family, dtype: Fact) -> list[Layer]:
    heads = level.number(*family.heads, most=MOST_HEADS)
    kinds = family.kinds(level)
    level.ignore(*family.outside)
    found = []
    for kind in kinds.attending():
        facts = {"num_qo_heads": heads, "num_kv_heads": family.kv_heads(level, heads, kind)}
        facts["head_dim_qk"] = family.head_dim(level, family.width, heads, kind)
        values = v_head_dim(level, facts["head_dim_qk"]) if family.has_v_head_dim else None
        if values is not None:
            facts["head_dim_v"] = values
        scale = family.scale(level)
        if scale is not None:
            facts["sm_scale"] = scale
        facts["mask"] = family.mask(level, kind)
        facts |= family.extras(level, kind)
        suffix = _SUFFIXES[kind] if len(kinds.attending()) > 1 else ""
        notes = _notes(kinds, family.note)
        where = _where(kinds, kind)
        found.append(_layer(level, suffix, "grouped", facts, dtype, where, notes, decodes=family.decodes))
    if not found:
        refuse("KG505", level.loc, f"no layer attends: {kinds.others()}")
    return found


def _latent(level: Level, family: Latent, dtype: Fact) -> Layer:
    heads = level.number("num_attention_heads", most=MOST_HEADS)
    # Written by transformers beside the widths, and not those of the kernel.
    level.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    facts = {"num_qo_heads": heads, **{name: level.number(name) for name in names}}
    values = level.optional_number("v_head_dim")
    facts["v_head_dim"] = values or divided(level, ("hidden_size",), heads, "")
    if values is None:
        facts["v_head_dim"] = replace(facts["v_head_dim"], words=f"v_{facts['v_head_dim'].words} (the model's code)")
    nope, rope = (facts[name].value for name in names[1:])
    scale = yarn_scale(level, nope + rope, f"{nope} + {rope}")
    if scale is not None:
        facts["sm_scale"] = scale
    facts["mask"] = Fact({"kind": "causal"}, "", level.loc)
    return _layer(level, "", "latent", facts, dtype, "", (family.note,) if family.note else (), decodes=True)


def _encoder_decoder(level: Level, family: EncoderDecoder, dtype: Fact) -> list[Layer]:
    found = []
    for suffix, side, mask, words in (
        ("encoder", "encoder", "full", "every token sees every token"),
        ("decoder", "decoder", "causal", ""),
        ("cross", "decoder", "full", "every token sees every token of the encoder's output"),
    ):
        heads = level.number(f"{side}_attention_heads", most=MOST_HEADS)
        level.ignore("num_attention_heads", "head_dim")
        facts = {"num_qo_heads": heads, "num_kv_heads": mha(level, heads, "")}
        facts["head_dim_qk"] = divided(level, (family.width,), heads, "")
        facts["mask"] = Fact({"kind": mask}, words, level.loc)
        where = {"encoder": "the encoder", "decoder": "the decoder's attention to its own tokens"}
        said = where.get(suffix, "the decoder's attention to the encoder")
        found.append(_layer(level, suffix, "grouped", facts, dtype, said, (), decodes=side == "decoder"))
    return found


def _layer(
    level: Level,
    suffix: str,
    kind: str,
    facts: Mapping[str, Fact],
    dtype: Fact,
    where: str,
    notes: tuple[str, ...],
    *,
    decodes: bool,
) -> Layer:
    source = ".".join(map(str, level.loc))
    return Layer(suffix, kind, dict(facts), dtype, decodes, level.model_type, source, where, notes)


def _where(kinds: Kinds, kind: str) -> str:
    """Which layers, and which key told."""
    layers, told = kinds.where(kind), f", by {kinds.words}" if kinds.words else ""
    if layers:
        return f"the layers of {kind}: {layers}{told}"
    return f"all {len(kinds.names)} layers{told}" if kinds.counted else f"every layer{told}"


def _notes(kinds: Kinds, note: str) -> tuple[str, ...]:
    others = kinds.others()
    without = (f"Without a spec, as they do not attend: {others}.",) if others else ()
    return (*((note,) if note else ()), *without)


def _stated_dtype(data: Mapping[str, Any], loc: Loc) -> Fact | None:
    """``torch_dtype``, or ``dtype`` as newer files have it; ``None`` where neither is there."""
    key = next((key for key in ("torch_dtype", "dtype") if data.get(key) is not None), None)
    if key is None:
        return None
    stated = data[key]
    value = stated.removeprefix("torch.") if isinstance(stated, str) else stated
    if not isinstance(value, str) or value not in _DTYPES:
        message = f"{key} is {clipped(str(stated))}, and kernels are for {', '.join(_DTYPES)}"
        refuse("KG502", (*loc, key), message, "name the type of queries, keys and values: --dtype bfloat16")
    return Fact(value, f"{key} {value}", (*loc, key))


def _joined(*parts: str) -> str:
    return "_".join(part for part in parts if part)


def _check(layer: Layer) -> None:
    """What a spec allows of heads and widths, told at the key of the file rather than at the spec's."""
    for field in _WIDTHS:
        fact = layer.facts.get(field)
        if fact is not None and fact.value not in HEAD_DIMS:
            allowed = f"{field} of a spec is {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}, a multiple of {HEAD_DIMS.step}"
            refuse("KG505", fact.loc, f"{fact.words} gives {field} {fact.value}; {allowed}")
    heads, kv = layer.facts["num_qo_heads"], layer.facts.get("num_kv_heads")
    if kv is not None and (kv.value > heads.value or heads.value % kv.value):
        message = f"{kv.words} does not divide {heads.words}, so query heads cannot share KV heads evenly"
        refuse("KG502", kv.loc, message)
