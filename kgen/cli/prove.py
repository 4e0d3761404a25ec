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
    from kgen.verify.run import verify as run
    from kgen.workspace import load

    workspace = find_specs(specs, out)
    loaded = load(workspace)
    with output.progress("verifying") as advance:

        def told(result: Result, done: int, total: int) -> None:
            advance(f"{result.spec}.{result.kernel}", done, total)

        results = run(loaded, workspace.out, device=device, progress=told)
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
    kernels: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        kernels.setdefault((result.spec, result.kernel), []).append(result)
    rows = []
    for (spec, kernel), group in kernels.items():
        worst = max(group, key=lambda result: result.worst_ratio)
        lse = max(group, key=lambda result: result.lse_error / result.lse_limit)
        passed = sum(result.passed for result in group)
        rows.append(
            (
                f"{spec}.{kernel}",
                f"{passed}/{len(group)}",
                f"{worst.max_error:.1e} / {worst.max_limit:.1e}",
                f"{lse.lse_error:.1e} / {lse.lse_limit:.1e}",
                "kept" if all(result.poison_ok for result in group) else "CHANGED",
                worst.case.name,
                f"{sum(result.seconds for result in group):.1f}",
            )
        )
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
