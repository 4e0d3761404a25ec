"""One call of a generated kernel in hostile memory, and what came of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kgen.verify import interpreter, layouts, pages
from kgen.verify.poison import DENSE, LAYOUTS, Arena, PoisonedEmpty, same_bits

if TYPE_CHECKING:
    from types import ModuleType

    from kgen.verify.cases import Case
    from kgen.verify.poison import Poison
    from kgen.verify.values import Inputs


@dataclass(frozen=True)
class Outcome:
    """Copies of ``out[B, Hq, M, Dv]`` and ``lse[B, Hq, M]``, and which rows were written.

    ``rows[B, Hq, M]`` is ``None`` where stores are not observed (on a GPU).
    ``problems`` lists what the call did to memory, or the error it raised; then
    the tensors are ``None``.
    """

    out: torch.Tensor | None
    lse: torch.Tensor | None
    rows: torch.Tensor | None
    problems: tuple[str, ...]


def run(
    module: ModuleType,
    case: Case,
    inputs: Inputs,
    poison: Poison,
    *,
    sample: interpreter.Sample | None = None,
) -> Outcome:
    """Call ``module.attention`` on ``inputs`` as the case says, with ``poison`` in all other memory.

    CPU tensors run in Triton's interpreter, ``sample`` of each grid at most.
    """
    on_cpu = inputs.q.device.type == "cpu"
    arena = Arena(poison, interpreter.Audit() if on_cpu else None)
    tensors, arguments = (_decode_arguments if case.is_decode else _prefill_arguments)(case, inputs, arena)
    module.__dict__["_INTERPRET_TARGET"] = case.target
    try:
        with interpreter.interpreting(arena.audit, sample=sample) if on_cpu else nullcontext(), PoisonedEmpty(arena):
            out, lse = module.attention(*tensors, **arguments)
        if not on_cpu:
            torch.cuda.synchronize(inputs.q.device)
    except Exception as error:  # whatever a kernel raises is a finding about that kernel
        return Outcome(None, None, None, (f"raised {type(error).__name__}: {error}",))
    problems = arena.problems()
    if "out" in arguments and out.data_ptr() != arguments["out"].data_ptr():
        problems.append("attention did not return the out it was given")
    if not case.is_decode:
        return _prefill_outcome(case, arena, out, lse, problems, partial=sample is not None)
    rows = None
    if arena.audit is not None:
        rows, complaints = written_rows(arena.audit, out, lse, partial=sample is not None)
        problems += complaints
    return Outcome(
        out.clone().unsqueeze(2), lse.clone().unsqueeze(2), None if rows is None else rows.unsqueeze(2), tuple(problems)
    )


def _decode_arguments(case: Case, inputs: Inputs, arena: Arena) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """The tensors and the keywords of a decode call: one query token, and no axis for it."""
    layout = LAYOUTS[case.layout]
    device = inputs.q.device
    lengths = torch.tensor(case.seq_lens, dtype=torch.int32, device=device)
    arguments: dict[str, Any] = {"return_lse": True, "seq_lens": arena.input("seq_lens", lengths, "b")}
    arguments |= {"num_splits": case.num_splits} if case.num_splits is not None else {}
    arguments |= {"max_seq_len": case.max_seq_len} if case.max_seq_len is not None else {}
    queries = [arena.input(name, x[:, :, 0], "bhd", layout.q) for name, x in inputs.queries.items()]
    if case.page_size is not None:
        caches, arguments["block_table"] = _paged(case, inputs, arena)
    elif inputs.is_absorbed and case.layout == "fused":
        fused = arena.input("cache", torch.cat(tuple(inputs.keys.values()), dim=-1), "bhnd", DENSE, lengths)
        caches = _slices(inputs, fused)
    else:
        placements = {"v": layout.v}
        caches = tuple(
            arena.input(name, x, "bhnd", placements.get(name, layout.k), lengths) for name, x in inputs.keys.items()
        )
    if inputs.is_absorbed:
        caches = tuple(cache.select(1 if case.page_size is None else 2, 0) for cache in caches)
    if layout.out is not None:
        shape = (*inputs.q.shape[:2], inputs.v.shape[-1])
        arguments["out"] = arena.output("out", shape, "bhd", layout.out, inputs.q.dtype, device)
    return (*queries, *caches), arguments


def _slices(inputs: Inputs, fused: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The keys of ``inputs`` as slices of one tensor."""
    return torch.split(fused, [x.shape[-1] for x in inputs.keys.values()], dim=-1)


