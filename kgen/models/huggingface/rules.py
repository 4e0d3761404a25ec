"""How keys of a ``config.json`` become facts of a layer: heads, widths, scale, mask and what else enters a score.

A rule takes the level of the file, and where the layers of a model differ the kind of the layer. Its ``Fact`` says in
words which keys it read. The meanings are those of the modelling code in ``transformers``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kgen.models.huggingface.facts import BY_DEFAULT, Fact, refuse
from kgen.models.huggingface.kinds import CHUNKED, FULL, SLIDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.models.huggingface.facts import Level

MOST_HEADS = 4096


# Heads


def kv_heads(level: Level, heads: Fact, kind: str) -> Fact:
    """``num_key_value_heads``; null, and missing where the model type has no default, is a KV head a query head."""
    return level.optional_number("num_key_value_heads", most=MOST_HEADS) or _each_its_own(heads)


def kv_heads_doubled_in_windows(level: Level, heads: Fact, kind: str) -> Fact:
    """Layers with a window have twice ``num_key_value_heads`` (MiMo-V2-Flash)."""
    fact = kv_heads(level, heads, kind)
    return Fact(2 * fact.value, f"2 * {fact.words}", fact.loc) if kind == SLIDING else fact


def mha(level: Level, heads: Fact, kind: str) -> Fact:
    """Every query head has a KV head of its own; a key that says otherwise is refused."""
    key = "num_key_value_heads"
    stated = level.find(key)
    if stated is not None and stated.value not in (None, heads.value):
        message = f"{stated.words}, and {level.model_type} has a KV head for each of {heads.words}"
        refuse("KG505", stated.loc, message, "remove it, or write the spec by hand: `kgen init` begins one")
    return _each_its_own(heads)


def multi_query(level: Level, heads: Fact, kind: str) -> Fact:
    """One KV head where ``multi_query`` is true (GPT-BigCode)."""
    flag = level.flag("multi_query")
    level.ignore("num_key_value_heads")  # written by transformers, and derived from multi_query
    return Fact(1, f"{flag.words} (one KV head)", flag.loc) if flag.value else _each_its_own(heads, flag.words)


def falcon_kv_heads(level: Level, heads: Fact, kind: str) -> Fact:
    """``num_kv_heads`` counts with ``new_decoder_architecture`` or without ``multi_query``; else there is one."""
    new, shared = level.flag("new_decoder_architecture"), level.flag("multi_query")
    stated = level.optional_number("num_kv_heads", most=MOST_HEADS)
    level.ignore("num_key_value_heads")  # written by transformers, and derived from the others
    if shared.value and not new.value:
        return Fact(1, f"{shared.words} (one KV head)", shared.loc)
    why = new.words if new.value else shared.words
    return Fact(stated.value, f"{stated.words}, {why}", stated.loc) if stated else _each_its_own(heads, why)


def dbrx_kv_heads(level: Level, heads: Fact, kind: str) -> Fact:
    """``attn_config.kv_n_heads``."""
    level.ignore("num_key_value_heads")  # written by transformers, and derived from attn_config
    inner = level.nested("attn_config")
    fact = inner.optional_number("kv_n_heads", most=MOST_HEADS) if inner else None
    if fact is None:
        return Fact(1, f"attn_config.kv_n_heads 1 {BY_DEFAULT}", level.loc)
    return Fact(fact.value, f"attn_config.{fact.words}", fact.loc)


def gemma4_kv_heads(level: Level, heads: Fact, kind: str) -> Fact:
    """Full layers have ``num_global_key_value_heads`` where keys are values too (``attention_k_eq_v``)."""
    changed = _of_full_layers(level, "num_key_value_heads", kind)
    wider = level.optional_number("num_global_key_value_heads", most=MOST_HEADS)
    equal = level.flag("attention_k_eq_v")
    if changed is not None:
        return changed
    return wider if wider and equal.value and kind == FULL else kv_heads(level, heads, kind)


def _each_its_own(heads: Fact, why: str = "") -> Fact:
    return Fact(heads.value, f"{why}: a KV head a query head" if why else "a KV head a query head", heads.loc)


# Widths


def head_dim(level: Level, width: Sequence[str], heads: Fact, kind: str) -> Fact:
    """``head_dim``, else the model's width shared among its heads."""
    stated = level.optional_number("head_dim")
    if stated is None:
        return divided(level, width, heads, kind)
    return stated


