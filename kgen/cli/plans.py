"""``explain`` and ``schema``: what kgen decides, and what a spec may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.generate import FormatOption, Specs, find_specs
from kgen.cli.guard import guarded
from kgen.cli.output import Format
from kgen.errors import InputError

if TYPE_CHECKING:
    from kgen.plan.model import KernelPlan

_TILE = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "programs_per_sm", "shared_bytes")


@guarded
def explain(
    specs: Specs = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only the kernels of this name.")] = None,
    format: FormatOption = Format.TEXT,
) -> int:
    """Tell every choice of a plan, and why.

    With the launch table: tiles, warps, stages and the estimate of shared memory, a row a target.
    """
    from kgen.plan.lower import lower
    from kgen.workspace import load

    plans = [plan for loaded in load(find_specs(specs)) for plan in lower(loaded)]
    chosen = [plan for plan in plans if kernel is None or plan.kernel == kernel]
    if not chosen:
        names = ", ".join(sorted({plan.kernel for plan in plans}))
        raise InputError(f"--kernel {kernel}: no such kernel in these specs; they have {names}")
    if format is Format.JSON:
        output.data([_as_json(plan) for plan in chosen])
        return 0
    for number, plan in enumerate(chosen):
        if number:
            output.line("")
        _print(plan)
    return 0


@guarded
def schema() -> int:
    """Print the JSON Schema of a spec file."""
    from kgen.spec.schema import json_schema

    output.data(json_schema())
    return 0


def _rows(plan: KernelPlan) -> list[tuple[str, dict[str, int]]]:
    """The launch table: a target, and its numbers by name."""
    return [
        (
            target,
            {
                "BLOCK_M": tile.block_m,
                "BLOCK_N": tile.block_n,
                "num_warps": tile.num_warps,
                "num_stages": tile.num_stages,
                "programs_per_sm": tile.programs_per_sm,
                "shared_bytes": tile.shared_bytes,
            },
        )
        for target, tile in plan.launch
    ]


def _as_json(plan: KernelPlan) -> dict[str, object]:
    return {
        "spec": plan.spec_name,
        "path": plan.spec_path,
        "kernel": plan.kernel,
        "reasons": [{"choice": choice, "why": why} for choice, why in plan.reasons],
        "launch": dict(_rows(plan)),
    }


def _print(plan: KernelPlan) -> None:
    output.line(f"{plan.spec_name}.{plan.kernel}, from {plan.spec_path}")
    output.table(("CHOICE", "WHY"), plan.reasons)
    output.line("")
    rows = [(target, *(f"{numbers[name]:,}" for name in _TILE)) for target, numbers in _rows(plan)]
    output.table(("TARGET", *_TILE), rows)