def _paged(case: Case, inputs: Inputs, arena: Arena) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The caches of keys and of values, and the block table."""
    layout = LAYOUTS[case.layout]
    cache = pages.lay_out(case, *inputs.keys.values())
    table = arena.table("block_table", cache.table, layout.k, cache.entries)
    if inputs.is_absorbed and case.layout == "fused":
        fused = arena.pages("cache", torch.cat(cache.tensors, dim=-1), DENSE, cache.rows)
        return _slices(inputs, fused), table
    placements = {"v": layout.v}
    caches = [
        arena.pages(f"{name}_cache", x, placements.get(name, layout.k), cache.rows)
        for name, x in zip(inputs.keys, cache.tensors, strict=True)
    ]
    return tuple(caches), table


def _prefill_arguments(case: Case, inputs: Inputs, arena: Arena) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """q, k, v in the kernel's order of axes, and the keywords of a prefill call."""
    layout = LAYOUTS[case.layout]
    given = [(name, x, layout.q, case.qo_lens) for name, x in inputs.queries.items()]
    if case.page_size is None:
        places = {"v": layout.v}
        given += [(name, x, places.get(name, layout.k), case.seq_lens) for name, x in inputs.keys.items()]
    tensors = []
    for name, x, placement, rows in given:
        stored, ends = layouts.stacked(case, x, rows)
        view = arena.input(name, stored, "bhnd", layouts.placed(case, placement), ends)
        tensors.append(layouts.handed(case, view))
    device = inputs.q.device
    arguments: dict[str, Any] = {"return_lse": True}
    if case.page_size is not None:
        caches, arguments["block_table"] = _paged(case, inputs, arena)
        tensors += caches
    for name, values in layouts.index_arguments(case, device).items():
        arguments[name] = arena.input(name, values, "b")
    if case.tensors == "ragged":
        arguments["max_qo_len"] = case.q_len
    if layout.out is not None:
        stored, _ = layouts.stacked(case, inputs.q, case.qo_lens)
        shape = (*stored.shape[:-1], inputs.v.shape[-1])
        out = arena.output("out", shape, "bhnd", layouts.placed(case, layout.out), stored.dtype, device)
        arguments["out"] = layouts.handed(case, out)
    return tuple(tensors), arguments


def _prefill_outcome(
    case: Case, arena: Arena, out: torch.Tensor, lse: torch.Tensor, problems: list[str], *, partial: bool
) -> Outcome:
    """The results of a prefill call as ``out[B, Hq, M, Dv]`` and ``lse[B, Hq, M]``."""
    values = layouts.results(case, out.clone(), lse.clone())
    out = layouts.read_back(case, out)
    lengths = case.qo_lens if case.tensors == "ragged" else None
    if lengths is not None:
        end, lse = sum(lengths), lse[None]
        if any(_is_touched(arena, x[:, :, end:]) for x in (out, lse)):
            problems.append("rows past qo_indptr[-1] were written")
        out, lse = out[:, :, :end], lse[:, :, :end]
    rows = None
    if arena.audit is not None:
        rows, complaints = written_rows(arena.audit, out, lse, partial=partial)
        problems += complaints
        rows = rows if lengths is None else layouts.unpacked(rows, lengths, case.q_len, fill=False)
    return Outcome(*values, rows, tuple(problems))


def _is_touched(arena: Arena, x: torch.Tensor) -> bool:
    """Whether a part of an output that is nobody's was stored to; on a GPU its one kind of poison tells."""
    if arena.audit is not None:
        return bool(arena.audit.written(x).any())
    untouched = torch.empty_like(x, memory_format=torch.contiguous_format)
    arena.poison.fill(untouched)
    return not same_bits(x, untouched)


def written_rows(
    audit: interpreter.Audit, out: torch.Tensor, lse: torch.Tensor, *, partial: bool
) -> tuple[torch.Tensor, list[str]]:
    """The rows whose output was stored, and what is wrong with them."""
    elements, rows = audit.written(out), audit.written(lse)
    problems = []
    if not torch.equal(elements.all(-1), elements.any(-1)):
        problems.append("a row of out was written in part")
    if not torch.equal(elements.all(-1), rows):
        problems.append("rows of out and of lse were written that do not match")
    if not partial and not rows.all():
        problems.append(f"{int((~rows).sum())} of {rows.numel()} rows were not written")
    if rows.numel() and not rows.any():
        problems.append("nothing was written")
    return rows & elements.all(-1), problems
