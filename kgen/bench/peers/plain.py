"""The baselines: ``kgen.bench.plain_kernels`` on a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kgen.bench import plain_kernels
from kgen.bench.inputs import UnsupportedError
from kgen.bench.peers import Candidate
from kgen.bench.peers.shapes import CONTIGUOUS, refuse_extras
from kgen.bench.storage import Single

if TYPE_CHECKING:
    from kgen.bench.inputs import Problem

HEADS = 16  # of a tile of the latent kernel


def head_a_program(problem: Problem) -> Candidate:
    """Decode of grouped layers in which a program handles one query head and loads its keys itself."""
    layer, width = problem.layer, problem.layer.head_dim_qk
    if not problem.is_decode or problem.is_absorbed:
        raise UnsupportedError("decodes grouped layers")
    refuse_extras(problem)
    _refuse_decode(problem)
    if layer.head_dim_pe is not None or layer.head_dim_v != width or width & (width - 1):
        raise UnsupportedError("takes one width, a power of two")
    q, k, v, lengths = problem.q[0], problem.dense_k(), problem.dense_v(), problem.lengths()
    splits = _splits(problem, layer.num_qo_heads)
    note = CONTIGUOUS if problem.is_copied else None
    return Candidate(lambda: plain_kernels.grouped(q, k, v, lengths, layer.sm_scale, splits), problem.results, note)


def latent(problem: Problem) -> Candidate:
    """Absorbed decode with 16 heads a tile and a fixed number of splits."""
    layer = problem.layer
    if not problem.is_absorbed:
        raise UnsupportedError("decodes latent layers")
    refuse_extras(problem)
    _refuse_decode(problem)
    pe = layer.head_dim_pe or 0
    if layer.num_qo_heads % HEADS or layer.head_dim_qk & (layer.head_dim_qk - 1) or pe & (pe - 1):
        raise UnsupportedError(f"takes a multiple of {HEADS} heads, and widths that are powers of two")
    q, q_pe = problem.q
    cache, lengths = problem.dense_k().squeeze(1), problem.lengths()
    splits = _splits(problem, layer.num_qo_heads // HEADS)
    return Candidate(
        lambda: plain_kernels.latent(q, q_pe, cache, lengths, layer.sm_scale, splits), problem.results, CONTIGUOUS
    )


def _refuse_decode(problem: Problem) -> None:
    if not isinstance(problem.q_storage, Single):
        raise UnsupportedError("takes one query token a request")
    if problem.band[0] is not None:
        raise UnsupportedError("has no window")


def _splits(problem: Problem, programs: int) -> int:
    """Splits for ``programs`` a request and split."""
    processors = torch.cuda.get_device_properties(problem.device).multi_processor_count
    return plain_kernels.num_splits(programs * problem.workload.batch, problem.workload.context, processors)
