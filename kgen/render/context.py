"""Plan -> the names a kernel template reads.

Everything here is wording: names of blocks, dtypes as Triton and torch spell
them, sentences of the docstring. No choice is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgen.plan.blocks import next_power_of_2
from kgen.render.merge import merge_context
from kgen.render.names import common, key_axes, page_axes, tensors
from kgen.render.prefill import prefill_context
from kgen.render.words import argument_list, heads_in_words, mask_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.plan.model import DecodePlan, KernelPlan


def _tile_of_heads(plan: KernelPlan, block_h: int) -> str:
    if plan.group_size == 1:
        return f"A KV head serves one query head, in a tile of {block_h} rows, the least that tl.dot takes."
    return "Every tile of K and V is loaded once for all the heads."


def _contiguous_cache(plan: KernelPlan) -> dict[str, object]:
    """What decode kernels over a dense cache call it and its strides."""
    queries, keys = tensors(plan, "bh", key_axes(plan, "bhn"))
    inputs = tuple(name for tensor in (*queries, *keys) for name in tensor.strides)
    return {
        "cache": "contiguous",
        "key_tensors": keys,
        "inputs": ", ".join(tensor.argument for tensor in (*queries, *keys)),
        "loaded_by_rows": ", ".join(tensor.argument for tensor in (*queries, *keys)),
        "input_pointers": tuple(f"{tensor.name}_ptr" for tensor in (*queries, *keys)),
        "index_pointers": '"seq_lens_ptr"',
        "strides": (*inputs, "stride_ob", "stride_oh"),
        "input_strides": inputs,
        "stride_values": ", ".join((*(tensor.values for tensor in (*queries, *keys)), "*out.stride()[:2]")),
        "strides_passed": "*strides",
        "wide_strides": tuple(tensor.stride("n") for tensor in keys),
    }


def _paged_cache(plan: KernelPlan, decode: DecodePlan) -> dict[str, object]:
    """The same for a paged cache."""
    assert decode.page_size is not None
    queries, keys = tensors(plan, "bh", page_axes(plan, decode.page_size), "_cache")
    arguments = ", ".join(tensor.argument for tensor in (*queries, *keys))
    inputs = tuple(name for tensor in (*queries, *keys) for name in tensor.strides)
    return {
        "cache": "paged",
        "key_tensors": keys,
        "inputs": f"{arguments}, block_table",
        "loaded_by_rows": arguments,
        "input_pointers": (*(f"{tensor.name}_ptr" for tensor in (*queries, *keys)), "block_table_ptr"),
        "index_pointers": '"block_table_ptr", "seq_lens_ptr"',
        "strides": (*inputs, "stride_ob", "stride_oh", "stride_tb"),
        "input_strides": (*inputs, "stride_tb"),
        "stride_values": ", ".join((*(tensor.values for tensor in (*queries, *keys)), "*out.stride()[:2]")),
        "strides_passed": "*strides, block_table.stride(0)",
        "wide_strides": tuple(tensor.stride(axis) for tensor in keys for axis in tensor.axes if axis != "h"),
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
        common(plan, decode.address)
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
