"""The one harness for Triton's interpreter: where it differs from a GPU, it is corrected here.

* ``tl.dot`` of bfloat16 multiplies the raw 16-bit patterns, and a cast from
  float32 to bfloat16 truncates (seen in Triton 3.6.0 and 3.9.0).
* A masked-off lane without ``other`` reads as 0; a GPU may give anything. Here
  it reads as NaN (the largest number, for integers).
* Any address may be read or written; an ``Audit`` says which tensors a kernel may
  touch, and keeps a record of what was stored.

It can also count loads, and run a sample of a large grid.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kgen.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    _Array = np.ndarray[Any, Any]

_ENV = "TRITON_INTERPRET"


def require() -> None:
    """Make sure that kernels decorated from now on run in the interpreter.

    Triton reads the environment when a function is decorated, its own library
    functions' at import, so the switch must be set before the first import.

    Raises ``MissingDependencyError`` where Triton is not installed or was
    imported without the switch.
    """
    if "triton" not in sys.modules:
        os.environ[_ENV] = "1"
    try:
        import triton.language as tl
    except ImportError as error:
        raise MissingDependencyError(
            f"Triton's interpreter is needed, and triton cannot be imported: {error}"
        ) from error
    if os.environ.get(_ENV) != "1" or type(tl.max).__name__ != "InterpretedFunction":
        raise MissingDependencyError(
            f"triton was imported before its interpreter was switched on: set {_ENV}=1 earlier"
        )


def bfloat16_to_float32(bits: _Array) -> _Array:
    """Raw bfloat16 patterns (uint16) as the float32 numbers they are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: _Array) -> _Array:
    """float32 rounded to the nearest bfloat16, ties to even, as raw patterns (uint16)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # A NaN would round into the exponent; write the quiet one.
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


class ForeignAccessError(AssertionError):
    """A kernel read or wrote an address that none of its tensors owns."""


@dataclass(frozen=True)
class Span:
    """The bytes from a tensor's first to its last element: ``[start, stop)``."""

    start: int
    stop: int

    @staticmethod
    def of(tensor: torch.Tensor) -> Span:
        """The span of a tensor; strides are not negative in PyTorch."""
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
        return Span(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())

    def holds(self, low: int, high: int) -> bool:
        """Whether ``[low, high)`` lies inside."""
        return self.start <= low and high <= self.stop


class Audit:
    """The tensors a kernel may read, those it may also write, and what it wrote."""

    def __init__(self) -> None:
        self._readable: list[Span] = []
        self._writable: list[Span] = []
        self._stores: list[_Array] = []

    def readable(self, *tensors: torch.Tensor) -> None:
        """Kernels may read anything between the first and the last element of these."""
        self._readable += map(Span.of, tensors)

    def writable(self, *tensors: torch.Tensor) -> None:
        """Kernels may read and write anything between the first and the last element of these."""
        self._writable += map(Span.of, tensors)

    def written(self, tensor: torch.Tensor) -> torch.Tensor:
        """Which elements of a tensor were stored to: a boolean tensor of its shape."""
        import torch

        addresses = np.full(tensor.shape, tensor.data_ptr(), dtype=np.uint64)
        for dim, stride in enumerate(tensor.stride()):
            shape = [1] * tensor.dim()
            shape[dim] = -1
            steps = np.arange(tensor.shape[dim], dtype=np.uint64) * np.uint64(stride * tensor.element_size())
            addresses += steps.reshape(shape)
        stored = np.unique(np.concatenate([*self._stores, np.empty(0, dtype=np.uint64)]))
        return torch.from_numpy(np.isin(addresses, stored))

    def check(self, addresses: _Array, size: int, *, store: bool) -> None:
        """Look up the addresses of one load or store of elements of ``size`` bytes.

        Raises ``ForeignAccessError`` when no tensor holds all of them.
        """
        if addresses.size == 0:
            return
        low, high = int(addresses.min()), int(addresses.max()) + size
        if not any(span.holds(low, high) for span in (self._writable if store else self._readable + self._writable)):
            verb = "written" if store else "read"
            raise ForeignAccessError(f"bytes {low:#x} to {high:#x} were {verb}; no tensor of the call holds them")
        if store:
            self._stores.append(addresses.ravel())


