"""Plan -> the names a kernel template reads.

Everything here is wording: names of blocks, dtypes as Triton and torch spell
them, sentences of the docstring. No choice is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.plan.blocks import next_power_of_2
from kgen.render.merge import merge_context
from kgen.render.words import (
    LENGTHS,
    argument_list,
    expanded_in_words,
    heads_in_words,
    laws,
    mask_in_words,
    pretty,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.plan.model import Block, DecodePlan, KernelPlan, Tile, Window

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class NamedBlock:
    """A block of a head dimension with the names it has in the kernel."""

    suffix: str
    start: int
    width: int
    valid: int
    is_padded: bool
    offs: str
    ok: str


@dataclass(frozen=True)
class ScoredBlock(NamedBlock):
    """A block of queries and keys whose product is part of the scores.

    ``part`` is "" or, of a rotary block that is tensors of its own, "_pe": the block is
    ``q{suffix}``, ``k{suffix}`` and ``k_ptrs{suffix}``, its tensors ``q{part}`` and ``k{part}``.
    """

    part: str
    q_row: str  # stride between the rows of q{part}
    k_row: str
    k_tile: str  # the way from k_ptrs{suffix} to a tile


def _named(blocks: tuple[Block, ...], stem: str, part: str = "") -> tuple[NamedBlock, ...]:
    sides = ("_lo", "_hi") if len(blocks) == 2 else ("",) * len(blocks)
    return tuple(
        NamedBlock(part + s, b.start, b.width, b.valid, b.is_padded, f"offs_{stem}{s}", f"{stem}_ok{s}")
        for s, b in zip(sides, blocks, strict=True)
    )


def _stride(tensor: str, axis: str) -> str:
    """The name of a stride argument: ``stride_kn``, of a rotary block ``stride_kpe_n``."""
    return f"stride_{tensor}{axis}" if len(tensor) == 1 else f"stride_{tensor.replace('_', '')}_{axis}"


def _tile(address: str, tensor: str) -> str:
    """The way from the pointers of ``tensor`` to a tile: along its rows, or to the rows that pages say."""
    return {"paged": f"{tensor}_rows[:, None]", "paged_tile": f"{tensor}_row"}.get(
        address, f"start_n * {_stride(tensor, 'n')}"
    )


def _scored(plan: KernelPlan, address: str) -> tuple[ScoredBlock, ...]:
    """The blocks whose products add up to the scores, the rotary ones last."""
    parts = (("", _named(plan.qk_blocks, "d")), ("_pe", _named(plan.pe_blocks, "pe", "_pe")))
    return tuple(
        ScoredBlock(
            **vars(block),
            part=part,
            q_row=_stride(f"q{part}", "m"),
            k_row=_stride(f"k{part}", "n"),
            k_tile=_tile(address, f"k{part}"),
        )
        for part, blocks in parts
        for block in blocks
    )


def _bounds(window: Window) -> str:
    if window.left is None:
        return "full" if window.right is None else "right"
    return "left" if window.right is None else "both"


def _dot_options(plan: KernelPlan) -> str:
    if plan.dtype != "float32":
        return ""
    return ', input_precision="tf32"' if plan.allow_tf32 else ', input_precision="ieee"'


def _options(plan: KernelPlan, tile: Tile) -> str:
    rows = "BLOCK_M" if plan.template == "prefill" else "BLOCK_H"
    pairs = [(rows, tile.block_m), ("BLOCK_N", tile.block_n)]
    pairs += [("num_warps", tile.num_warps), ("num_stages", tile.num_stages)]
    return "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"


def _common(plan: KernelPlan, address: str) -> dict[str, object]:
    """Names that every kernel has. ``address`` is "paged", "paged_tile", or another word: rows at equal strides."""
    scored = _scored(plan, address)
    same = plan.qk_blocks == plan.v_blocks
    v = _named(plan.qk_blocks, "d") if same else _named(plan.v_blocks, "dv")
    return {
        "function": "attention",
        "leader": "q",
        "title": f"{plan.spec_name}: {plan.kernel}",
        "problem": "",
        "laws": [wrapped(law) for law in laws(plan)],
        "spec": pretty(plan.spec),
        "dtype": plan.dtype,
        "tl_dtype": f"tl.{plan.dtype}",
        "torch_dtype": f"torch.{plan.dtype}",
        "p_dtype": "" if plan.dtype == "float32" else f"tl.{plan.dtype}",
        "dot_options": _dot_options(plan),
        "scale_log2": repr(plan.sm_scale * LOG2_E),
        "num_qo_heads": plan.num_qo_heads,
        "num_kv_heads": plan.num_kv_heads,
        "group_size": plan.group_size,
        "scored": scored,
        "v_blocks": v,
        "v_tile": _tile(address, "v"),
        "rows_are_strided": address != "paged",
        "columns_used": scored if same else scored + v,
        "window": plan.window,
        "stride_unit": plan.stride_unit,
        "unaligned": _options(plan, plan.unaligned),
        "launch": [(target, _options(plan, tile)) for target, tile in plan.launch],
    }


def _strides(plan: KernelPlan, q: str, kv: str, out: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Stride arguments by the axes of q, k and v, out; the single KV head of MQA has no stride."""
    kv_slice = f"[:{len(kv)}]"
    if plan.num_kv_heads == 1:
        kv_slice = {"bhn": "[::2]", "bnh": "[:2]", "nh": "[:1]"}[kv]
        kv = kv.replace("h", "")
    inputs = tuple(f"stride_{tensor}{axis}" for tensor, axes in (("q", q), ("k", kv), ("v", kv)) for axis in axes)
    names = inputs + tuple(f"stride_o{axis}" for axis in out)
    values = f"*q.stride()[:{len(q)}], *k.stride(){kv_slice}, *v.stride(){kv_slice}, *out.stride()[:{len(out)}]"
    return {"strides": names, "stride_values": values}, inputs


