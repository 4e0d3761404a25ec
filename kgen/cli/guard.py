"""From what a command's body returns or raises to an exit code and a message.

0 clean, 1 a finding, 2 the user's input, 3 kgen's own fault, 4 the environment
lacks what the verb needs; 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import typer

from kgen.cli import output
from kgen.errors import KgenError, MissingDependencyError, SpecError

P = ParamSpec("P")

TRACEBACK = "KGEN_TRACEBACK"


def guarded(body: Callable[P, int]) -> Callable[P, None]:
    """A Typer command from a body that returns its exit code."""

    @functools.wraps(body)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(_run(lambda: body(*args, **kwargs), str(kwargs.get("format", "text"))))

    return command


def _run(body: Callable[[], int], format: str) -> int:
    try:
        code = body()
        output.flush()
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        output.abandon_stdout()
        return 141
    except SpecError as error:
        _print_diagnostics(error, format)
        return error.exit_code
    except KgenError as error:
        output.error(str(error))
        return error.exit_code
    except Exception as error:
        return _unexpected(error)
    return code


def _unexpected(error: Exception) -> int:
    """The exit code of what no part of kgen raises on purpose."""
    missing = MissingDependencyError.of(error) if isinstance(error, ImportError) else None
    if missing is not None:
        output.error(str(missing))
        return missing.exit_code
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    place = traceback.extract_tb(error.__traceback__)[-1]
    output.error(
        f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
        f" ({Path(place.filename).name}:{place.lineno}); set {TRACEBACK}=1 for the traceback"
    )
    return 3


def _print_diagnostics(error: SpecError, format: str) -> None:
    """Text on stderr always; on stdout what the asked format is for."""
    for diagnostic in error.diagnostics:
        output.note(diagnostic.text())
    count = len(error.diagnostics)
    output.error(f"{count} error{'s' if count != 1 else ''} in {len({d.path for d in error.diagnostics})} file(s)")
    if format == "github":
        for diagnostic in error.diagnostics:
            output.line(diagnostic.github())
    elif format == "json":
        rows = [
            {"path": d.path, "line": d.line, "column": d.column, "code": d.code, "message": d.message, "help": d.help}
            for d in error.diagnostics
        ]
        output.line(json.dumps({"errors": rows}, indent=2))
    output.flush()
