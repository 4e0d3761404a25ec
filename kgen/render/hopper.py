"""Plan -> the names that ``sm90/prefill.py.j2`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.render.names import LOG2_E, named
from kgen.render.words import argument_list

if TYPE_CHECKING:
    from kgen.plan.model import KernelPlan, Window

_ASM_DTYPES = {"float16": "f16", "bfloat16": "bf16"}


def _loops(window: Window) -> list[tuple[str, bool]]:
    """The loops over the tiles after the first, from the last on down: how long each runs, and whether it masks."""
    loops = []
    if window.right is not None:
        loops.append(("key_tile >= gl.maximum(full_end, begin)", True))
    if window.left is None:
        return [*loops, ("key_tile >= begin", False)]
    return [*loops, ("key_tile >= gl.maximum(full_begin, begin)", False), ("key_tile >= begin", True)]


_INDEX_ARGUMENTS = {
    "shapes": (),
    "seq_lens": ("seq_lens",),
    "indptr": ("qo_indptr", "kv_indptr", "max_qo_len"),
    "chunks": ("qo_indptr", "block_table", "seq_lens", "max_qo_len"),
}


def run_arguments(plan: KernelPlan) -> str:
    """The arguments of the form's ``run``."""
    assert plan.prefill is not None
    keys = ("k", "v") if plan.prefill.page_size is None else ("k_cache", "v_cache")
    return ", ".join(("q", *keys, *_INDEX_ARGUMENTS[plan.prefill.lengths], "out", "lse"))


def _keys(plan: KernelPlan) -> tuple[list[str], list[str]]:
    """What the kernel knows keys and values by, and what is passed for it."""
    assert plan.hopper is not None
    assert plan.prefill is not None
    blocks, width, page_size = named(plan.qk_blocks, "d"), plan.hopper.v_width, plan.prefill.page_size
    if plan.hopper.locate == "tokens":
        known = [name for x in "kv" for name in (f"{x}_ptr", *(f"stride_{x}{axis}" for axis in "pnh"))]
        strides = f"*(stride // {plan.stride_unit} for stride in %s.stride()[:3])"
        return known, [f"{x}_cache, {strides % f'{x}_cache'}" for x in "kv"]
    k, v = ("k", "v") if page_size is None else ("k_cache", "v_cache")
    rows = min(plan.hopper.keys, page_size or plan.hopper.keys)  # of one copy
    known = [*(f"k_desc{d.suffix}" for d in blocks), "v_desc"]
    return known, [*(f"_descriptor({k}, {rows}, {d.width})" for d in blocks), f"_descriptor({v}, {rows}, {width})"]


def _dense(plan: KernelPlan) -> dict[str, object]:
    """Names of a batch with an axis of its own."""
    assert plan.prefill is not None
    is_padded = plan.prefill.lengths == "seq_lens"
    sizes = ["num_rows" if is_padded else "M", "seq_lens" if is_padded else "N"]
    sizes += ["row_tiles", "batch_heads", "heads_per_section"]
    kernel_sizes = [*sizes, "num_tiles"]
    return {
        "batch": "dense",
        "work": "padded" if is_padded else None,
        "queries": "N" if is_padded else "M",
        "to_key": "" if is_padded else " + N - M",
        "row_count": sizes[0],
        "values_end": is_padded,
        "after_values": "Padding follows the request's keys",
        "publish": "next_tile.store(gl.full([1], tile, gl.int32, layout))",
        "at_batch": "batch",
        "at_queries": "",
        "at_keys": "",
        "outputs": "lse_ptr",
        "lse_rows": f"lse_ptr + batch_head.to(gl.int64) * {sizes[0]}",
        "sizes": sizes,
        "kernel_sizes": kernel_sizes,
        "more_to_load": ", num_tiles",
        "unspecialised": argument_list(tuple(name for name in kernel_sizes if name != "seq_lens")),
    }


