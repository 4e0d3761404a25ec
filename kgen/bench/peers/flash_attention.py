"""FlashAttention-3 as the wheel ``fa3-fwd`` has it, and FlashAttention-4 (``flash-attn-4``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kgen.bench.inputs import UnsupportedError
from kgen.bench.peers import Candidate
from kgen.bench.peers.shapes import (
    CONTIGUOUS,
    PACKED,
    library,
    of_tokens_first,
    one_length,
    refuse_extras,
    seen_by_decode,
)
from kgen.bench.storage import Packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgen.bench.inputs import Problem


def fa3(problem: Problem) -> Candidate:
    """FlashAttention-3. The wheel is built for bfloat16, without pages and without windows."""
    fa3_fwd = library("fa3_fwd_interface")

    refuse_extras(problem)
    if problem.dtype != torch.bfloat16:
        raise UnsupportedError("is built for bfloat16")
    scale = problem.layer.sm_scale
    if problem.is_absorbed:
        return _absorbed(problem, fa3_fwd.flash_attn_with_kvcache)
    if problem.is_decode:
        if not problem.workload.is_uniform:
            return _cached(problem, fa3_fwd.flash_attn_with_kvcache)
        k, v, note = seen_by_decode(problem)
        q, k, v = (x.transpose(1, 2) for x in (problem.dense_q(), k, v))
        return Candidate(
            lambda: _first(fa3_fwd.flash_attn_func(q, k, v, softmax_scale=scale, causal=False, num_splits=0)),
            of_tokens_first,
            note,
        )
    left, right = problem.band
    if left is not None or right not in (None, 0):
        raise UnsupportedError("is built without windows")
    if not problem.workload.is_uniform or problem.is_paged:
        return _packed(problem, fa3_fwd.flash_attn_varlen_func, causal=right == 0)
    q, k, v = (x.transpose(1, 2) for x in (problem.dense_q(), problem.dense_k(), problem.dense_v()))
    return Candidate(
        lambda: _first(fa3_fwd.flash_attn_func(q, k, v, softmax_scale=scale, causal=right == 0, num_splits=1)),
        of_tokens_first,
    )


def fa4(problem: Problem) -> Candidate:
    """FlashAttention-4, prefill."""
    flash_attn = library("flash_attn.cute")

    refuse_extras(problem)
    if problem.is_decode:
        raise UnsupportedError("is timed on prefill")
    one_length(problem)
    left, right = problem.band
    options: dict[str, Any] = {"softmax_scale": problem.layer.sm_scale, "causal": left is None and right == 0}
    if left is not None or right not in (None, 0):
        options["window_size"] = (left, right)
    q, k, v = (x.transpose(1, 2) for x in (problem.dense_q(), problem.dense_k(), problem.dense_v()))
    return Candidate(lambda: _first(flash_attn.flash_attn_func(q, k, v, **options)), of_tokens_first)


def _first(result: Any) -> torch.Tensor:
    """The output of a call that may also return the LSE."""
    out: torch.Tensor = result[0] if isinstance(result, tuple | list) else result
    return out


def _cached(problem: Problem, with_kvcache: Callable[..., Any]) -> Candidate:
    """Decode of requests with lengths of their own."""
    if problem.band[0] is not None:
        raise UnsupportedError("is built without windows")
    q, k, v = (x.transpose(1, 2) for x in (problem.dense_q(), problem.dense_k(), problem.dense_v()))
    options = {"cache_seqlens": problem.lengths(), "softmax_scale": problem.layer.sm_scale, "causal": True}
    note = CONTIGUOUS if problem.is_copied else None
    return Candidate(lambda: _first(with_kvcache(q, k, v, num_splits=0, **options)), of_tokens_first, note)


def _absorbed(problem: Problem, with_kvcache: Callable[..., Any]) -> Candidate:
    """The rotary blocks as q and k, the latent as v, and its query as ``qv``."""
    rank = problem.layer.head_dim_qk
    q = problem.dense_q().transpose(1, 2)
    whole = problem.dense_k().transpose(1, 2)  # [B, N, 1, R + P]
    k_pe, latent = whole[..., rank:], whole[..., :rank]
    q_pe, q_latent = q[..., rank:].contiguous(), q[..., :rank].contiguous()
    options = {"cache_seqlens": problem.lengths(), "softmax_scale": problem.layer.sm_scale, "causal": True}
    note = CONTIGUOUS if problem.is_paged else None
    return Candidate(
        lambda: _first(with_kvcache(q_pe, k_pe, latent, qv=q_latent, num_splits=0, **options)), of_tokens_first, note
    )


def _packed(problem: Problem, varlen: Callable[..., Any], *, causal: bool) -> Candidate:
    """A batch whose requests follow each other in one axis."""
    q, k, v = problem.packed()
    qo_lens, kv_lens = problem.workload.qo_lens, problem.workload.seq_lens
    starts = [
        torch.tensor((0, *lengths), device=problem.device).cumsum(0).to(torch.int32) for lengths in (qo_lens, kv_lens)
    ]

    def call() -> torch.Tensor:
        options = {"softmax_scale": problem.layer.sm_scale, "causal": causal}
        return _first(varlen(q, k, v, *starts, max(qo_lens), max(kv_lens), **options))

    storage = Packed(qo_lens)
    note = None if isinstance(problem.kv_storage, Packed) else PACKED
    return Candidate(call, storage.rows, note)
