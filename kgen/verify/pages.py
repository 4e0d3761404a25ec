"""Paged caches for the cases: pages in random order, shared ones, and a table full of stale entries."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kgen.reference.paging import gather

if TYPE_CHECKING:
    from kgen.verify.cases import Case

# What a table holds beside the pages in use: no page, no address, and somebody's page.
_STALE = (-1, 2**31 - 1, 0)
# Pages that no request uses; a cache of no capacity has no page at all.
_SPARE_PAGES = 2


@dataclass(frozen=True)
class PagedCache:
    """Keys and values in pages, and which parts of them exist.

    ``tensors`` are the caches ``[pages, page_size, Hkv, D]`` of keys and of values, ``table[B, max_pages]`` is int32.
    ``rows[pages, page_size]`` is true where a token that its query may see lies;
    all other rows are undefined. ``entries[b]`` is the range of entries of request
    ``b`` that name a page; the others are stale.
    """

    tensors: tuple[torch.Tensor, ...]
    table: torch.Tensor
    rows: torch.Tensor
    entries: tuple[range, ...]


def lay_out(case: Case, *dense: torch.Tensor) -> PagedCache:
    """Dense ``[B, Hkv, N, D]`` keys and values of a paged case in pages, the same on every call.

    Where requests share a page, the last one's numbers stand in it.
    """
    size, lengths = case.page_size, case.seq_lens
    assert size is not None
    assert lengths is not None
    first_seen = _first_seen(case, lengths)
    ends = [-(-length // size) for length in lengths]
    entries = tuple(
        range(first // size if first < length else end, end)
        for first, length, end in zip(first_seen, lengths, ends, strict=True)
    )
    owners = [(b, entry) for b, used in enumerate(entries) for entry in used]
    # The last page, whose offset is the largest, belongs to the first request that has one.
    pages = list(range(len(owners) + (_SPARE_PAGES if case.kv_len else 0)))
    last = pages[-1:]
    pages = pages[:-1]
    random.Random(case.name).shuffle(pages)
    pages = last + pages
    page_of = dict(zip(owners, pages, strict=False))
    if case.shares_pages:
        # Whole pages of the first request are also the others' first pages.
        for b, entry in owners:
            if b and (0, entry) in page_of and (entry + 1) * size <= min(lengths[0], lengths[b]):
                page_of[b, entry] = page_of[0, entry]
    columns = -(-case.kv_len // size)
    stale = torch.tensor(_STALE, dtype=torch.int32)
    table = stale[(torch.arange(case.batch)[:, None] + torch.arange(columns)) % len(_STALE)]
    device = dense[0].device
    caches = tuple(x.new_zeros(len(pages), size, x.shape[1], x.shape[3]) for x in dense)
    rows = torch.zeros(len(pages), size, dtype=torch.bool, device=device)
    for b, (used, length, first) in enumerate(zip(entries, lengths, first_seen, strict=True)):
        if not used:
            continue
        own = torch.tensor([page_of[b, entry] for entry in used], dtype=torch.int32)
        table[b, used.start : used.stop] = own
        tokens = torch.arange(used.start * size, length)
        places = (own.long()[tokens // size - used.start] * size + tokens % size).to(device)
        for cache, x in zip(caches, dense, strict=True):
            cache.view(-1, *cache.shape[2:])[places] = x[b, :, used.start * size : length].transpose(0, 1)
        rows.view(-1)[places[first - used.start * size :]] = True
    table = table.to(device)
    return PagedCache(caches, table, rows, entries)


def _first_seen(case: Case, lengths: tuple[int, ...]) -> list[int]:
    """The first key of each request that a query of it sees; its length where it has no query.

    Pages left of it may have been freed, and hold what a later owner wrote.
    """
    queries = (1,) * case.batch if case.qo_lens is None else case.qo_lens
    found = []
    for length, rows in zip(lengths, queries, strict=True):
        first = 0 if case.reach is None else max(0, length - rows - case.reach)
        found.append(min(first, length) if rows else length)
    return found


def as_read(case: Case, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense keys and values as the requests find them in the pages: the reference's inputs.

    Tokens in freed pages are 0; no query sees them.
    """
    cache = lay_out(case, k, v)
    assert case.seq_lens is not None
    seen = cache.table.clone()
    for b, used in enumerate(cache.entries):
        seen[b, : used.start] = 0
    lengths = torch.tensor(case.seq_lens, dtype=torch.int32)
    dense_k, dense_v = (gather(pages, seen, lengths, k.shape[2]) for pages in cache.tensors)
    return dense_k, dense_v
