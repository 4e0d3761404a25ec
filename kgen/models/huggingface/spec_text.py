"""A layer as the text of a spec file, with a comment that names the key of each value."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kgen.models.huggingface.facts import BY_DEFAULT
from kgen.spec import scalars

if TYPE_CHECKING:
    from kgen.models.huggingface.layers import Layer

_WIDTH = 120
DEFAULT_PAGE_SIZES = {"grouped": 16, "latent": 64}


def spec_text(layer: Layer, name: str, page_size: int | None = None) -> str:
    """YAML of the spec ``name``: prefill, and of a layer with a cache decode from pages of ``page_size`` tokens
    (default 16, of a latent layer 64)."""
    pages = page_size or DEFAULT_PAGE_SIZES[layer.kind]
    latent = layer.kind == "latent"
    lines = [*_comment(layer), f"name: {_word(name)}", "attention:", f"  kind: {layer.kind}"]
    lines += [f"  {field}: {_yaml(fact.value)}" for field, fact in layer.facts.items()]
    lines += [f"dtype: {layer.dtype.value}", "kernels:"]
    lines += [f"  prefill: {{{'form: expanded, ' if latent else ''}layout: bhsd}}"]
    if layer.decodes:
        form = "form: absorbed, " if latent else ""
        lines += [f"  decode: {{{form}kv: {{kind: paged, page_size: {pages}}}, num_splits: auto}}"]
    return "\n".join(lines) + "\n"


def _comment(layer: Layer) -> list[str]:
    """What the layer is, and where its values come from, in sentences."""
    of = f"{layer.source} of config.json" if layer.source else "config.json"
    what = f"Model type {layer.model_type}" + (f", {layer.where}" if layer.where else "")
    facts = [fact for field, fact in layer.facts.items() if field != "sm_scale"]
    words = [fact.words for fact in (*facts, layer.dtype) if fact.words]
    scale = layer.facts.get("sm_scale")
    # A scale is last: its words may hold commas and a semicolon.
    said = ", ".join(dict.fromkeys([*words, *([scale.words] if scale else [])]))
    left_out = f"By default: {of} leaves the key out, and transformers has it so in {layer.model_type}."
    defaults = [left_out] if BY_DEFAULT in said else []
    sentences = " ".join([f"{what}. From {of}: {said}.", *defaults, *layer.notes])
    fold = textwrap.TextWrapper(_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return fold.wrap(sentences)


def _word(name: str) -> str:
    """A name, quoted where YAML reads it as something else: ``n``, ``on``, ``null``."""
    return name if scalars.resolve(name) == name else f'"{name}"'


def _yaml(value: Any) -> str:
    """A scalar, or a mapping of scalars in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, float) and "e" in (text := repr(value)):
        digits, _, exponent = text.partition("e")
        return f"{digits if '.' in digits else f'{digits}.0'}e{exponent if exponent[0] in '+-' else f'+{exponent}'}"
    return str(value)
