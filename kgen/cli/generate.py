"""``init``, ``build``, ``check``, ``diff`` and ``list``: specs and the files generated from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.guard import guarded
from kgen.cli.output import Format, ReviewFormat
from kgen.errors import InputError

if TYPE_CHECKING:
    from kgen.sync import Drift
    from kgen.workspace import Workspace

Specs = Annotated[
    list[Path] | None, typer.Argument(help="Spec files, or folders of them; default specs/.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The output folder; default generated/ beside the specs folder.")
]
ReviewFormatOption = Annotated[ReviewFormat, typer.Option("--format", help="How to print what was found.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]


@guarded
def init(
    name: Annotated[str, typer.Argument(help="Name of the spec, and of the package generated from it.")] = "my_model",
    specs: Annotated[Path, typer.Option("--specs", help="The folder to write to.")] = Path("specs"),
) -> int:
    """Write a commented first spec."""
    from kgen.cli.starter import write_starter

    path = write_starter(specs, name)
    output.line(f"wrote {path.as_posix()}")
    output.note(f"edit it, then: kgen build {path.as_posix()}")
    return 0


@guarded
def build(specs: Specs = None, out: Out = None) -> int:
    """Generate the source of every kernel.

    Writes what differs, and removes what no spec asks for any more: only when a whole specs folder is given,
    and only files that kgen wrote.
    """
    from kgen import sync

    workspace, wanted = _project(specs, out)
    applied = sync.apply(wanted, workspace.out, workspace.owner)
    for drift in applied.written:
        if drift.edited:
            output.warning(f"{workspace.shown(drift.path)} was edited by hand and is generated again: {drift.detail}")
        output.line(f"wrote {workspace.shown(drift.path)}")
    for drift in applied.pruned:
        if drift.edited:
            output.warning(f"{workspace.shown(drift.path)} was edited by hand and is removed: {drift.detail}")
        output.line(f"removed {workspace.shown(drift.path)}")
    for drift in applied.foreign:
        output.note(f"foreign: {workspace.shown(drift.path)}: {drift.detail}")
    counts = [f"{len(applied.written)} written", f"{applied.unchanged} unchanged", f"{len(applied.pruned)} removed"]
    output.line(f"{_count(len(workspace.sources), 'spec')}, {_count(len(wanted), 'file')}: {', '.join(counts)}")
    return 0


@guarded
def check(specs: Specs = None, out: Out = None, format: ReviewFormatOption = ReviewFormat.TEXT) -> int:
    """Fail if generated files are not as generated.

    Prints how each differs (changed, missing, orphaned, hand-edited), the diff, and the command that fixes it.
    """
    workspace, wanted, drifts = _compared(specs, out)
    failing = [drift for drift in drifts if drift.fails]
    fix = _fix(failing, workspace)
    if format is ReviewFormat.JSON:
        output.data({"clean": not failing, "fix": fix if failing else None, "drifts": _as_json(drifts, workspace)})
    elif format is ReviewFormat.GITHUB:
        _annotate(drifts, workspace, fix)
    else:
        for drift in drifts:
            output.line(f"{drift.kind}: {workspace.shown(drift.path)}: {drift.detail}")
            output.diff(_diff(drift, workspace))
        if failing:
            output.line(f"{_summary(failing)} of {_count(len(wanted), 'file')}; to fix: {fix}")
        else:
            specs_ = _count(len(workspace.sources), "spec")
            output.line(f"clean: {_count(len(wanted), 'file')} of {specs_} as generated")
    return 1 if failing else 0


@guarded
def diff(specs: Specs = None, out: Out = None, format: ReviewFormatOption = ReviewFormat.TEXT) -> int:
    """Print what build would change, as a patch.

    Ends with exit code 1 if it would change anything.
    """
    workspace, _, drifts = _compared(specs, out)
    failing = [drift for drift in drifts if drift.fails]
    if format is ReviewFormat.JSON:
        output.data(_as_json(failing, workspace))
    elif format is ReviewFormat.GITHUB:
        _annotate(failing, workspace, _fix(failing, workspace))
    else:
        for drift in failing:
            patch = _diff(drift, workspace)
            output.diff(patch)
            if not patch:
                output.note(f"{drift.kind}: {workspace.shown(drift.path)}: {drift.detail}")
    return 1 if failing else 0


@guarded
def list_(specs: Specs = None, out: Out = None, format: FormatOption = Format.TEXT) -> int:
    """List specs, kernels, files and their state."""
    workspace, wanted, drifts = _compared(specs, out)
    state = {drift.path: str(drift.kind) for drift in drifts}
    rows = []
    for path in sorted({*wanted, *state}):
        package, _, file = path.partition("/")
        kernel = file.removesuffix(".py") if path in wanted and file != "__init__.py" else ""
        rows.append((package, kernel, workspace.shown(path), state.get(path, "ok")))
    if format is Format.JSON:
        output.data([dict(zip(("spec", "kernel", "file", "state"), row, strict=True)) for row in rows])
    else:
        output.table(("SPEC", "KERNEL", "FILE", "STATE"), rows)
    return 0


def _project(specs: list[Path] | None, out: Path | None) -> tuple[Workspace, dict[str, str]]:
    """The workspace that the arguments name, and everything that it generates."""
    from kgen.cache import RenderCache
    from kgen.workspace import rendered

    workspace = find_specs(specs, out)
    return workspace, rendered(workspace, RenderCache.open())


def find_specs(specs: list[Path] | None, out: Path | None = None) -> Workspace:
    """The workspace of a verb's arguments; ``specs/`` where it has none."""
    from kgen.workspace import find

    return find(named_or_all(specs), out)


def named_or_all(specs: list[Path] | None) -> list[Path]:
    """The paths of a verb's arguments; ``specs/`` where it has none."""
    if not specs and not Path("specs").is_dir():
        raise InputError("there is no specs/ here: name spec files or their folder, or write a first one: kgen init")
    return specs or [Path("specs")]


def _compared(specs: list[Path] | None, out: Path | None) -> tuple[Workspace, dict[str, str], tuple[Drift, ...]]:
    from kgen import sync

    workspace, wanted = _project(specs, out)
    return workspace, wanted, sync.compare(wanted, workspace.out, workspace.owner)


def _diff(drift: Drift, workspace: Workspace) -> str:
    from kgen.sync import unified_diff

    return unified_diff(drift, workspace.shown(drift.path).lstrip("/"))


def _as_json(drifts: Sequence[Drift], workspace: Workspace) -> list[dict[str, object]]:
    return [
        {
            "file": workspace.shown(drift.path),
            "kind": str(drift.kind),
            "detail": drift.detail,
            "fails": drift.fails,
            "diff": _diff(drift, workspace),
        }
        for drift in drifts
    ]


def _fix(failing: Sequence[Drift], workspace: Workspace) -> str:
    """What to do about the drifts: build, once nothing is in the way."""
    blocking = [workspace.shown(drift.path) for drift in failing if drift.blocks]
    move = f"move {', '.join(blocking)} away, then " if blocking else ""
    return f"{move}kgen build {workspace.arguments_text}"


def _annotate(drifts: Sequence[Drift], workspace: Workspace, fix: str) -> None:
    for drift in drifts:
        level = "error" if drift.fails else "notice"
        message = f"{drift.detail}; to fix: {fix}" if drift.fails else drift.detail
        output.annotation(level, f"{drift.kind} generated file", message, workspace.shown(drift.path))


def _summary(drifts: Sequence[Drift]) -> str:
    kinds = Counter(str(drift.kind) for drift in drifts)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
