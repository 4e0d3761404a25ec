"""One case of a kernel that merges: its numbers, the reference's answer, and calls in hostile memory."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from kgen.reference.merge import merge_states
from kgen.spec.model import MergeStatesKernel
from kgen.spec.views import merged_width
from kgen.verify import interpreter
from kgen.verify.call import Outcome, written_rows
from kgen.verify.compare import DTYPES, EPS32, limits
from kgen.verify.merge_cases import LAYOUTS
from kgen.verify.poison import Arena, PoisonedEmpty, same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kgen.spec.model import SpecFile
    from kgen.verify.compare import Expected
    from kgen.verify.merge_cases import MergeCase
    from kgen.verify.poison import Placement, Poison

_PROGRAMS = 8  # that the interpreter runs of a case, a few ms each
_REPEATS = 20  # on a GPU
_SWAP = str.maketrans("hn", "nh")
_TOKENS_FIRST = ("bshd", "ragged")


@dataclass(frozen=True)
class Parts:
    """``out[P, B, H, M, D]`` in the spec's dtype and ``lse[P, B, H, M]`` float32; ``layout`` is the kernel's."""

    out: torch.Tensor
    lse: torch.Tensor
    layout: str


def make(spec: SpecFile, kernel: str, case: MergeCase, device: torch.device) -> Parts:
    """The parts of a case, the same on every run; requests of an expanded part hold the same numbers."""
    plan = spec.kernels[kernel]
    assert isinstance(plan, MergeStatesKernel)
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{spec.name} {case.name}".encode()))
    rows = (case.parts, case.batch, spec.attention.num_qo_heads, case.tokens)
    out = torch.randn(*rows, merged_width(spec.attention, plan), generator=generator, device=device)
    lse = 2 * torch.randn(rows, generator=generator, device=device)
    out, lse = VALUES[case.values](out, lse, torch.finfo(DTYPES[spec.dtype]).tiny)
    if case.layout == "expanded" and case.batch:
        first = slice(None) if case.given == "stack" else slice(1)
        out[first], lse[first] = out[first, :1], lse[first, :1]
    return Parts(out.to(DTYPES[spec.dtype]), lse, plan.layout)


_Values = tuple[torch.Tensor, torch.Tensor]


def _numbers(lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of each row, and of each part, to broadcast over ``lse``."""
    rows = torch.arange(lse[0].numel(), device=lse.device).reshape(lse.shape[1:])
    return rows, torch.arange(len(lse), device=lse.device).reshape(-1, *[1] * rows.dim())


def _empty(out: torch.Tensor, lse: torch.Tensor, _: float) -> _Values:
    # Every third row lacks keys in a part, another in each; every seventh lacks them in all.
    row, part = _numbers(lse)
    return out, lse.masked_fill(((row + part) % 3 == 0) | (row % 7 == 3), -torch.inf)


def _late(out: torch.Tensor, lse: torch.Tensor, _: float) -> _Values:
    lse = 0.5 * lse - 2e4
    lse[0] = -torch.inf
    return out, lse


def _huge(out: torch.Tensor, lse: torch.Tensor, _: float) -> _Values:
    row, part = _numbers(lse)
    return out, torch.where((row + part) % 2 == 0, 2.5e5, -2.5e5)


def _dominant(out: torch.Tensor, lse: torch.Tensor, _: float) -> _Values:
    row, part = _numbers(lse)
    return out, lse + 40.0 * ((row + part) % len(lse) == 0)


def _denormal(out: torch.Tensor, lse: torch.Tensor, tiny: float) -> _Values:
    return out * (tiny / 8), lse


VALUES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], _Values]] = {
    "normal": lambda out, lse, _: (out, lse),
    "empty": _empty,
    "late": _late,
    "nothing": lambda out, lse, _: (out, torch.full_like(lse, -torch.inf)),
    "below": lambda out, lse, _: (out, lse - 2e4),
    "huge": _huge,
    "dominant": _dominant,
    "equal": lambda out, lse, _: (out, torch.full_like(lse, 3.25)),
    "fp16_range": lambda out, lse, _: (6e4 * out.sign(), lse),
    "denormal": _denormal,
}