# Axes of queries and of keys in each layout, the last one left out.
_PREFILL_AXES = {"bhsd": ("bhm", "bhn"), "bshd": ("bmh", "bnh"), "ragged": ("mh", "nh")}


def _page_axes(plan: KernelPlan, page_size: int) -> tuple[str, str]:
    """Axes of a cache that have a stride argument, and the slice of its strides that are theirs.

    A page of one token has no stride inside, a single KV head none between heads.
    """
    axes = "p" + "n" * (page_size != 1) + "h" * (plan.num_kv_heads > 1)
    return axes, {"pnh": "[:3]", "pn": "[:2]", "ph": "[::2]", "p": "[:1]"}[axes]


def _contiguous_keys(plan: KernelPlan, layout: str) -> dict[str, object]:
    """What prefill kernels call keys and values in tensors of a batch, and their strides."""
    queries, keys = _PREFILL_AXES[layout]
    strides, _ = _strides(plan, queries, keys, queries)
    return strides | {
        "cache": "contiguous",
        "address": "ragged" if layout == "ragged" else "dense",
        "loaded_by_rows": "q, k, v",
        "wide_strides": ("stride_qm", "stride_kn", "stride_vn", "stride_om"),
        "keys_in_words": "at the mean length of a request",
        "keys_of_request": f"Tk * {plan.kv_bytes_per_token} // B",
    }


def _paged_keys(plan: KernelPlan, page_size: int) -> dict[str, object]:
    """The same for a paged cache and ragged queries."""
    axes, cache_slice = _page_axes(plan, page_size)
    keys, values = (tuple(f"stride_{tensor}{axis}" for axis in axes) for tensor in "kv")
    wide = tuple(name for name in (*keys, *values) if not name.endswith("h"))
    return {
        "cache": "paged",
        "address": "paged",
        "strides": ("stride_qm", "stride_qh", *keys, *values, "stride_om", "stride_oh", "stride_tb"),
        "stride_values": f"*q.stride()[:2], *k_cache.stride(){cache_slice}, *v_cache.stride(){cache_slice}, "
        "*out.stride()[:2]",
        "loaded_by_rows": "q, k_cache, v_cache",
        "wide_strides": ("stride_qm", *wide, "stride_om"),
        "keys_in_words": "where a request fills its row of the table",
        "keys_of_request": f"N * {plan.kv_bytes_per_token}",
    }


