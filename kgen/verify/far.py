"""Memory for tensors whose indices lie 2**31 elements apart: gigabytes, which the tensors of one call share.

A tensor takes a few rows at one end, a few at the other, and perhaps some between. The next one lies beside them.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import torch

# Linux's flag, which Python's mmap does not name in every version: no swap space is set aside.
_MAP_NORESERVE = 0x4000
# Elements behind the end of a buffer's first tensor, for the ends of others.
_SPARE = 1 << 25
# Tensors begin at multiples of this, one such step behind others: 16-byte alignment in every dtype, and room in which a
# kernel that leaves its tensor meets nothing.
_STEP = 1 << 15

_Pieces = list[tuple[int, int]]


@dataclass
class _Buffer:
    memory: torch.Tensor
    taken: _Pieces = field(default_factory=list)

    def room(self, pieces: _Pieces) -> int | None:
        """The first offset at which ``pieces`` meet nothing that is taken; ``None`` is no room."""
        ends = {(stop // _STEP + 2) * _STEP for _, stop in self.taken if stop < _SPARE}
        for offset in sorted({0, *ends}):
            moved = [(start + offset, stop + offset) for start, stop in pieces]
            if moved[-1][1] > self.memory.numel():
                return None
            if not any(a < stop and start < b for a, b in moved for start, stop in self.taken):
                return offset
        return None


class FarMemory:
    """The buffers of one call: zeros, each as large as its first tensor needs."""

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []

    def view(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor of these strides in memory of its own, between the pieces of others."""
        if 0 in shape:
            return torch.zeros(1, dtype=dtype, device=device).as_strided(shape, strides)
        step = max(strides)
        count = shape[strides.index(step)]
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) - (count - 1) * step
        pieces = [(index * step, index * step + extent) for index in range(count)]
        buffer, offset = self._place(pieces, dtype, device)
        buffer.taken += [(start + offset, stop + offset) for start, stop in pieces]
        return buffer.memory.as_strided(shape, strides, offset)

    def _place(self, pieces: _Pieces, dtype: torch.dtype, device: torch.device) -> tuple[_Buffer, int]:
        for buffer in self._buffers:
            offset = buffer.room(pieces) if buffer.memory.dtype == dtype else None
            if offset is not None:
                return buffer, offset
        self._buffers.append(_Buffer(_zeros(pieces[-1][1] + _SPARE, dtype, device)))
        return self._buffers[-1], 0


def _zeros(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros of which only the touched pages take memory (on a GPU all of it does)."""
    if device.type != "cpu":
        return torch.zeros(elements, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)
