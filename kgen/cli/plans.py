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
    from kgen.plan.model import ModulePlan


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


def _rows(plan: ModulePlan) -> list[dict[str, int | str]]:
    """The launch table: the numbers of a tile by name, and the shared memory that the target has."""
    from dataclasses import asdict

    from kgen.plan.targets import TARGET_INFO

    return [
        {"target": target, **asdict(tile), "shared_limit": TARGET_INFO[target].shared_bytes}
        for target, tile in plan.launch
    ]


def _as_json(plan: ModulePlan) -> dict[str, object]:
    return {
        "spec": plan.spec_name,
        "path": plan.spec_path,
        "kernel": plan.kernel,
        "reasons": [{"choice": choice, "why": why} for choice, why in plan.reasons],
        "launch": _rows(plan),
    }


def _print(plan: ModulePlan) -> None:
    output.line(f"{plan.spec_name}.{plan.kernel}, from {plan.spec_path}")
    output.table(("CHOICE", "WHY"), plan.reasons)
    output.line("")
    rows = _rows(plan)
    output.table(
        [name.upper() for name in rows[0]],
        [[f"{value:,}" if isinstance(value, int) else value for value in row.values()] for row in rows],
    )
