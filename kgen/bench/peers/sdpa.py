"""PyTorch's ``scaled_dot_product_attention``, with its cuDNN and its FlashAttention-2 backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kgen.bench.inputs import UnsupportedError
from kgen.bench.peers import Candidate
from kgen.bench.peers.shapes import of_heads_first, one_length, refuse_extras, seen_by_decode

if TYPE_CHECKING:
    import torch

    from kgen.bench.inputs import Problem


def cudnn(problem: Problem) -> Candidate:
    """The cuDNN backend."""
    return _sdpa(problem, SDPBackend.CUDNN_ATTENTION)


def flash(problem: Problem) -> Candidate:
    """The FlashAttention-2 backend."""
    return _sdpa(problem, SDPBackend.FLASH_ATTENTION)


def _sdpa(problem: Problem, backend: SDPBackend) -> Candidate:
    refuse_extras(problem)
    if problem.is_absorbed or problem.layer.head_dim_qk > 256:
        raise UnsupportedError("takes heads up to 256 wide")
    note = None
    causal = False
    if problem.is_decode:
        k, v, note = seen_by_decode(problem)
    else:
        one_length(problem)
        left, right = problem.band
        if left is not None or right not in (None, 0):
            raise UnsupportedError("has no window")
        causal = right == 0
        if causal and problem.workload.queries != problem.workload.context:
            raise UnsupportedError("aligns causal masks top-left")
        k, v = problem.dense_k(), problem.dense_v()
    q, scale = problem.dense_q(), problem.layer.sm_scale
    grouped = problem.layer.group_size > 1

    def call() -> torch.Tensor:
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)

    return Candidate(call, of_heads_first, note)