def expect(spec: SpecFile, parts: Parts) -> Expected:
    """The reference's answer as ``out[B, H, M, D]`` and ``lse[B, H, M]``, and the limits that follow from it.

    The plain computation beside it is PyTorch's in float32, with the weights of a softmax over the parts.
    """
    out, lse = merge_states(parts.out, parts.lse)
    weights = torch.softmax(parts.lse, 0).nan_to_num(0.0)
    held = torch.where(parts.lse[..., None] == -torch.inf, 0.0, parts.out.float())
    plain = (weights[..., None] * held).sum(0).to(parts.out.dtype)
    sizes = torch.where(lse.isfinite(), lse.abs(), 0.0)
    return limits(
        (out, lse),
        (plain, torch.logsumexp(parts.lse, 0)),
        unit=torch.finfo(DTYPES[spec.dtype]).eps / 2,
        jitter=8 * EPS32,
        lse_size=float(sizes.max()) if sizes.numel() else 0.0,
    )


def run(module: ModuleType, case: MergeCase, parts: Parts, poison: Poison) -> Outcome:
    """Call ``module.merge_states`` as the case says, with ``poison`` in all other memory.

    Poison is also what the outputs hold of rows that have no key in a part.
    """
    on_cpu = parts.out.device.type == "cpu"
    arena = Arena(poison, interpreter.Audit() if on_cpu else None)
    outs, lses, out, others = _placed(case, parts, arena)
    before = [other.clone() for other in others]
    sample = None if case.every_program else interpreter.Sample(_PROGRAMS, seed=case.parts)
    arguments = {} if out is None else {"out": handed(parts.layout, out)}
    module.__dict__["_INTERPRET_TARGET"] = case.target
    try:
        with interpreter.interpreting(arena.audit, sample=sample) if on_cpu else nullcontext(), PoisonedEmpty(arena):
            merged, lse = module.merge_states(outs, lses, return_lse=True, **arguments)
        if not on_cpu:
            torch.cuda.synchronize(parts.out.device)
    except Exception as error:  # whatever a kernel raises is a finding about that kernel
        return Outcome(None, None, None, (f"raised {type(error).__name__}: {error}",))
    problems = arena.problems()
    if not all(map(same_bits, before, others)):
        problems.append("a part was written that is not out")
    if out is not None and merged.data_ptr() != out.data_ptr():
        problems.append("merge_states did not return the out it was given")
    merged, lse = _read_back(parts.layout, merged, lse)
    rows = None
    if arena.audit is not None:
        rows, complaints = written_rows(arena.audit, merged, lse, partial=sample is not None)
        problems += complaints
    return Outcome(merged.clone(), lse.clone(), rows, tuple(problems))


