"""``verify``: generated kernels against the reference."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.generate import Out, ReviewFormatOption, Specs, find_specs
from kgen.cli.guard import guarded
from kgen.cli.output import ReviewFormat
from kgen.errors import StaleError

if TYPE_CHECKING:
    from kgen.verify.run import Result


class Device(StrEnum):
    """Where the kernels run: in Triton's interpreter, or on the GPU."""

    CPU = "cpu"
    CUDA = "cuda"


@guarded
def verify(
    specs: Specs = None,
    out: Out = None,
    device: Annotated[
        Device,
        typer.Option("--device", help="cpu: small cases in Triton's interpreter; cuda: on the GPU, full shapes too."),
    ] = Device.CPU,
    format: ReviewFormatOption = ReviewFormat.TEXT,
) -> int:
    """Run the generated kernels against the reference.

    In clean and in poisoned memory, on cases that follow from the spec. Ends with exit code 1 on a mismatch.
    """
    from kgen.verify.run import unrun_forms
    from kgen.verify.run import verify as run
    from kgen.workspace import load

    workspace = find_specs(specs, out)
    loaded = load(workspace)
    with output.progress("verifying") as advance:

        def told(result: Result, done: int, total: int) -> None:
            advance(f"{result.spec}.{result.kernel}", done, total)

        try:
            results = run(loaded, workspace.out, device=device, progress=told)
        except StaleError as error:
            raise StaleError(f"{error}\nrun: kgen build {workspace.arguments_text}") from error
    if (left := unrun_forms(loaded, device)) and format is ReviewFormat.TEXT:
        output.note(f"not run here, for they need a Hopper GPU (--device cuda): {', '.join(left)}")
    failed = [result for result in results if not result.passed]
    if format is ReviewFormat.JSON:
        output.data([_result_as_json(result) for result in results])
    elif format is ReviewFormat.GITHUB:
        for result in failed:
            path = workspace.shown(f"{result.spec}/{result.kernel}.py")
            output.annotation("error", "wrong result", f"{result.case.name}: {result.message}", path)
    else:
        _print_results(results)
        for result in failed:
            output.line(
                f"FAILED {result.spec}.{result.kernel} {result.case.name} ({result.case.shape}): {result.message}"
            )
        seconds = sum(result.seconds for result in results)
        output.line(f"{len(results) - len(failed)} of {len(results)} cases passed on {device} in {seconds:.0f} s")
    return 1 if failed else 0


def _print_results(results: tuple[Result, ...]) -> None:
    """A row a kernel: its cases, and the worst of each error beside its limit."""
    from kgen.verify.run import table_rows

    rows = [
        (
            f"{row.spec}.{row.kernel}",
            f"{row.passed}/{row.cases}",
            f"{row.worst.max_error:.1e} / {row.worst.max_limit:.1e}",
            f"{row.worst_lse.lse_error:.1e} / {row.worst_lse.lse_limit:.1e}",
            "kept" if row.poison_ok else "CHANGED",
            row.worst.case.name,
            f"{row.seconds:.1f}",
        )
        for row in table_rows(results)
    ]
    output.table(
        ("KERNEL", "PASSED", "OUT ERROR / LIMIT", "LSE ERROR / LIMIT", "POISON", "WORST CASE", "SECONDS"), rows
    )


def _result_as_json(result: Result) -> dict[str, object]:
    """Plain data; JSON has no NaN and no infinity, so these come as words."""
    from dataclasses import asdict

    values = {**asdict(result), "passed": result.passed}
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
