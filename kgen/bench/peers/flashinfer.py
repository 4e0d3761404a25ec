"""FlashInfer (``flashinfer-python``), which compiles its kernels with nvcc when they are first planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kgen.bench.inputs import UnsupportedError
from kgen.bench.peers import Candidate
from kgen.bench.peers.shapes import library, of_heads_first, one_length, refuse_extras
from kgen.bench.storage import Pages, Single

if TYPE_CHECKING:
    from kgen.bench.inputs import Problem

WORKSPACE = 256 << 20


def flashinfer(problem: Problem) -> Candidate:
    """Decode from pages, absorbed decode, and prefill of one request."""
    refuse_extras(problem)
    if not problem.is_decode:
        return _prefill(problem)
    if not isinstance(problem.kv_storage, Pages) or not isinstance(problem.q_storage, Single):
        raise UnsupportedError("decodes one token a request from paged caches")
    return _absorbed(problem, problem.kv_storage) if problem.is_absorbed else _decode(problem, problem.kv_storage)


def _pages(problem: Problem, storage: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each request's pages begin, and the pages of all requests one after the other, int32."""
    starts = torch.tensor((0, *storage.counts)).cumsum(0).to(torch.int32)
    used = torch.cat([storage.table[b, :count] for b, count in enumerate(storage.counts)])
    return starts.to(problem.device), used


def _workspace(problem: Problem) -> torch.Tensor:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=problem.device)


def _decode(problem: Problem, storage: Pages) -> Candidate:
    layer, size = problem.layer, storage.page_size
    starts, used = _pages(problem, storage)
    wrapper = library("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        _workspace(problem), "NHD", use_tensor_cores=True
    )
    left, _ = problem.band
    wrapper.plan(
        starts,
        used,
        (problem.lengths() - 1) % size + 1,
        layer.num_qo_heads,
        layer.num_kv_heads,
        layer.head_dim_qk,
        size,
        window_left=-1 if left is None else left,
        q_data_type=problem.dtype,
        kv_data_type=problem.dtype,
        sm_scale=layer.sm_scale,
    )
    q, cache = problem.q[0], (problem.k[0], problem.v)
    return Candidate(lambda: wrapper.run(q, cache), problem.results)


def _absorbed(problem: Problem, storage: Pages) -> Candidate:
    layer = problem.layer
    starts, used = _pages(problem, storage)
    wrapper = library("flashinfer.mla").BatchMLAPagedAttentionWrapper(_workspace(problem))
    wrapper.plan(
        torch.arange(problem.workload.batch + 1, dtype=torch.int32, device=problem.device),
        starts,
        used,
        problem.lengths(),
        layer.num_qo_heads,
        layer.head_dim_qk,
        layer.head_dim_pe,
        storage.page_size,
        False,
        layer.sm_scale,
        problem.dtype,
        problem.dtype,
    )
    q, q_pe = problem.q
    latent, k_pe = (part.squeeze(2) for part in problem.k)
    return Candidate(lambda: wrapper.run(q, q_pe, latent, k_pe), problem.results)


def _prefill(problem: Problem) -> Candidate:
    single_prefill = library("flashinfer").single_prefill_with_kv_cache
    one_length(problem)
    if problem.workload.batch != 1:
        raise UnsupportedError("is timed on prefill of one request")
    left, right = problem.band
    if right not in (None, 0):
        raise UnsupportedError("has no window to the right")
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (problem.dense_q(), problem.dense_k(), problem.dense_v()))
    options: dict[str, Any] = {"causal": right == 0, "window_left": -1 if left is None else left}

    def call() -> torch.Tensor:
        out: torch.Tensor = single_prefill(q, k, v, sm_scale=problem.layer.sm_scale, **options)
        return out.transpose(0, 1)[None]

    return Candidate(call, of_heads_first)