def _packed(plan: KernelPlan) -> dict[str, object]:
    """Names of a packed batch, whose requests follow each other."""
    assert plan.prefill is not None
    assert plan.hopper is not None
    page_size, keys = plan.prefill.page_size, plan.hopper.keys
    key_lengths = "kv_indptr" if page_size is None else "seq_lens"
    sizes = ["qo_indptr", key_lengths, "num_requests", "max_qo_len", "num_rows"]
    by_tokens = plan.hopper.locate == "tokens"
    table = [] if page_size is None else ["block_table", "stride_tb"]
    more_to_load = [
        *["page_ids"] * (plan.hopper.locate in ("pages", "tokens")),
        *["page_table"] * (page_size is not None),
        *["keys", "values"] * by_tokens,
    ]
    strides = [name for name in _keys(plan)[0] if name.startswith("stride_")]
    kernel_sizes = ["out_ptr", "stride_ot", "stride_oh", *sizes, *table]
    pointers = ("out_ptr", "qo_indptr", key_lengths, "block_table")
    names: dict[str, object] = {
        "batch": "packed",
        "work": "packed",
        "queries": "M",
        "to_key": " + N - M",
        "row_count": "M",
        "values_end": not by_tokens,  # rows of no key are copied as zeros
        "publish": "next_tile.index(0).store(gl.full([1], request, gl.int32, layout))\n"
        "        next_tile.index(1).store(gl.full([1], tile - first, gl.int32, layout))",
        "at_batch": "0",
        "at_queries": "q_start + ",
        "at_keys": "kv_start + ",
        "key_lengths": key_lengths,
        "outputs": "lse_ptr, out_ptr, stride_ot, stride_oh",
        "lse_rows": "lse_ptr + head.to(gl.int64) * num_rows + q_start",
        "sizes": sizes,
        "kernel_sizes": kernel_sizes,
        "more_to_load": "".join(f", {name}" for name in more_to_load),
        "unspecialised": argument_list(tuple(name for name in [*strides, *kernel_sizes] if name not in pointers)),
    }
    if page_size is None:
        return names | {
            "keys_of_request": "gl.load(kv_indptr + request + 1) - gl.load(kv_indptr + request)",
            "after_values": "The keys of the next request follow those of this one",
        }
    return names | {
        "keys_of_request": "gl.load(seq_lens + request)",
        "after_values": "The last page goes on behind the request's keys",
        "page_size": page_size,
        "at_token": "start_n" if page_size > keys else "0",
    }


def hopper_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``sm90/prefill.py.j2``."""
    assert plan.hopper is not None
    assert plan.prefill is not None
    groups, loops = plan.hopper.groups, _loops(plan.window)
    blocks = named(plan.qk_blocks, "d")
    is_packed = plan.prefill.layout == "ragged"
    width = plan.hopper.v_width
    key_arguments, passed_keys = _keys(plan)
    is_windowed = plan.window.left is not None or plan.window.right is not None
    return {
        "title": f"{plan.spec_name}: {plan.kernel}",
        "kernel": plan.kernel,
        "layout": plan.prefill.layout,
        "locate": plan.hopper.locate,
        "run_arguments": run_arguments(plan),
        "lse_shape": f"{plan.num_qo_heads}, Tq" if is_packed else f"B, {plan.num_qo_heads}, M",
        **(_packed(plan) if is_packed else _dense(plan)),
        "out_tile": "out_tile" if plan.hopper.has_out_buffer else f"q_tile{blocks[0].suffix}",
        "head_dim_v": plan.head_dim_v,
        "dtype": plan.dtype,
        "asm_dtype": _ASM_DTYPES[plan.dtype],
        "num_qo_heads": plan.num_qo_heads,
        "group_size": plan.group_size,
        "blocks": blocks,
        "head_dim_qk": plan.head_dim_qk,
        "v_width": width,
        "kv_head": "kv_head" if plan.group_size > 1 else "head",
        "k_tiles": ", ".join(f"k_buffer{d.suffix}.index(stage)" for d in blocks),
        "has_out_buffer": plan.hopper.has_out_buffer,
        "key_arguments": key_arguments,
        # TMA is told of by one thread, copies by each of 128.
        "arrivals": 128 if plan.hopper.locate == "tokens" else 1,
        "descriptors": ",\n        ".join(
            [
                *(f"_descriptor(q, 64, {d.width})" for d in blocks),
                *passed_keys,
                f"_descriptor(out, 64, {width})",
            ]
        ),
        "window": plan.window,
        "longest_last": plan.window.right is not None and plan.window.left is None,
        "loops": loops,
        "masks_later": any(masked for _, masked in loops),
        "m_ref": "m_ref" if any(masked for _, masked in loops) else "m_new",
        "is_windowed": is_windowed,
        "scale_log2": repr(plan.sm_scale * LOG2_E),
        "groups": groups,
        "rows": plan.hopper.rows,
        "keys": plan.hopper.keys,
        "stages": plan.hopper.stages,
        # The first warpgroup is the program's own; then the others, and the warp that loads.
        "worker_warps": [4] * (groups - 1) + [plan.hopper.load_warps],
        "worker_registers": [plan.hopper.registers] * (groups - 1) + [plan.hopper.load_registers],
        "max_registers": plan.hopper.max_registers,
        "releases": plan.hopper.releases,
        "releases_in_words": plan.hopper.releases_in_words,
        "stride_unit": plan.stride_unit,
        "section_bytes": plan.section_bytes,
        "section_mib": plan.section_bytes >> 20,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
    }