def _placed(
    case: MergeCase, parts: Parts, arena: Arena
) -> tuple[object, object, torch.Tensor | None, tuple[torch.Tensor, ...]]:
    """outs and lses as the call takes them, its ``out`` with axes ``bhnd``, and parts in memory that may be written."""
    layout = LAYOUTS[case.layout]
    values = parts.out.clone()
    empty = parts.lse == -torch.inf
    if empty.any():
        filling = values.new_empty(int(empty.sum()), values.shape[-1])
        arena.poison.fill(filling)
        values[empty] = filling
    device, dtype = values.device, values.dtype

    def ordered(placement: Placement) -> Placement:
        """Outputs lie in memory as the kernel's layout has their axes, where the placement says nothing else."""
        # A sparse axis stays the slowest: inside another it would take gigabytes for each index of that.
        if parts.layout not in _TOKENS_FIRST or placement.sparse:
            return placement
        return replace(placement, order=placement.order.translate(_SWAP))

    def result(name: str, shape: torch.Size, axes: str, placement: Placement) -> torch.Tensor:
        return arena.output(name, tuple(shape), axes, ordered(placement), dtype, device)

    out = None if layout.out is None else result("out", values.shape[1:], "bhnd", layout.out)
    others: tuple[torch.Tensor, ...] = ()
    if case.given == "pair":
        places = (layout.x, layout.y)
        pair = [arena.input(n, v, "bhnd", ordered(p)) for n, v, p in zip("xy", values, places, strict=True)]
        if case.in_place is not None:
            pair[case.in_place] = out = result("out", values.shape[1:], "bhnd", places[case.in_place])
            out.copy_(values[case.in_place])
        outs: object = tuple(handed(parts.layout, part) for part in pair)
    elif case.in_place is not None:
        stack = result("outs", values.shape, "pbhnd", layout.x)
        stack.copy_(values)
        out = stack[case.in_place]
        others = tuple(part for number, part in enumerate(stack) if number != case.in_place)
        outs = handed(parts.layout, stack)
    else:
        outs = handed(parts.layout, arena.input("outs", values, "pbhnd", ordered(layout.x)))
    if case.given == "stack":
        lses: object = handed_lse(parts.layout, arena.input("lses", parts.lse, "pbhn", layout.x_lse))
    else:
        places = (layout.x_lse, layout.y_lse)
        views = [arena.input(f"{n} lse", v, "bhn", p) for n, v, p in zip("xy", parts.lse, places, strict=True)]
        lses = tuple(handed_lse(parts.layout, view) for view in views)
    return outs, lses, out, others


def handed(layout: str, out: torch.Tensor) -> torch.Tensor:
    """``out[.., B, H, M, D]`` with the axes of the kernel's layout; the same memory."""
    if layout == "bhd":
        return out.select(-2, 0)
    if layout == "ragged":
        out = out.select(-4, 0)
    return out.transpose(-3, -2) if layout in _TOKENS_FIRST else out


def handed_lse(layout: str, lse: torch.Tensor) -> torch.Tensor:
    """``lse[.., B, H, M]`` with the axes of the kernel's layout; the same memory."""
    if layout == "bhd":
        return lse.select(-1, 0)
    return lse.select(-3, 0) if layout == "ragged" else lse


def _read_back(layout: str, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse: ``out[B, H, M, D]`` and ``lse[B, H, M]``."""
    if layout == "bhd":
        return out.unsqueeze(-2), lse.unsqueeze(-1)
    out = out.transpose(-3, -2) if layout in _TOKENS_FIRST else out
    return (out[None], lse[None]) if layout == "ragged" else (out, lse)


def replays(module: ModuleType, case: MergeCase, parts: Parts, first: Outcome) -> list[str]:
    """Run a case on a GPU again and again, and from a graph with other numbers; what differs."""
    if parts.out.numel() == 0 or case.layout != "dense" or case.in_place is not None or first.out is None:
        return []
    outs = handed(parts.layout, parts.out).contiguous()
    lses = handed_lse(parts.layout, parts.lse).contiguous()
    given: tuple[object, object] = (outs, lses) if case.given == "stack" else (tuple(outs), tuple(lses))
    once = module.merge_states(*given, return_lse=True)
    problems = []
    for name, got, want in zip(("out", "lse"), _read_back(parts.layout, *once), (first.out, first.lse), strict=True):
        if want is not None and not same_bits(got, want):
            problems.append(f"{name} differs between two buffers of the same numbers")
    for _ in range(_REPEATS):
        again = module.merge_states(*given, return_lse=True)
        if not all(map(same_bits, once, again)):
            problems.append("a repeated call gives other bits")
            break
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        module.merge_states(*given, return_lse=True)  # compiles outside the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module.merge_states(*given, return_lse=True)
    outs.copy_(outs.roll(1, 0).clone())
    lses.copy_(lses.roll(1, 1).clone())
    graph.replay()
    if not all(map(same_bits, captured, module.merge_states(*given, return_lse=True))):
        problems.append("a CUDA graph replayed with other numbers gives other bits than a call")
    return problems
