"""How the tokens of a batch lie in a tensor: each kind says its shape, and gives a request's rows as ``[H, n, D]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Storage(Protocol):
    """Where the rows of requests lie."""

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """The shape of a tensor with ``heads`` heads of ``width``."""

    def rows(self, tensor: torch.Tensor, request: int) -> torch.Tensor:
        """The rows of one request, ``[H, n, D]``; a view where the storage allows one."""


@dataclass(frozen=True)
class HeadsFirst:
    """``[B, H, capacity, D]``."""

    lengths: tuple[int, ...]
    capacity: int

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """As in ``Storage``."""
        return (len(self.lengths), heads, self.capacity, width)

    def rows(self, tensor: torch.Tensor, request: int) -> torch.Tensor:
        """As in ``Storage``."""
        return tensor[request, :, : self.lengths[request]]


@dataclass(frozen=True)
class TokensFirst:
    """``[B, capacity, H, D]``."""

    lengths: tuple[int, ...]
    capacity: int

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """As in ``Storage``."""
        return (len(self.lengths), self.capacity, heads, width)

    def rows(self, tensor: torch.Tensor, request: int) -> torch.Tensor:
        """As in ``Storage``."""
        return tensor[request, : self.lengths[request]].transpose(0, 1)


@dataclass(frozen=True)
class Packed:
    """``[T, H, D]``: the tokens of all requests in one axis."""

    lengths: tuple[int, ...]

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """As in ``Storage``."""
        return (sum(self.lengths), heads, width)

    def rows(self, tensor: torch.Tensor, request: int) -> torch.Tensor:
        """As in ``Storage``."""
        start = sum(self.lengths[:request])
        return tensor[start : start + self.lengths[request]].transpose(0, 1)


@dataclass(frozen=True)
class Single:
    """``[B, H, D]``: one token a request, and no axis for it."""

    batch: int

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """As in ``Storage``."""
        return (self.batch, heads, width)

    def rows(self, tensor: torch.Tensor, request: int) -> torch.Tensor:
        """As in ``Storage``."""
        return tensor[request].unsqueeze(1)


@dataclass(frozen=True)
class Pages:
    """``[pages, page_size, H, D]``, found through ``table[B, max_pages]``: pages in a shuffled order."""

    lengths: tuple[int, ...]
    page_size: int
    table: torch.Tensor

    @property
    def counts(self) -> tuple[int, ...]:
        """Pages of each request."""
        return tuple(-(-length // self.page_size) for length in self.lengths)

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """As in ``Storage``."""
        return (sum(self.counts), self.page_size, heads, width)

    def rows(self, tensor: torch.Tensor, request: int) -> torch.Tensor:
        """As in ``Storage``; a copy."""
        pages = self.table[request, : self.counts[request]].long()
        return tensor[pages].flatten(0, 1)[: self.lengths[request]].transpose(0, 1)


def pages(lengths: tuple[int, ...], page_size: int, device: torch.device) -> Pages:
    """Pages for ``lengths``, none shared, dealt out in a random order that is always the same.

    Entries behind a request's last page are 0, as in the tables of servers.
    """
    counts = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    start = 0
    for request, count in enumerate(counts):
        table[request, :count] = order[start : start + count]
        start += count
    return Pages(lengths, page_size, table.to(device))
