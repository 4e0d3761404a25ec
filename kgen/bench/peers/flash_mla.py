"""FlashMLA's dense decode, as the wheel ``sgl-flash-mla`` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kgen.bench.inputs import UnsupportedError
from kgen.bench.peers import Candidate
from kgen.bench.peers.shapes import library, of_tokens_first, refuse_extras
from kgen.bench.storage import Pages

if TYPE_CHECKING:
    from kgen.bench.inputs import Problem

PAGE_SIZE = 64
RANK = 512


def flash_mla(problem: Problem) -> Candidate:
    """Absorbed decode of 512 + 64 from a paged cache, in bfloat16."""
    if not problem.is_absorbed:
        raise UnsupportedError("decodes latent layers")
    refuse_extras(problem)
    layer, storage = problem.layer, problem.kv_storage
    if (layer.head_dim_qk, layer.head_dim_pe) != (RANK, 64) or problem.dtype != torch.bfloat16:
        raise UnsupportedError("takes 512 + 64 in bfloat16")
    if not isinstance(storage, Pages) or storage.page_size != PAGE_SIZE:
        raise UnsupportedError(f"takes pages of {PAGE_SIZE}")
    flashmla = library("flash_mla")
    q = problem.dense_q().transpose(1, 2).contiguous()  # [B, 1, H, R + P]
    fused = torch.cat(problem.k, dim=-1)  # [pages, page_size, 1, R + P]
    lengths, table = problem.lengths(), storage.table
    schedule, _ = flashmla.get_mla_metadata()

    def call() -> torch.Tensor:
        out, _ = flashmla.flash_mla_with_kvcache(
            q,
            fused,
            table,
            lengths,
            RANK,
            schedule,
            softmax_scale=layer.sm_scale,
            causal=True,
            use_legacy=True,
        )
        result: torch.Tensor = out
        return result

    return Candidate(call, of_tokens_first)
