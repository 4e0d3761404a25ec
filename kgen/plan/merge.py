"""Spec -> the plan of a kernel that merges partial results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.plan.blocks import next_power_of_2
from kgen.plan.model import MergePlan, RowTile
from kgen.spec.views import merged_width

if TYPE_CHECKING:
    from kgen.spec.loader import LoadedSpec
    from kgen.spec.model import MergeStatesKernel

PART_BYTES = 4096  # of the outputs of one part, in a program: two loads of 16 bytes a thread of 4 warps
WARPS = 4
# Of the loop over any number of parts: the parts that are under way, and the one that is added.
STAGES = 3
# Beside the layout, for `kgen explain`.
_LAYOUTS_IN_WORDS = {
    "bhd": "what decode returns: out [B, H, D], lse [B, H]",
    "bhsd": "what prefill returns: out [B, H, M, D], lse [B, H, M]",
    "bshd": "what prefill returns, tokens before heads: out [B, M, H, D], lse [B, H, M]",
    "ragged": "what prefill of packed requests returns: out [T, H, D], lse [H, T]",
}


def merge_plan(loaded: LoadedSpec, path: str, name: str, kernel: MergeStatesKernel, dtype_bytes: int) -> MergePlan:
    """The plan of ``kernel``, called ``name``; it fits every target."""
    spec = loaded.spec
    width = merged_width(spec.attention, kernel)
    lanes = next_power_of_2(width)
    block_r = PART_BYTES // dtype_bytes // lanes
    # Parts under way wait in shared memory, with their LSE up to three times, once for each use.
    tile = RowTile(block_r, WARPS, STAGES, shared_bytes=(STAGES - 1) * (PART_BYTES + 3 * 4 * block_r))
    idle = f", {lanes - width} of them idle" if lanes > width else ""
    return MergePlan(
        spec_name=spec.name,
        spec_path=path,
        spec_digest=loaded.digest,
        spec=spec.model_dump(mode="json"),
        kernel=name,
        template="merge_states",
        dtype=spec.dtype,
        num_qo_heads=spec.attention.num_qo_heads,
        head_dim_v=width,
        stride_unit=16 // dtype_bytes,
        launch=tuple((target, tile) for target in spec.targets),
        layout=kernel.layout,
        form=kernel.form,
        lanes=lanes,
        most_rows=2**31 - block_r,
        reasons=(
            (f"layout {kernel.layout}", _LAYOUTS_IN_WORDS[kernel.layout]),
            (f"width {width}", f"{lanes} lanes{idle}" + (f", form {kernel.form}" if kernel.form else "")),
            (f"BLOCK_R {block_r}", f"{PART_BYTES:,} bytes of a part in {WARPS} warps, on every target alike"),
            ("two parts", "a kernel of their own: both are loaded at once, and neither needs to be stacked"),
            ("other numbers of parts", f"a loop over a runtime value, {STAGES - 1} parts loaded ahead"),
        ),
    )
