"""Paged caches, written to be checked by eye: pages and a block table -> dense keys or values."""

from __future__ import annotations

import torch


def gather(cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, capacity: int) -> torch.Tensor:
    """``cache[pages, page_size, H, D]`` as a dense ``[B, H, capacity, D]``, token by token.

    Token ``t`` of request ``b`` is row ``t % page_size`` of page ``block_table[b, t // page_size]``
    (``block_table[B, max_pages]`` integers). Only the entries of tokens below ``seq_lens[b]`` are
    looked at; rows from there on are 0.
    """
    page_size, heads, width = cache.shape[1:]
    dense = torch.zeros(len(seq_lens), heads, capacity, width, dtype=cache.dtype, device=cache.device)
    for b, length in enumerate(seq_lens.tolist()):
        tokens = torch.arange(length, device=cache.device)
        pages = block_table[b, tokens // page_size].long()
        dense[b, :, :length] = cache[pages, tokens % page_size].transpose(0, 1)
    return dense