@dataclass(eq=False)
class LoadCount:
    """What was loaded from one tensor: calls of ``tl.load``, and bytes of unmasked lanes."""

    span: Span
    loads: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Sample:
    """Run at most ``programs`` of each grid: the first, the last and others drawn by ``seed``."""

    programs: int
    seed: int

    def choose(self, total: int) -> frozenset[int]:
        """The linear numbers of the programs to run."""
        if total <= self.programs:
            return frozenset(range(total))
        drawn = random.Random(self.seed).sample(range(1, total - 1), max(0, self.programs - 2))
        return frozenset({0, total - 1, *drawn})


class Harness:
    """What is observed while the harness is on."""

    def __init__(self, audit: Audit | None) -> None:
        self.audit = audit
        self.counts: list[LoadCount] = []

    def count(self, tensor: torch.Tensor) -> LoadCount:
        """Count the loads from ``tensor`` from now on."""
        self.counts.append(LoadCount(Span.of(tensor)))
        return self.counts[-1]

    def loaded(self, addresses: _Array, size: int) -> None:
        """A load of unmasked ``addresses``, elements of ``size`` bytes."""
        if self.audit is not None:
            self.audit.check(addresses, size, store=False)
        for count in self.counts:
            hits = int(np.count_nonzero((addresses >= count.span.start) & (addresses < count.span.stop)))
            count.loads += hits > 0
            count.bytes += hits * size

    def stored(self, addresses: _Array, size: int) -> None:
        """A store to unmasked ``addresses``, elements of ``size`` bytes."""
        if self.audit is not None:
            self.audit.check(addresses, size, store=True)


@contextmanager
def interpreting(audit: Audit | None = None, *, sample: Sample | None = None) -> Iterator[Harness]:
    """Correct the interpreter for the kernels launched inside the block.

    ``audit`` limits what they may touch. ``sample`` skips programs, so the
    outputs are partly unwritten (``Audit.written`` tells).

    An access outside the audit ends the launch with Triton's ``InterpreterError``.
    """
    require()
    from triton.runtime import interpreter

    harness = Harness(audit)
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    patches = [(builder, name, new) for name, new in _builder_methods(interpreter, harness).items()]
    if sample is not None:
        patches.append((executor, "__init__", _sampling(executor.__init__, sample, interpreter.interpreter_builder)))
    # Triton's check of 32-bit arithmetic nearly doubles the time of a program; an address
    # that wrapped around lies outside the audit.
    options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patches.append((interpreter.interpreter_builder, "options", options))
    language = _Language(interpreter)
    patches.append((interpreter, "_patch_lang", language.patch))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, new in patches:
            setattr(owner, name, new)
        # Infinities and overflow to them are part of the softmax; a GPU does not warn either.
        with np.errstate(all="ignore"):
            yield harness
    finally:
        language.restore()
        for owner, name, old in before:
            setattr(owner, name, old)