def divided(level: Level, width: Sequence[str], heads: Fact, kind: str) -> Fact:
    """The model's width shared among its heads; a ``head_dim`` beside it must be the same."""
    whole = level.number(*width)
    if whole.value % heads.value:
        message = f"{whole.words} is not a multiple of {heads.words}, so a head has no width"
        refuse("KG502", whole.loc, message, "state head_dim, or correct one of them")
    share = whole.value // heads.value
    stated = level.optional_number("head_dim")
    if stated is not None and stated.value != share:
        message = f"{stated.words}, and {level.model_type} has heads of {whole.words} / {heads.value} = {share}"
        refuse("KG505", stated.loc, message, "remove it, or write the spec by hand: `kgen init` begins one")
    return Fact(share, f"head_dim = {whole.words} / {heads.value}", whole.loc)


def gemma4_head_dim(level: Level, width: Sequence[str], heads: Fact, kind: str) -> Fact:
    """Full layers have ``global_head_dim`` (512 where it is missing)."""
    changed = _of_full_layers(level, "head_dim", kind)
    wider = level.optional_number("global_head_dim")
    if changed is not None:
        return changed
    if kind == FULL and "per_layer_config" not in level.data:
        return wider or Fact(512, f"global_head_dim 512 {BY_DEFAULT}", level.loc)
    return head_dim(level, width, heads, kind)


def v_head_dim(level: Level, qk: Fact) -> Fact | None:
    """``v_head_dim``, where it is another width than that of keys."""
    fact = level.optional_number("v_head_dim")
    return None if fact is None or fact.value == qk.value else fact


def _of_full_layers(level: Level, key: str, kind: str) -> Fact | None:
    """What ``per_layer_config`` says of the full layers, which must all be alike."""
    inner = level.nested("per_layer_config")
    if inner is None or kind != FULL:
        return None
    found = set()
    for index, change in inner.data.items():
        if not isinstance(change, dict) or not set(change) <= {"head_dim", "num_key_value_heads"}:
            message = f"per_layer_config[{index!r}] changes what kgen does not know to change a layer"
            refuse("KG505", inner.place(index), message)
        value = change.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            refuse("KG502", inner.place(index), f"{key} of layer {index!r} must be a whole number above 0")
        found.add(value)
    if len(found) > 1:
        refuse("KG505", inner.loc, f"per_layer_config gives full layers different {key}; kgen knows them alike")
    value = found.pop() if found else None
    return None if value is None else Fact(value, f"{key} {value} (per_layer_config)", inner.loc)


# Scale


def default_scale(level: Level) -> Fact | None:
    """The width of a key ** -0.5, as in a spec that states none."""
    return None


def query_pre_attn_scalar(level: Level) -> Fact | None:
    """``query_pre_attn_scalar ** -0.5`` (Gemma 2 and 3)."""
    fact = level.real("query_pre_attn_scalar")
    if fact is None:
        refuse("KG503", level.loc, "query_pre_attn_scalar is missing, and the scale is its power of -0.5")
    return Fact(float(fact.value) ** -0.5, f"{fact.words}, sm_scale = query_pre_attn_scalar ** -0.5", fact.loc)


def attention_multiplier(level: Level) -> Fact | None:
    """``attention_multiplier`` is the scale (Granite)."""
    fact = level.real("attention_multiplier")
    if fact is None:
        refuse("KG503", level.loc, "attention_multiplier is missing, and it is the scale")
    return Fact(float(fact.value), f"sm_scale = {fact.words}", fact.loc)


def unscaled(level: Level) -> Fact | None:
    """Scores are not scaled (GPT-Neo, Gemma 3n and 4)."""
    return Fact(1.0, "sm_scale 1 (the model's code)", level.loc)


def scale_attn_weights(level: Level) -> Fact | None:
    """No scale where ``scale_attn_weights`` is false (GPT-2)."""
    level.require(
        "scale_attn_by_inverse_layer_idx", False, why="each layer would have a scale of its own, a spec has one"
    )
    fact = level.find("scale_attn_weights")
    if fact is None or fact.value is not False:
        return None
    return Fact(1.0, f"sm_scale 1 as {fact.words}", fact.loc)


