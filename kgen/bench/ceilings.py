"""What the GPU gives at most, measured in the same run as the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kgen.bench import traffic
from kgen.bench.record import Ceilings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgen.bench.timing import Timing

NBYTES = 2 << 30
SIDE = 8192  # of the square matrices


def calls(device: torch.device) -> dict[str, Callable[[], object]]:
    """What is timed for the ceilings: a read and a copy that move 2 GiB, and a product of matrices in bfloat16."""
    a, b = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    return {
        "read": traffic.read(NBYTES, device),
        "copy": traffic.copy(NBYTES, device),
        "matmul": lambda: a @ b,
    }


def of_timings(timings: Mapping[str, Timing]) -> Ceilings:
    """Rates from the timings of ``calls``."""

    def rate(name: str, amount: int) -> float | None:
        return amount / timings[name].us / 1e6 if name in timings else None

    return Ceilings(rate("read", NBYTES), rate("copy", NBYTES), rate("matmul", 2 * SIDE**3))
