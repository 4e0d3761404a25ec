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
from kgen.render.words import (
    absorbed_in_words,
    argument_list,
    call_in_words,
    filled,
    heads_in_words,
    mask_in_words,
    rotary_in_words,
    signature,
    tuple_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.plan.model import DecodePlan, KernelPlan


def _tile_of_heads(plan: KernelPlan) -> str:
    if plan.values_are_keys:
        return "Every tile of kv is loaded once for all the heads of the program, and is keys and values."
    if plan.group_size == 1:
        return (
            f"A KV head serves one query head, in a tile of {plan.unaligned.block_m} rows, the least that tl.dot takes."
        )
    return "Every tile of K and V is loaded once for all the heads."


def _cache(plan: KernelPlan, decode: DecodePlan) -> dict[str, object]:
    """What decode kernels call their queries, their cache and its strides."""
    if decode.page_size is None:
        queries, keys = tensors(plan, "bh", key_axes(plan, "bhn"))
        shapes = {t.name: f"B, {t.heads}, N, {t.dim}" if t.heads else f"B, N, {t.dim}" for t in keys}
        table: tuple[str, ...] = ()
        end = f"all {plan.dtype}, and"
        # Along the axis of requests one address is 64 bits wide from the start.
        wide = tuple(tensor.stride("n") for tensor in keys)
    else:
        suffix = "" if plan.values_are_keys else "_cache"
        queries, keys = tensors(plan, "bh", page_axes(plan, decode.page_size), suffix)
        shapes = {t.name: f"pages, {decode.page_size}, {t.record}" for t in keys}
        table, end = ("block_table",), f"all {plan.dtype},"
        wide = tuple(tensor.stride(axis) for tensor in keys for axis in tensor.axes if axis != "h")
    inputs = (*queries, *keys)
    arguments = tuple(tensor.argument for tensor in inputs)
    strides = tuple(name for tensor in inputs for name in tensor.strides)
    table_stride = ("stride_tb",) * len(table)
    options = ("num_splits=None", "max_seq_len=None", "out=None", "return_lse=False")
    parameters = (*arguments, "*", *table, "seq_lens", *options)
    listed = [f"{t.argument} [B, {t.record}]," for t in queries] + [f"{t.argument} [{shapes[t.name]}]," for t in keys]
    return {
        "cache": "paged" if table else "contiguous",
        "call_in_words": call_in_words(parameters),
        "signature": signature(parameters),
        "tensors_in_words": filled([*listed, end], 4),
        "query_tensors": queries,
        "key_tensors": keys,
        "inputs": ", ".join((*arguments, *table)),
        "loaded_by_rows": ", ".join(arguments),
        "input_pointers": tuple(f"{name}_ptr" for name in (*(tensor.name for tensor in inputs), *table)),
        "index_pointers": ", ".join(f'"{name}_ptr"' for name in (*table, "seq_lens")),
        "strides": (*strides, "stride_ob", "stride_oh", *table_stride),
        "input_strides": (*strides, *table_stride),
        "stride_values": tuple_of([*(tensor.values for tensor in inputs), "*out.stride()[:2]"]),
        "strides_passed": ", ".join(("*strides", *(f"{name}.stride(0)" for name in table))),
        "wide_strides": wide,
    }


def _row(decode: DecodePlan) -> str:
    """What the pointers of a tile hold of each row's place: the rows of a dense tile, or the slots of pages."""
    if decode.address == "paged":
        return f"(offs_n % {decode.page_size})" if decode.has_fixed_slots else ""
    return "offs_n"


def _rows(plan: KernelPlan) -> set[int]:
    """Every BLOCK_H that the kernel is launched with."""
    return {plan.unaligned.block_m, *(tile.block_m for _, tile in plan.launch)}


def _tasks(plan: KernelPlan, decode: DecodePlan) -> dict[str, object]:
    """How many tasks a request has; where targets cut the heads of a group differently, BLOCK_H says it."""
    if len(_rows(plan)) == 1:
        tasks = plan.num_kv_heads * decode.head_tiles
        return {"tasks_per_request": tasks, "tasks_launched": tasks, "blocks_of_unit": "BLOCK_N"}
    return {
        "tasks_per_request": f"tl.cdiv({plan.group_size}, BLOCK_H)",
        "tasks_launched": f'triton.cdiv({plan.group_size}, options["BLOCK_H"])',
        "blocks_of_unit": "BLOCK_H, BLOCK_N",
    }


def decode_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``kernels/decode.py.j2``."""
    decode = plan.decode
    assert decode is not None
    cache = _cache(plan, decode)
    names = cache["strides"]
    assert isinstance(names, tuple)
    indices = ("kv_head",) * (plan.num_kv_heads > 1) + ("head_tile",) * (decode.head_tiles > 1)
    return (
        common(plan, decode.address)
        | cache
        | {
            "address": decode.address,
            "page_size": decode.page_size,
            "has_fixed_slots": decode.has_fixed_slots,
            "row": _row(decode),
            "tiles": decode.tiles,
            "walk": decode.walk,
            "problem": f"Attention of one query token a request against its keys: {heads_in_words(plan)};\n"
            f"{mask_in_words(plan)}." + (absorbed_in_words(plan) or rotary_in_words(plan)),
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
            "tile_of_heads": _tile_of_heads(plan),
            "heads_are_padded": any(plan.group_size % rows for rows in _rows(plan)),
            "head_tiles": decode.head_tiles,
            **_tasks(plan, decode),
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
            "merge_options": "**_merge_options(options)" if decode.pdl_targets else f"num_warps={decode.merge_warps}",
            "merge_width": next_power_of_2(plan.head_dim_v),
        }
    )


CONTEXTS: dict[str, Callable[[Any], dict[str, object]]] = {
    "prefill": prefill_context,
    "decode": decode_context,
    "merge_states": merge_context,
}
