"""Hostile memory: tensors that lie inside larger, poisoned buffers.

Every byte a kernel has no right to depend on holds poison: the rest of the
buffer around a view, key and value rows past ``seq_lens``, and whatever
``torch.empty`` returns while the kernel runs. After the call everything around
the outputs must be as it was, and the outputs must not depend on the poison.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from kgen.verify.far import FarMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgen.verify.interpreter import Audit

# Elements before and after every tensor: keeps 16-byte alignment in every dtype.
GUARD = 64


@dataclass(frozen=True)
class Poison:
    """What undefined memory holds: the numbers in turn, by row of a matrix or by run of 61 elements."""

    name: str
    numbers: tuple[float, ...]

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill a tensor of any dtype; numbers a dtype cannot hold become its extreme."""
        rows = tensor.shape[-2] if tensor.dim() >= 2 else -(-tensor.numel() // 61)
        numbers = torch.tensor(self.numbers, dtype=torch.float64)
        if not tensor.is_floating_point():
            most = 1 if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max
            numbers = numbers.nan_to_num(most, most).clamp(0, most).to(tensor.dtype)
        else:
            finite = numbers.isfinite()
            limit = torch.finfo(tensor.dtype).max
            numbers = torch.where(finite, numbers.clamp(-limit, limit), numbers).to(tensor.dtype)
        # Repeated and copied as integers: a NaN gets other bits where PyTorch converts or copies many floats at once.
        integers = _INTEGERS[tensor.dtype.itemsize]
        numbers = numbers.view(integers)[torch.arange(rows) % len(self.numbers)].to(tensor.device)
        tensor = tensor.view(integers)
        if tensor.dim() >= 2:
            tensor.copy_(numbers[:, None].expand(tensor.shape))
        else:
            tensor.copy_(numbers.repeat_interleave(61)[: tensor.numel()].reshape(tensor.shape))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

CLEAN = Poison("clean", (0.25,))
NAN, INF, HUGE = Poison("nan", (torch.nan,)), Poison("inf", (torch.inf,)), Poison("1e30", (1e30,))
# One run that holds all three, for where a run is slow; `phase` says which comes first.
_CYCLE = (torch.nan, torch.inf, 1e30)


def mixed(phase: int) -> Poison:
    """NaN, inf and 1e30 side by side."""
    phase %= len(_CYCLE)
    return Poison(f"mixed from {_CYCLE[phase]:g}", _CYCLE[phase:] + _CYCLE[:phase])


@dataclass(frozen=True)
class Placement:
    """How a tensor of axes such as ``bhnd`` lies in its buffer.

    ``order`` names the axes from the slowest to the fastest in memory, ``pad``
    adds elements behind an axis, ``offset`` moves the start, ``shared`` axes have
    stride 0 (all their indices hold the same numbers), and the last index of a
    ``sparse`` axis lies 2**31 elements or more behind the first.
    """

    order: str = "bhnd"
    pad: Mapping[str, int] = field(default_factory=dict)
    offset: int = 0
    shared: str = ""
    sparse: str = ""

    def strides(self, axes: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Strides of ``axes``, and the elements the tensor spans with its padding."""
        size = dict(zip(axes, shape, strict=True))
        stride: dict[str, int] = {}
        extent = 1
        for axis in reversed([a for a in self.order if a in axes]):
            if axis in self.shared:
                stride[axis] = 0
                continue
            if axis in self.sparse:
                # Odd, so that the kernel counts single elements.
                extent = max(extent, -(-(2**31) // max(1, size[axis] - 1)) | 1)
            stride[axis] = extent
            extent *= max(1, size[axis] + self.pad.get(axis, 0))
        return tuple(stride[a] for a in axes), extent


DENSE = Placement()


def tokens_first(placement: Placement) -> Placement:
    """The same idea for tensors whose tokens come before their heads; a slice of a projection stays one."""
    swapped = {"bhnd": "bnhd", "bnhd": "bhnd"}
    return (
        placement if "h" in placement.pad else replace(placement, order=swapped.get(placement.order, placement.order))
    )


@dataclass(frozen=True)
class Layout:
    """Where the tensors of one call lie; ``out=None`` leaves the output to the kernel."""

    name: str
    reason: str
    q: Placement = DENSE
    k: Placement = DENSE
    v: Placement = DENSE
    out: Placement | None = None


_ODD = Placement(pad={"d": 3, "n": 1}, offset=1)
_MOVED = Placement(offset=1)
_HEADS_LAST = Placement(order="bnhd")
_ROWS = Placement("nbhd", sparse="n")
_HEADS = Placement("hbnd", sparse="h")
_BATCH = Placement("bhnd", sparse="b")

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("dense", "contiguous tensors"),
        Layout("odd", "offsets and strides of no alignment", _ODD, _ODD, _ODD, _ODD),
        Layout("offset", "aligned strides behind an unaligned start", _MOVED, _MOVED, _MOVED, _MOVED),
        Layout("k_strided", "K strided and V not", k=Placement(pad={"d": 8, "n": 5})),
        Layout("v_transposed", "V a transposed view of [B, N, H, D], K not; out of the caller's own layout",
               v=_HEADS_LAST, out=_HEADS_LAST),
        Layout("fused", "q, k and v are slices of one wide projection", Placement("bnhd", {"h": 4}, 128),
               Placement("bnhd", {"h": 6}, 64), Placement("bnhd", {"h": 6}, 192)),
        Layout("expanded", "K and V are expanded over batch and heads (stride 0)", k=Placement(shared="bh"),
               v=Placement(shared="bh")),
        Layout("sparse_rows", "row * stride passes 2**31", _ROWS, _ROWS, _ROWS, _ROWS),
        Layout("sparse_heads", "head * stride passes 2**31", _HEADS, _HEADS, _HEADS, _HEADS),
        Layout("sparse_batch", "batch * stride passes 2**31", _BATCH, _BATCH, _BATCH, _BATCH),
    )
}  # fmt: skip


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers: NaN equals itself, and no copy of floats gives it others."""
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bits."""
    return torch.equal(_bits(a), _bits(b))


@dataclass(frozen=True)
class _Block:
    """A buffer, what it must hold after the call, and which of its elements may change."""

    name: str
    buffer: torch.Tensor
    expected: torch.Tensor
    may_change: torch.Tensor | None

    def is_intact(self) -> bool:
        now = self.buffer if self.may_change is None else torch.where(self.may_change, self.expected, self.buffer)
        return same_bits(now, self.expected)


class Arena:
    """The memory of one call: inputs and outputs in poisoned buffers, scratch too.

    On the CPU ``audit`` also tells the interpreter which addresses are whose.
    """

    def __init__(self, poison: Poison, audit: Audit | None) -> None:
        self.poison = poison
        self.audit = audit
        self._far = FarMemory()
        self._blocks: list[_Block] = []

    def input(
        self,
        name: str,
        values: torch.Tensor,
        axes: str,
        placement: Placement = DENSE,
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``values`` in a buffer of their own; with ``lengths[B]`` rows from there on hold poison."""
        view, buffer = self._view(values.shape, axes, placement, values.dtype, values.device)
        stored = view
        for axis in placement.shared:  # every index is the same memory: store the first, which the values agree on
            dim = axes.index(axis)
            stored, values = (
                stored.narrow(dim, 0, min(1, stored.shape[dim])),
                values.narrow(dim, 0, min(1, values.shape[dim])),
            )
        stored.copy_(values)
        if lengths is not None and lengths.numel():
            ends = [int(lengths.max())] * stored.shape[0] if "b" in placement.shared else lengths.tolist()
            for b, end in enumerate(ends[: stored.shape[0]]):
                self.poison.fill(stored[b, :, end:])
        self._keep(name, view, buffer)
        return view

    def _keep(self, name: str, view: torch.Tensor, buffer: torch.Tensor | None) -> None:
        """Note that a whole input may be read, and must not be written."""
        if self.audit is not None:
            self.audit.readable(view)
        if buffer is not None:
            self._blocks.append(_Block(name, buffer, buffer.clone(), None))

    def pages(self, name: str, values: torch.Tensor, placement: Placement, rows: torch.Tensor) -> torch.Tensor:
        """A cache ``[pages, page_size, H, D]``; rows that ``rows[pages, page_size]`` leaves out hold poison.

        The axes are those of a dense cache, pages in the place of requests; tokens lie before heads unless the
        placement says otherwise.
        """
        if placement.order == DENSE.order:
            placement = replace(placement, order="bnhd")
        elif placement.order == "bnhd":
            placement = replace(placement, order="bhnd")
        view, buffer = self._view(values.shape, "bnhd", placement, values.dtype, values.device)
        view.copy_(values)
        undefined = torch.nonzero(~rows)
        if undefined.numel():
            filling = values.new_empty(len(undefined), values[0, 0].numel())
            self.poison.fill(filling)
            view[undefined[:, 0], undefined[:, 1]] = filling.reshape(-1, *values.shape[2:])
        self._keep(name, view, buffer)
        return view

    def table(self, name: str, values: torch.Tensor, placement: Placement, entries: Sequence[range]) -> torch.Tensor:
        """A block table ``[B, max_pages]``, of which only ``entries`` of each request may be read."""
        wide = Placement("bn", {"n": placement.pad.get("n", 0) + placement.pad.get("d", 0)}, placement.offset)
        view, buffer = self._view(values.shape, "bn", wide, values.dtype, values.device)
        assert buffer is not None  # a table is not sparse
        view.copy_(values)
        if self.audit is not None:
            self.audit.readable(*(view[b, used.start : used.stop] for b, used in enumerate(entries)))
        self._blocks.append(_Block(name, buffer, buffer.clone(), None))
        return view

    def output(
        self,
        name: str,
        shape: tuple[int, ...],
        axes: str,
        placement: Placement,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        """An output that holds poison, inside guards."""
        view, buffer = self._view(shape, axes, placement, dtype, device)
        self.poison.fill(view)
        self._guard(name, view, buffer)
        return view

    def scratch(self, like: torch.Tensor) -> torch.Tensor:
        """Poisoned memory inside guards, with the shape, strides and dtype of ``like``."""
        extent = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
        buffer = torch.empty(extent + 2 * GUARD, dtype=like.dtype, device=like.device)
        self.poison.fill(buffer)
        view = buffer.as_strided(like.shape, like.stride(), GUARD)
        self._guard("memory of torch.empty", view, buffer)
        return view

    def problems(self) -> list[str]:
        """What changed that must not change."""
        return [
            f"{block.name}: " + ("an input was written" if block.may_change is None else "memory around it was written")
            for block in self._blocks
            if not block.is_intact()
        ]

    def _guard(self, name: str, view: torch.Tensor, buffer: torch.Tensor | None) -> None:
        if self.audit is not None:
            self.audit.writable(view)
        if buffer is not None:
            may_change = torch.zeros(buffer.shape, dtype=torch.bool, device=buffer.device)
            may_change.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
            self._blocks.append(_Block(name, buffer, buffer.clone(), may_change))

    def _view(
        self, shape: tuple[int, ...], axes: str, placement: Placement, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A tensor and its buffer; ``None`` where it shares memory with others that are far apart."""
        strides, extent = placement.strides(axes, shape)
        if placement.sparse:
            return self._far.view(shape, strides, dtype, device), None
        buffer = torch.empty(extent + placement.offset + 2 * GUARD, dtype=dtype, device=device)
        self.poison.fill(buffer)
        return buffer.as_strided(shape, strides, GUARD + placement.offset), buffer


class PoisonedEmpty(TorchFunctionMode):
    """Inside the block every uninitialised tensor comes from the arena."""

    _FUNCTIONS = frozenset(
        {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided}
    )

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self._FUNCTIONS and result.numel():
            return self._arena.scratch(result)
        return result
