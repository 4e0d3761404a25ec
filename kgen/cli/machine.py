"""``inspect``: what the kernels compile to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.generate import FormatOption, Specs, find_specs
from kgen.cli.guard import guarded
from kgen.cli.output import Format

if TYPE_CHECKING:
    from kgen.inspect import Inspection, Row


@guarded
def inspect(
    specs: Specs = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Only this target; may be repeated.", show_default=False)
    ] = None,
    format: FormatOption = Format.TEXT,
) -> int:
    """Compile the kernels without a GPU and read the machine code.

    Prints registers, spills, shared memory beside the plan's estimate, and the kinds of instructions. Ends with
    exit code 1 if a kernel does not compile, spills more than its plan allows (on rows that start on 16 bytes), or
    takes more shared memory than the plan says.
    """
    from kgen.inspect import inspect as run
    from kgen.workspace import load

    found = run(load(find_specs(specs)), tuple(target or ()))
    problems = [*found.failures, *(problem for row in found.rows for problem in _problems(row))]
    if format is Format.JSON:
        output.data(
            {
                "triton": found.triton_version,
                "rows": [row.as_dict() for row in found.rows],
                "problems": problems,
            }
        )
    else:
        _print_inspection(found)
        for problem in problems:
            output.line(problem)
    return 1 if problems else 0


def _problems(row: Row) -> Iterator[str]:
    place = f"{row.module} {row.kernel} {row.target}"
    if row.spill_limit is not None and row.spill_bytes > row.spill_limit:
        yield f"{place}: spills {row.spill_bytes} bytes of registers, the plan allows {row.spill_limit}"
    if row.shared_bytes > row.shared_limit:
        yield f"{place}: takes {row.shared_bytes:,} bytes of shared memory, the target has {row.shared_limit:,}"
    if row.shared_bytes > row.shared_estimate:
        yield f"{place}: takes {row.shared_bytes:,} bytes of shared memory, the plan says {row.shared_estimate:,}"


def _print_inspection(found: Inspection) -> None:
    header = (
        *("MODULE", "KERNEL", "TARGET", "SERVES", "LAUNCH", "REGISTERS", "SPILLS"),
        *("SHARED / ESTIMATE / LIMIT", "INSTRUCTIONS"),
    )
    rows = [
        (
            row.module,
            row.kernel,
            row.target,
            ", ".join(row.calls),
            row.launch,
            str(row.registers),
            str(row.spill_bytes),
            f"{row.shared_bytes:,} / {row.shared_estimate:,} / {row.shared_limit:,}",
            ", ".join(f"{number} {name}" for name, number in row.instructions),
        )
        for row in found.rows
    ]
    output.line(f"triton {found.triton_version}")
    output.table(header, rows)