def mpt_scale(level: Level) -> Fact | None:
    """``attn_config.softmax_scale``, null for the default."""
    inner = level.nested("attn_config")
    fact = inner.real("softmax_scale") if inner else None
    return None if fact is None else Fact(float(fact.value), f"sm_scale = attn_config.{fact.words}", fact.loc)


def yarn_scale(level: Level, width: int, words: str) -> Fact | None:
    """``width ** -0.5`` times the square of YaRN's factor, where ``mscale_all_dim`` is set (DeepSeek)."""
    level.ignore("rope_parameters", "rope_scaling")
    key = "rope_parameters" if level.data.get("rope_parameters") is not None else "rope_scaling"
    rope = level.nested(key)
    if rope is None:
        return None
    kind = rope.data.get("rope_type", rope.data.get("type", "default"))
    all_dim = rope.find("mscale_all_dim")
    if kind == "default" or all_dim is None or all_dim.value in (None, 0):
        return None
    all_dim, factor = rope.real("mscale_all_dim"), rope.real("factor")
    if factor is None or all_dim is None:
        refuse("KG503", rope.loc, f"{key}.factor is missing, from which mscale_all_dim makes the scale")
    mscale = 0.1 * all_dim.value * math.log(factor.value) + 1.0 if factor.value > 1 else 1.0
    said = f"sm_scale = ({words}) ** -0.5 * (0.1 * mscale_all_dim * ln(factor) + 1) ** 2"
    of = f"{key}: type {kind}, {factor.words}, {all_dim.words}"
    return Fact(float(width) ** -0.5 * mscale**2, f"{of}; {said}", rope.loc)


# Masks


def causal_mask(level: Level, kind: str) -> Fact:
    """A decoder's mask: causal, or within it a window or chunks."""
    if kind == SLIDING:
        window = _window(level, "sliding_window")
        return Fact({"kind": "sliding_window", "size": window.value}, window.words, window.loc)
    if kind == CHUNKED:
        chunk = _window(level, "attention_chunk_size")
        return Fact({"kind": "chunked", "size": chunk.value}, chunk.words, chunk.loc)
    return Fact({"kind": "causal"}, "", level.loc)


def gpt_neo_mask(level: Level, kind: str) -> Fact:
    """Local layers see ``window_size`` keys, the query's own included."""
    if kind != SLIDING:
        return causal_mask(level, kind)
    window = _window(level, "window_size")
    return Fact({"kind": "sliding_window", "size": window.value}, window.words, window.loc)


def mimo_mask(level: Level, kind: str) -> Fact:
    """``sliding_window_size``, an older key, counts the keys before the query's own."""
    older = level.optional_number("sliding_window_size") if kind == SLIDING else None
    level.ignore("sliding_window_size")
    if older is None:
        return causal_mask(level, kind)
    words = f"{older.words}, and the query's own"
    return Fact({"kind": "sliding_window", "size": older.value + 1}, words, older.loc)


def bidirectional_mask(level: Level, kind: str) -> Fact:
    """An encoder's mask: every token sees every token."""
    if kind != FULL:
        refuse("KG505", level.place("layer_types"), f"layers of {level.model_type} are full_attention, not {kind}")
    return Fact({"kind": "full"}, "every token sees every token", level.loc)


def bert_mask(level: Level, kind: str) -> Fact:
    """Full, where ``is_decoder`` does not make it causal."""
    refused = "kgen imports self-attention of this model type, not its cross-attention"
    level.require("add_cross_attention", False, why=refused)
    level.require("position_embedding_type", "absolute", "rotary", why="scores would have a learned bias by distance")
    decoder = level.flag("is_decoder")
    if decoder.value:
        return Fact({"kind": "causal"}, f"{decoder.words} (causal)", decoder.loc)
    return bidirectional_mask(level, kind)