def _shapes(plan: KernelPlan, queries: str, keys: str) -> dict[str, object]:
    """Shapes as docstrings and checks write them, from the axes; the last dimension comes behind."""
    names = {"b": "B", "m": "M", "n": "N"} if "b" in queries else {"m": "Tq", "n": "Tk"}

    def shape(axes: str, heads: int, dim: int, unknown: str = "") -> str:
        sizes = [str(heads) if a == "h" else f'"{names[a]}"' if a in unknown else names[a] for a in axes]
        return ", ".join((*sizes, str(dim)))

    return {
        "q_shape": shape(queries, plan.num_qo_heads, plan.head_dim_qk),
        "k_shape": shape(keys, plan.num_kv_heads, plan.head_dim_qk),
        "v_shape": shape(keys, plan.num_kv_heads, plan.head_dim_v),
        "out_shape": shape(queries, plan.num_qo_heads, plan.head_dim_v),
        "q_shape_wanted": shape(queries, plan.num_qo_heads, plan.head_dim_qk, "bm"),
        "k_shape_wanted": shape(keys, plan.num_kv_heads, plan.head_dim_qk, "n"),
        "q_sizes": ", ".join("_" if axis == "h" else names[axis] for axis in queries) + ", _",
        "key_axis": keys.index("n"),
        "lse_shape": shape(queries.replace("h", "").replace("m", "hm"), plan.num_qo_heads, 0).removesuffix(", 0"),
    }


