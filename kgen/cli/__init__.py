"""The command line. What a verb needs is imported when it runs: ``kgen --help`` stays quick."""

from __future__ import annotations

import contextlib
import io
import sys

from kgen.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """The console script: run ``app`` with streams that take any character, and end with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal in LANG=C shows an escape in place of what it cannot write.
            with contextlib.suppress(ValueError):
                stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="kgen")
    except KeyboardInterrupt:
        sys.exit(130)
