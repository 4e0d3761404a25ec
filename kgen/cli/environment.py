"""``doctor`` and ``cache``: the machine kgen runs on."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from kgen.cli import output
from kgen.cli.generate import FormatOption
from kgen.cli.guard import guarded
from kgen.cli.output import Format
from kgen.errors import KgenError

if TYPE_CHECKING:
    from types import ModuleType

cache_app = typer.Typer(help="The cache of rendered output and of loaded packages.", no_args_is_help=True)


@dataclass(frozen=True)
class Finding:
    """One line of ``doctor``: ``problem`` is to be mended, ``note`` says what will not work."""

    subject: str
    state: Literal["ok", "note", "problem"]
    detail: str


@guarded
def doctor(format: FormatOption = Format.TEXT) -> int:
    """Tell what kgen finds on this machine.

    Python, torch, Triton, a GPU, the cache and the templates. Ends with exit code 1 on a problem.
    """
    findings = [_python(), *_libraries(), _interpreter(), _gpu(), _cache(), _templates()]
    if format is Format.JSON:
        output.data([{"subject": f.subject, "state": f.state, "detail": f.detail} for f in findings])
    else:
        output.table(("", "STATE", "DETAIL"), [(f.subject, f.state, f.detail) for f in findings])
    return 1 if any(f.state == "problem" for f in findings) else 0


@cache_app.command("info")
@guarded
def cache_info(format: FormatOption = Format.TEXT) -> int:
    """Print the folders of the cache, their entries and their sizes."""
    from kgen.store import STORES

    found = [store.info() for store in STORES]
    if format is Format.JSON:
        output.data(
            [
                {"name": f.name, "folder": str(f.folder), "entries": f.entries, "bytes": f.size, "problem": f.problem}
                for f in found
            ]
        )
    else:
        rows = [(f.name, str(f.entries), str(f.size), str(f.folder)) for f in found]
        output.table(("CACHE", "ENTRIES", "BYTES", "FOLDER"), rows)
        for f in found:
            if f.problem:
                output.line(f"not used: {f.folder}: {f.problem}")
    return 0


@cache_app.command("clear")
@guarded
def cache_clear() -> int:
    """Delete the entries of the cache."""
    from kgen.store import STORES

    output.line(f"removed {sum(store.clear() for store in STORES)} entries")
    return 0


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def version(name: str) -> str | None:
    """The installed release of a distribution, None where it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _libraries() -> list[Finding]:
    missing = {
        "torch": "verify and inspect need it",
        "triton": "verify and inspect need it",
        "numpy": "verify needs it",
    }
    found = {name: version(name) for name in missing}
    return [
        Finding(name, "ok" if release else "note", release or f"not installed; {missing[name]}")
        for name, release in found.items()
    ]


def _interpreter() -> Finding:
    """Triton 3.6's interpreter breaks on loops with runtime bounds under numpy 2.4 and later."""
    triton, numpy = version("triton"), version("numpy")
    subject = "triton's interpreter"
    if triton is None or numpy is None:
        return Finding(subject, "note", "cannot run without triton and numpy")
    if _release(triton) < (3, 7) and _release(numpy) >= (2, 4):
        return Finding(
            subject, "problem", f"triton {triton} fails with numpy {numpy}; install 'numpy<2.4' or triton>=3.7"
        )
    return Finding(subject, "ok", f"triton {triton} with numpy {numpy}")


def _release(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _gpu() -> Finding:
    if version("torch") is None:
        return Finding("gpu", "note", "unknown without torch")
    try:
        import torch

        if not torch.cuda.is_available():
            return Finding("gpu", "note", "none; verify runs in Triton's interpreter, on the CPU")
        return _known_gpu(torch)
    except Exception as error:  # a broken driver or library is what doctor is for
        return Finding("gpu", "problem", f"torch fails: {type(error).__name__}: {' '.join(str(error).split())}")


def _known_gpu(torch: ModuleType) -> Finding:
    from kgen.spec.model import TARGETS

    properties = torch.cuda.get_device_properties(0)
    target = str(getattr(properties, "gcnArchName", "")).split(":")[0] or f"sm_{properties.major}{properties.minor}"
    known = "a target of kgen" if target in TARGETS else f"not a target of kgen ({', '.join(TARGETS)})"
    return Finding("gpu", "ok" if target in TARGETS else "note", f"{properties.name}, {target}: {known}")


def _cache() -> Finding:
    from kgen.store import STORES

    found = [store.info() for store in STORES]
    problems = [f"{f.folder}: not used, {f.problem}" for f in found if f.problem]
    if problems:
        return Finding("cache", "note", "; ".join([*problems, "builds are slower, and the same"]))
    return Finding("cache", "ok", ", ".join(f"{f.folder}, {f.entries} entries" for f in found))


def _templates() -> Finding:
    from kgen.resources import templates_dir

    try:
        folder = templates_dir()
    except KgenError as error:
        return Finding("templates", "problem", str(error))
    count = len(list(folder.rglob("*.j2")))
    return Finding("templates", "ok" if count else "problem", f"{folder}, {count} files")