def _builder_methods(interpreter: Any, harness: Harness) -> dict[str, Callable[..., Any]]:
    """The corrected methods of ``InterpreterBuilder``, by name."""
    import triton.language as tl

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast_impl, load, store = builder.cast_impl, builder.create_masked_load, builder.create_masked_store
    dot = builder.create_dot

    def as_float32(operand: Any) -> Any:
        # Exact for both types; numpy has no fast product of float16.
        if operand.dtype.scalar == tl.bfloat16:
            return handle(bfloat16_to_float32(operand.data), tl.float32)
        if operand.dtype.scalar == tl.float16:
            return handle(operand.data.astype(np.float32), tl.float32)
        return operand

    def create_dot(self: Any, a: Any, b: Any, d: Any, *args: Any) -> Any:
        return dot(self, as_float32(a), as_float32(b), d, *args)

    def corrected_cast(self: Any, src: Any, dst_type: Any) -> Any:
        types = (src.dtype.scalar, dst_type.scalar)
        if types == (tl.float32, tl.bfloat16):
            return handle(float32_to_bfloat16(src.data), tl.bfloat16)
        if types == (tl.bfloat16, tl.float32):
            return handle(bfloat16_to_float32(src.data), tl.float32)
        return cast_impl(self, src, dst_type)

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        element = ptrs.get_element_ty()
        live = ptrs.data[mask.data]
        harness.loaded(live, element.primitive_bitwidth // 8)
        if other is None and live.size < ptrs.data.size:
            garbage = np.full(ptrs.data.shape, *_garbage(element, interpreter._get_np_dtype(element)))
            other = handle(garbage, element)
        return load(self, ptrs, mask, other, *args, **kwargs)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
        harness.stored(ptrs.data[mask.data], ptrs.get_element_ty().primitive_bitwidth // 8)
        return store(self, ptrs, value, mask, *args)

    return {
        "create_dot": create_dot,
        "cast_impl": corrected_cast,
        "create_masked_load": create_masked_load,
        "create_masked_store": create_masked_store,
    }


def _garbage(element: Any, dtype: np.dtype[Any]) -> tuple[Any, np.dtype[Any]]:
    """The most harmful content of a masked-off lane, and the numpy type that holds it."""
    if dtype.kind == "f":
        return np.nan, dtype
    if element.is_floating():  # stored as raw bits: all ones is NaN
        return np.iinfo(dtype).max, dtype
    return (True if dtype.kind == "b" else np.iinfo(dtype).max), dtype


class _Language:
    """Triton's replacement of ``triton.language`` by interpreted functions, made once.

    Triton makes it anew for each launch and each call of a device function,
    which takes half of the time of a small program.
    """

    def __init__(self, interpreter: Any) -> None:
        self._original = interpreter._patch_lang
        self._nothing = interpreter._LangPatchScope()
        self._functions: set[Any] = set()
        self._scopes: dict[frozenset[str], Any] = {}

    def patch(self, fn: Any) -> Any:
        """Patch the modules of the language that ``fn`` sees; the scope returned restores nothing."""
        if fn in self._functions:
            return self._nothing
        self._functions.add(fn)
        seen = frozenset(
            value.__name__
            for value in fn.__globals__.values()
            if inspect.ismodule(value) and value.__name__.startswith("triton.language")
        )
        if seen not in self._scopes:
            self._scopes[seen] = self._original(fn)
        return self._nothing

    def restore(self) -> None:
        """Undo all of it, the last first."""
        for scope in reversed(self._scopes.values()):
            scope.restore()


class _SampledKernel:
    """The function of a kernel that returns at once for programs outside a sample.

    Triton's executor inspects the function it calls, so this one carries the
    original's name, globals, annotations and signature.
    """

    def __init__(self, fn: Any, sample: Sample, builder: Any) -> None:
        self._fn, self._sample, self._builder = fn, sample, builder
        self._chosen: frozenset[int] | None = None
        self.__name__, self.__globals__, self.__annotations__ = fn.__name__, fn.__globals__, fn.__annotations__
        self.__signature__ = inspect.signature(fn)

    def __call__(self, **kwargs: Any) -> None:
        (x, y, z), (_, height, depth) = self._builder.grid_idx, self._builder.grid_dim
        if self._chosen is None:
            self._chosen = self._sample.choose(int(np.prod(self._builder.grid_dim)))
        if (x * height + y) * depth + z in self._chosen:
            self._fn(**kwargs)


def _sampling(init: Callable[..., None], sample: Sample, builder: Any) -> Callable[..., None]:
    """``GridExecutor.__init__`` that samples the kernel it is given."""

    def sampled_init(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        init(self, fn, *args, **kwargs)
        self.fn = _SampledKernel(self.fn, sample, builder)

    return sampled_init
