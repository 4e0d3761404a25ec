"""Which prefill kernels have a form of their own for sm_90, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.plan.blocks import next_power_of_2
from kgen.plan.model import HopperPlan
from kgen.spec.cache import PagedCache

if TYPE_CHECKING:
    from kgen.spec.model import GroupedAttention, PrefillKernel, SpecFile


@dataclass(frozen=True)
class _Form:
    """What a pair of head dimensions takes; measured on an H200, as far as it compiles without spills in the loop."""

    groups: int  # warpgroups that compute
    keys: int
    registers: int  # of a thread that computes; beside them 32 of the warp that loads take 24 each
    max_registers: int
    has_out_buffer: bool
    paged_registers: tuple[int, int] = (232, 40)  # against pages: of a thread that computes, and of one that loads
    spill_bytes: int = 0  # stored and loaded, for the columns of the masks, under Triton 3.9; fewer under 3.6


# By the widths of a key and of a value.
_FORMS = {
    (64, 64): _Form(3, 128, 160, 128, has_out_buffer=True, paged_registers=(160, 32), spill_bytes=2304),
    (96, 96): _Form(2, 128, 240, 168, has_out_buffer=True),
    (128, 128): _Form(2, 128, 240, 168, has_out_buffer=True),
    (192, 128): _Form(2, 128, 240, 168, has_out_buffer=False),
    (256, 256): _Form(2, 64, 240, 168, has_out_buffer=False),
}
STAGES = 2
LOAD_REGISTERS = 24
SWIZZLED_ROWS = 8
PAGED_SPILL_BYTES = 128  # addresses that a tile of work is done with, outside the loops over keys
# Gluon is experimental: the releases of Triton that compile the form.
RELEASES = ((3, 6), (3, 9))


def _locate(page_size: int, keys: int) -> str:
    """How a tile of keys is copied from pages: "page" by one copy, "pages" by one a page, "tokens" row by row."""
    if page_size % keys == 0:
        return "page"
    # Shared memory is swizzled in blocks of 8 rows: a copy by TMA writes whole ones.
    return "pages" if keys % page_size == 0 and page_size % SWIZZLED_ROWS == 0 else "tokens"


def hopper_plan(spec: SpecFile, kernel: PrefillKernel, layer: GroupedAttention) -> HopperPlan | None:
    """The plan of the form for sm_90; None where the portable kernel runs there too."""
    qk, v = layer.head_dim_qk, layer.head_dim_v
    form = _FORMS.get((qk, v)) if layer.head_dim_pe is None else None
    if form is None or "sm_90" not in spec.targets or spec.dtype == "float32":
        return None
    locate, registers, load_registers, spill_bytes = "rows", form.registers, LOAD_REGISTERS, form.spill_bytes
    if isinstance(kernel.kv, PagedCache):
        locate, (registers, load_registers) = _locate(kernel.kv.page_size, form.keys), form.paged_registers
        spill_bytes = max(spill_bytes, PAGED_SPILL_BYTES)
    v_width = next_power_of_2(v)
    # Rings of keys and of values, queries and outputs of each warpgroup; barriers and reductions in 1 KB; page ids.
    rows = 64 * form.groups
    shared = 2 * (STAGES * form.keys * (qk + v_width) + rows * (qk + v_width * form.has_out_buffer)) + 1024
    shared += 4 * form.keys * (locate in ("pages", "tokens"))
    return HopperPlan(
        groups=form.groups,
        keys=form.keys,
        locate=locate,
        v_width=v_width,
        stages=STAGES,
        registers=registers,
        load_warps=4 if locate == "tokens" else 1,
        load_registers=load_registers,
        max_registers=form.max_registers,
        has_out_buffer=form.has_out_buffer,
        shared_bytes=shared,
        spill_bytes=spill_bytes,
        releases=RELEASES,
    )
