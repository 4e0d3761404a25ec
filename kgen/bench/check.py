"""Sampled rows of a workload in float64, which every candidate must give before it is timed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kgen.reference.evaluate import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.bench.inputs import Problem
    from kgen.spec.model import SpecFile

ROWS = 64
MOST_REQUESTS = 4  # whose rows are sampled: the first, the last and others


@dataclass(frozen=True)
class Expected:
    """One row of the output: that of query ``row`` and ``head`` of ``request``, ``[Dv]`` float64."""

    request: int
    head: int
    row: int
    out: torch.Tensor


def tolerance(spec: SpecFile) -> float:
    """The largest relative error of a row. P and the output are rounded to the dtype; the sums are float32."""
    if spec.dtype == "float32":
        return 1e-2 if spec.allow_tf32 else 1e-4
    return 2e-2 if spec.dtype == "bfloat16" else 4e-3


def expect(problem: Problem, count: int = ROWS) -> tuple[Expected, ...]:
    """``count`` rows of the problem, the first and last of the sampled requests among them."""
    draw = random.Random(1)
    batch, heads = problem.workload.batch, problem.layer.num_qo_heads
    requests = {0, batch - 1} | set(draw.sample(range(batch), min(batch, MOST_REQUESTS - 2)))
    found = []
    for request in sorted(requests):
        q, k, v = problem.queries(request), problem.keys(request), problem.values(request)
        last = q.shape[1] - 1
        places = [(0, 0), (heads - 1, last)]
        places += [(draw.randrange(heads), draw.randint(0, last)) for _ in range(count // len(requests) - 2)]
        found += [Expected(request, head, row, _row(problem, q, k, v, head, row)) for head, row in places]
    return tuple(found)


def worst_error(expected: tuple[Expected, ...], rows: Callable[[int], torch.Tensor]) -> float:
    """The largest ``|out - expected| / |expected|`` of the rows, infinite for a row with NaN.

    ``rows`` gives a request's output, ``[Hq, M, Dv]``. A row that should be 0 must be 0.
    """
    worst = 0.0
    for one in expected:
        difference = float((rows(one.request)[one.head, one.row].double() - one.out).norm())
        size = float(one.out.norm())
        error = difference / size if size else (0.0 if difference == 0 else math.inf)
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def _row(problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head: int, row: int) -> torch.Tensor:
    """One row of attention over ``q[Hq, M, D]``, ``k[Hkv, N, D]`` and ``v[Hkv, N, Dv]``, by the laws."""
    layer = problem.layer
    kv_head, position = head // layer.group_size, row + k.shape[1] - q.shape[1]
    scores = k[kv_head].double() @ q[head, row].double() * layer.sm_scale
    if layer.logits_soft_cap is not None:
        scores = layer.logits_soft_cap * torch.tanh(scores / layer.logits_soft_cap)
    kv_pos = torch.arange(k.shape[1], device=k.device)
    seen = visible(layer.mask, torch.tensor(position, device=k.device), kv_pos)
    if problem.is_decode:
        seen = seen & (kv_pos <= position)
    scores = torch.where(seen, scores, -torch.inf)
    if problem.sinks is not None:
        scores = torch.cat([scores, problem.sinks[head : head + 1].double()])
    p = torch.softmax(scores, 0)[: k.shape[1]].nan_to_num(0.0)
    return p @ v[kv_head].double()
