"""Plan -> the names that ``sm90/prefill.py.j2`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.render.names import LOG2_E, named

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


def hopper_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``sm90/prefill.py.j2``."""
    assert plan.hopper is not None
    assert plan.prefill is not None
    groups, loops = plan.hopper.groups, _loops(plan.window)
    blocks = named(plan.qk_blocks, "d")
    is_windowed = plan.window.left is not None or plan.window.right is not None
    return {
        "title": f"{plan.spec_name}: {plan.kernel}",
        "kernel": plan.kernel,
        "layout": plan.prefill.layout,
        "lse_shape": f"B, {plan.num_qo_heads}, M",
        "dtype": plan.dtype,
        "asm_dtype": _ASM_DTYPES[plan.dtype],
        "num_qo_heads": plan.num_qo_heads,
        "group_size": plan.group_size,
        "blocks": blocks,
        "head_dim_qk": plan.head_dim_qk,
        "v_width": plan.hopper.v_width,
        "kv_head": "kv_head" if plan.group_size > 1 else "head",
        "k_tiles": ", ".join(f"k_buffer{d.suffix}.index(stage)" for d in blocks),
        "has_out_buffer": plan.hopper.has_out_buffer,
        "descriptors": ",\n        ".join(
            [f"_descriptor(q, 64, {d.width})" for d in blocks]
            + [f"_descriptor(k, {plan.hopper.keys}, {d.width})" for d in blocks]
            + [f"_descriptor(v, {plan.hopper.keys}, {plan.hopper.v_width})", f"_descriptor(out, 64, {plan.hopper.v_width})"]
        ),
        "window": plan.window,
        "longest_last": plan.window.right is not None and plan.window.left is None,
        "loops": loops,
        "masks_later": any(masked for _, masked in loops),
        "m_ref": "m_ref" if any(masked for _, masked in loops) else "m_new",
        "of_rows": "row_tile, M, " if is_windowed else "",
        "rows_seen": "rows, M, " if is_windowed else "",
        "scale_log2": repr(plan.sm_scale * LOG2_E),
        "groups": groups,
        "rows": plan.hopper.rows,
        "keys": plan.hopper.keys,
        "stages": plan.hopper.stages,
        # The first warpgroup is the program's own; then the others, and the warp that loads.
        "worker_warps": [4] * (groups - 1) + [1],
        "worker_registers": [plan.hopper.registers] * (groups - 1) + [plan.hopper.load_registers],
        "max_registers": plan.hopper.max_registers,
        "releases": plan.hopper.releases,
        "releases_in_words": plan.hopper.releases_in_words,
        "stride_unit": plan.stride_unit,
        "section_bytes": plan.section_bytes,
        "section_mib": plan.section_bytes >> 20,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
    }