def prefill_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``kernels/prefill.py.j2``."""
    prefill = plan.prefill
    assert prefill is not None
    words = LENGTHS[prefill.lengths]
    queries, keys = _PREFILL_AXES[prefill.layout]
    size = prefill.page_size
    cache = _contiguous_keys(plan, prefill.layout) if size is None else _paged_keys(plan, size)
    names = cache["strides"]
    assert isinstance(names, tuple)
    return (
        _common(plan, prefill.address)
        | cache
        | _shapes(plan, queries, keys)
        | {
            "problem": f"{words.problem}{heads_in_words(plan)};\n{mask_in_words(plan)}.{expanded_in_words(prefill)}",
            "runtime_arguments": argument_list((*names, *words.sizes, "heads_per_section")),
            "locate": "rows" if size is None else prefill.address,
            "page_size": size,
            "head_dim_qk": plan.head_dim_qk,
            "head_dim_v": plan.head_dim_v,
            "needs_capacity": True,
            "first_key": "0" if plan.window.left is None else "lo",
            "lengths": prefill.lengths,
            "store": "indptr" if prefill.layout == "ragged" else prefill.lengths,
            "launcher": "ragged" if prefill.layout == "ragged" else "dense",
            "row_count": words.row_count,
            "key_count": words.key_count,
            "shift": words.shift,
            "row_position": words.row_position,
            "first_row_end": words.first_row_end,
            "most_rows": words.most_rows,
            "index_pointers": words.index_pointers,
            "index_arguments": ", ".join(f'"{name}"' for name in words.index_pointers),
            "index_parameters": "seq_lens, " if prefill.lengths == "seq_lens" else "",
            "index_values": "".join(f"{name.removesuffix('_ptr')}, " for name in words.index_pointers),
            "sizes": words.sizes,
            "size_values": ", ".join(words.sizes),
            "bounds": _bounds(plan.window),
            "longest_last": plan.window.right is not None and plan.window.left is None,
            "kv_head": "head" if plan.group_size == 1 else "kv_head",
            "section_bytes": plan.section_bytes,
            "section_mib": plan.section_bytes >> 20,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
        }
    )


def _tile_of_heads(plan: KernelPlan, block_h: int) -> str:
    if plan.group_size == 1:
        return f"A KV head serves one query head, in a tile of {block_h} rows, the least that tl.dot takes."
    return "Every tile of K and V is loaded once for all the heads."


def _contiguous_cache(plan: KernelPlan) -> dict[str, object]:
    """What decode kernels over a dense cache call it and its strides."""
    strides, inputs = _strides(plan, "bh", "bhn", "bh")
    return strides | {
        "cache": "contiguous",
        "inputs": "q, k, v",
        "loaded_by_rows": "q, k, v",
        "input_pointers": ("q_ptr", "k_ptr", "v_ptr"),
        "index_pointers": '"seq_lens_ptr"',
        "input_strides": inputs,
        "strides_passed": "*strides",
        "wide_strides": ("stride_kn", "stride_vn"),
    }


def _paged_cache(plan: KernelPlan, decode: DecodePlan) -> dict[str, object]:
    """The same for a paged cache."""
    assert decode.page_size is not None
    axes, cache_slice = _page_axes(plan, decode.page_size)
    row_axes = axes.removesuffix("h")
    keys, values = (tuple(f"stride_{tensor}{axis}" for axis in axes) for tensor in "kv")
    inputs = ("stride_qb", "stride_qh", *keys, *values)
    return {
        "cache": "paged",
        "inputs": "q, k_cache, v_cache, block_table",
        "loaded_by_rows": "q, k_cache, v_cache",
        "input_pointers": ("q_ptr", "k_ptr", "v_ptr", "block_table_ptr"),
        "index_pointers": '"block_table_ptr", "seq_lens_ptr"',
        "strides": (*inputs, "stride_ob", "stride_oh", "stride_tb"),
        "input_strides": (*inputs, "stride_tb"),
        "stride_values": f"*q.stride()[:2], *k_cache.stride(){cache_slice}, *v_cache.stride(){cache_slice}, "
        "*out.stride()[:2]",
        "strides_passed": "*strides, block_table.stride(0)",
        "wide_strides": tuple(f"stride_{tensor}{axis}" for tensor in "kv" for axis in row_axes),
    }


def decode_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``kernels/decode.py.j2``."""
    decode = plan.decode
    assert decode is not None
    block_h = plan.launch[0][1].block_m
    cache = _contiguous_cache(plan) if decode.page_size is None else _paged_cache(plan, decode)
    names = cache["strides"]
    assert isinstance(names, tuple)
    indices = ("kv_head",) * (plan.num_kv_heads > 1) + ("head_tile",) * (decode.head_tiles > 1)
    return (
        _common(plan, decode.address)
        | cache
        | {
            "address": decode.address,
            "page_size": decode.page_size,
            "problem": f"Attention of one query token a request against its keys: {heads_in_words(plan)};\n"
            f"{mask_in_words(plan)}.",
            "head_dim_qk": plan.head_dim_qk,
            "head_dim_v": plan.head_dim_v,
            "split_arguments": argument_list((*names, "num_splits")),
            "balanced_arguments": argument_list((*names, "B", "num_parts")),
            "task": ("batch", *indices),
            "task_index": "task_in_request" if len(indices) > 1 else "".join(indices),
            "task_in_words": {
                (): "the whole",
                ("kv_head",): "one KV head",
                ("head_tile",): "one tile of query heads",
                ("kv_head", "head_tile"): "one KV head and tile of its query heads",
            }[indices],
            "tile_of_heads": _tile_of_heads(plan, block_h),
            "heads_are_padded": plan.group_size % block_h != 0,
            "head_tiles": decode.head_tiles,
            "tasks_per_request": plan.num_kv_heads * decode.head_tiles,
            "is_balanced": decode.num_splits is None,
            "needs_capacity": decode.num_splits is None,
            "num_splits": decode.num_splits,
            "num_splits_default": "is the balanced schedule"
            if decode.num_splits is None
            else f"is {decode.num_splits}",
            "programs_per_sm": decode.programs_per_sm,
            "batch_chunk": decode.batch_chunk,
            "merge_chunk": decode.merge_chunk,
            "merge_warps": decode.merge_warps,
            "merge_width": next_power_of_2(plan.head_dim_v),
        }
    )


CONTEXTS: dict[str, Callable[[Any], dict[str, object]]] = {
    "prefill": prefill_context,
    "decode": decode_context,
    "merge_states": merge_context,
}