def modernbert_mask(level: Level, kind: str) -> Fact:
    """Windows of ``local_attention // 2`` keys on either side of the query's."""
    if kind != SLIDING:
        return bidirectional_mask(level, kind)
    whole = _window(level, "local_attention")
    side = whole.value // 2
    words = f"{whole.words} ({side} keys on either side)"
    return Fact({"kind": "window", "left": side, "right": side}, words, whole.loc)


def gemma_mask(level: Level, kind: str) -> Fact:
    """Causal; full where ``use_bidirectional_attention`` is true (Gemma, Gemma 2 in an encoder)."""
    if level.find("use_bidirectional_attention") is not None and level.flag("use_bidirectional_attention").value:
        if kind == SLIDING:
            refuse("KG505", level.place("use_bidirectional_attention"), "kgen does not know windows of such an encoder")
        return Fact({"kind": "full"}, "use_bidirectional_attention true", level.place("use_bidirectional_attention"))
    return causal_mask(level, kind)


def gemma3_mask(level: Level, kind: str) -> Fact:
    """Causal; where ``use_bidirectional_attention`` is true half a window on either side (EmbeddingGemma)."""
    both = level.flag("use_bidirectional_attention")
    if not both.value:
        return causal_mask(level, kind)
    if kind == FULL:
        return Fact({"kind": "full"}, both.words, both.loc)
    window = _window(level, "sliding_window")
    side = window.value // 2
    words = f"{window.words} ({side} keys on either side, as {both.words})"
    return Fact({"kind": "window", "left": side, "right": side}, words, window.loc)


def gemma4_mask(level: Level, kind: str) -> Fact:
    """Causal; ``vision`` lets the tokens of an image see each other, which a comment says."""
    why = "kgen does not know the windows of this encoder"
    level.require("use_bidirectional_attention", "vision", why=why)
    return causal_mask(level, kind)


def _window(level: Level, key: str) -> Fact:
    fact = level.optional_number(key, most=2**30)
    if fact is None:
        refuse("KG503", level.loc, f"{key} is missing, and there are layers that it limits", f"add {key}")
    return fact


# What else enters a score


def nothing(level: Level, kind: str) -> dict[str, Fact]:
    """A plain softmax."""
    return {}


def soft_cap(level: Level, kind: str) -> dict[str, Fact]:
    """``attn_logit_softcapping`` where it is not null (Gemma 2)."""
    fact = level.real("attn_logit_softcapping")
    return {} if fact is None else {"logits_soft_cap": Fact(float(fact.value), fact.words, fact.loc)}


def sinks(level: Level, kind: str) -> dict[str, Fact]:
    """A learned logit a head (gpt-oss)."""
    return {"sinks": Fact(True, "a sink a head (the model's code)", level.loc)}


def sinks_in_windows(level: Level, kind: str) -> dict[str, Fact]:
    """A learned logit a head in layers with a window (MiMo-V2-Flash)."""
    return sinks(level, kind) if kind == SLIDING else {}


def alibi(level: Level, kind: str) -> dict[str, Fact]:
    """Always (Bloom)."""
    return {"alibi": Fact(True, "ALiBi (the model's code)", level.loc)}


def mpt_alibi(level: Level, kind: str) -> dict[str, Fact]:
    """Always: the code does not read ``attn_config.alibi``, and a file that denies it is refused."""
    inner = level.nested("attn_config")
    if inner is not None:
        inner.require("alibi", True, why="the code of mpt in transformers adds ALiBi all the same")
        inner.require("prefix_lm", False, why="kgen imports causal layers of mpt alone")
        inner.require("attn_type", "multihead_attention", why="kgen knows multihead_attention of mpt alone")
        inner.require("attn_uses_sequence_id", False, why="tokens of one document alone would see each other")
        if "alibi" in inner.data:
            return {"alibi": Fact(True, "attn_config.alibi true", inner.place("alibi"))}
    return {"alibi": Fact(True, f"attn_config.alibi true {BY_DEFAULT}", level.loc)}


def falcon_alibi(level: Level, kind: str) -> dict[str, Fact]:
    """Where ``alibi`` is true."""
    fact = level.flag("alibi")
    words = "alibi true (the model multiplies its slopes by the scale: give alibi_slopes * head_dim ** -0.5)"
    return {"alibi": Fact(True, words, fact.loc)} if fact.value else {}
