"""PyTorch's FlexAttention, compiled: prefill with any band of keys, and packed batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kgen.bench.inputs import UnsupportedError
from kgen.bench.peers import Candidate
from kgen.bench.peers.shapes import PACKED, of_heads_first, refuse_extras
from kgen.bench.storage import Packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.bench.inputs import Problem

MASK_COMPILED_FROM = 1 << 28  # pairs of query and key; below, the mask is made eagerly


def flex(problem: Problem) -> Candidate:
    """One compiled call with a block mask of the problem's band."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    refuse_extras(problem)
    if problem.is_decode:
        raise UnsupportedError("is timed on prefill")
    if problem.is_paged:
        raise UnsupportedError("takes no block table")
    rows: Callable[[torch.Tensor, int], torch.Tensor] = of_heads_first
    note = None
    if problem.workload.is_uniform:
        q, k, v = problem.dense_q(), problem.dense_k(), problem.dense_v()
        sees = _band(problem)
    else:
        if problem.workload.qo_lens != problem.workload.seq_lens:
            raise UnsupportedError("is timed on packed batches with as many queries as keys")
        q, k, v = (x.transpose(0, 1)[None] for x in problem.packed())
        rows = _packed_rows(problem)
        note = None if isinstance(problem.kv_storage, Packed) else PACKED
        sees = _in_own_request(problem)
    pairs = q.shape[2] * k.shape[2]
    blocks: Any = None
    if sees is not None:
        options: dict[str, Any] = {"_compile": True} if pairs > MASK_COMPILED_FROM else {}
        blocks = create_block_mask(sees, None, None, q.shape[2], k.shape[2], device=str(problem.device), **options)
    torch._dynamo.reset()  # a cache full of earlier shapes falls back to the eager form
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    options = {"scale": problem.layer.sm_scale, "enable_gqa": problem.layer.group_size > 1, "block_mask": blocks}
    return Candidate(lambda: compiled(q, k, v, **options), rows, note)


def _band(problem: Problem) -> Callable[..., Any] | None:
    """Which keys a query sees, as a function of indices; ``None`` for all of them."""
    left, right = problem.band
    offset = problem.workload.context - problem.workload.queries
    if left is None and right is None:
        return None

    def sees(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = (j - i - offset <= right) if right is not None else (j >= 0)
        return seen if left is None else seen & (i + offset - j <= left)

    return sees


def _in_own_request(problem: Problem) -> Callable[..., Any]:
    """The band among the tokens of one request of a packed batch, whose positions differ as their indices do."""
    left, right = problem.band
    lengths = torch.tensor(problem.workload.seq_lens, device=problem.device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=problem.device), lengths)

    def sees(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = owner[i] == owner[j]
        if right is not None:
            seen = seen & (j - i <= right)
        return seen if left is None else seen & (i - j <= left)

    return sees


def _packed_rows(problem: Problem) -> Callable[[torch.Tensor, int], torch.Tensor]:
    lengths = problem.workload.qo_lens

    def rows(out: torch.Tensor, request: int) -> torch.Tensor:
        start = sum(lengths[:request])
        return out[0, :, start : start + lengths[request]]

    return rows
