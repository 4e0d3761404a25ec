"""One call of a generated kernel in hostile memory, and what came of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kgen.verify import interpreter
from kgen.verify.poison import LAYOUTS, Arena, PoisonedEmpty

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
    q, k, v = inputs
    decode = case.seq_lens is not None
    on_cpu = q.device.type == "cpu"
    layout = LAYOUTS[case.layout]
    arena = Arena(poison, interpreter.Audit() if on_cpu else None)
    arguments: dict[str, Any] = {"return_lse": True}
    lengths = None
    if case.seq_lens is not None:
        lengths = torch.tensor(case.seq_lens, dtype=torch.int32, device=q.device)
        arguments["seq_lens"] = arena.input("seq_lens", lengths, "b")
        arguments |= {"num_splits": case.num_splits} if case.num_splits is not None else {}
        arguments |= {"max_seq_len": case.max_seq_len} if case.max_seq_len is not None else {}
    # Decode has one query token and no axis for it.
    axes, queries = ("bhd", q[:, :, 0]) if decode else ("bhnd", q)
    tensors = (
        arena.input("q", queries, axes, layout.q),
        arena.input("k", k, "bhnd", layout.k, lengths),
        arena.input("v", v, "bhnd", layout.v, lengths),
    )
    if layout.out is not None:
        shape = (*queries.shape[:-1], v.shape[-1])
        arguments["out"] = arena.output("out", shape, axes, layout.out, q.dtype, q.device)
    module.__dict__["_INTERPRET_TARGET"] = case.target
    try:
        with interpreter.interpreting(arena.audit, sample=sample) if on_cpu else nullcontext(), PoisonedEmpty(arena):
            out, lse = module.attention(*tensors, **arguments)
        if not on_cpu:
            torch.cuda.synchronize(q.device)
    except Exception as error:  # whatever a kernel raises is a finding about that kernel
        return Outcome(None, None, None, (f"raised {type(error).__name__}: {error}",))
    problems = arena.problems()
    if layout.out is not None and out.data_ptr() != arguments["out"].data_ptr():
        problems.append("attention did not return the out it was given")
    rows = None
    if arena.audit is not None:
        rows, complaints = _written_rows(arena.audit, out, lse, partial=sample is not None)
        problems += complaints
    out, lse, rows = (x.unsqueeze(2) if decode and x is not None else x for x in (out.clone(), lse.clone(), rows))
    return Outcome(out, lse, rows, tuple(problems))


def _written_rows(
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
