"""Which prefill kernels have a form of their own for sm_90, and its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.plan.model import HopperPlan
from kgen.spec.cache import PagedCache

if TYPE_CHECKING:
    from kgen.spec.model import GroupedAttention, PrefillKernel, SpecFile

# By head dimension: warpgroups that compute, registers of their threads, and of every thread at the start. With the
# warp that loads they take the 65,536 registers of a multiprocessor.
_GROUPS = {64: (3, 160, 128), 128: (2, 240, 168)}
# Bytes a thread may spill, stored and loaded, by head dimension: for the columns of the masks. Under Triton 3.6, where
# the form was measured, none but 440 without a mask; under 3.9 at most these.
_SPILLS = {64: 2304, 128: 0}
KEYS = 128
STAGES = 2
LOAD_REGISTERS = 24
# Gluon is experimental: the releases of Triton that compile the form.
RELEASES = ((3, 6), (3, 9))


def hopper_plan(spec: SpecFile, kernel: PrefillKernel, layer: GroupedAttention) -> HopperPlan | None:
    """The plan of the form for sm_90; None where the portable kernel runs there too."""
    dim = layer.head_dim_qk
    is_dense = kernel.layout in ("bhsd", "bshd") and not kernel.padded and not isinstance(kernel.kv, PagedCache)
    has_one_tile = dim in _GROUPS and layer.head_dim_v == dim and layer.head_dim_pe is None
    if "sm_90" not in spec.targets or spec.dtype == "float32" or not is_dense or not has_one_tile:
        return None
    groups, registers, max_registers = _GROUPS[dim]
    # Rings of keys and of values, queries and outputs of each warpgroup; barriers and the next tile in half a KB.
    tiles = 2 * dim * (2 * STAGES * KEYS + 2 * groups * 64)
    return HopperPlan(
        groups, KEYS, STAGES, registers, LOAD_REGISTERS, max_registers, tiles + 512, _SPILLS[dim], RELEASES
    )
