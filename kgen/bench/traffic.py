"""Kernels that move bytes and compute nothing: the ceilings of memory, and the flush that leaves L2 clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS_PER_SM = 8
BLOCK = 4096


@triton.jit
def _read_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The sum of a strided share of x (int32): nothing but loads."""
    acc = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        acc += tl.load(x_ptr + tl.cast(start, tl.int64) + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc))


def read(nbytes: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """A bare read of ``nbytes`` (whole blocks of them) by eight programs a multiprocessor."""
    unit = 4 * BLOCK
    x = torch.arange(max(1, nbytes // unit) * BLOCK, dtype=torch.int32, device=device)
    programs = torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_SM
    out = torch.empty(programs, dtype=torch.int32, device=device)

    def call() -> torch.Tensor:
        _read_kernel[(programs,)](x, out, x.numel(), BLOCK=BLOCK, num_warps=8)
        return out

    return call


def copy(nbytes: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """A copy that reads half of ``nbytes`` and writes as many."""
    source = torch.zeros(nbytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
