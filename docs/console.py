"""Runs the commands that pages of the documentation show, and refreshes what they print.

    python docs/console.py      # rewrites the pages; `make docs` does this

A block that starts with three backticks and ``console`` holds one command after ``$ `` and its output. The commands
of a page run in order, in one temporary folder that holds copies of docs/ and specs/. A page may run ``kgen``,
``cat`` and ``python`` with a script; all run in this process.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/tutorial/README.md", "docs/cost.md")

BLOCK = re.compile(r"^```console\n\$ (?P<command>.*)\n(?P<output>[^`]*)^```$", re.MULTILINE)


def refreshed(text: str) -> str:
    """The text of a page with the output that its commands print now, in the current folder."""

    def ran(block: re.Match[str]) -> str:
        printed = run(block["command"])
        if settled(block["output"]) == settled(printed):
            return block[0]
        return f"```console\n$ {block['command']}\n{printed}```"

    return BLOCK.sub(ran, text)


def settled(output: str) -> str:
    """The output without what may differ from run to run: of ``kgen verify`` the errors, worst cases and seconds."""
    output = re.sub(r"^(\S+ +\d+/\d+) .* (kept|CHANGED) .*$", r"\1 \2", output, flags=re.MULTILINE)
    output = re.sub(r"( cases passed on \S+) in \d+ s$", r"\1", output, flags=re.MULTILINE)
    return re.sub(r" +", " ", output)


def run(command: str) -> str:
    """What a command prints to stdout. Raises RuntimeError when it fails."""
    name, *arguments = shlex.split(command)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if name == "kgen":
            code = _kgen(arguments)
        elif name == "python":
            code = _python(arguments)
        elif name == "cat":
            code = _cat(arguments)
        else:
            raise RuntimeError(f"{command}: a page may run kgen, python and cat")
    if code:
        raise RuntimeError(f"{command}: ended with {code}:\n{printed.getvalue()}")
    return printed.getvalue()


def _kgen(arguments: list[str]) -> object:
    from typer.testing import CliRunner

    from kgen.cli import app

    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    print(result.stdout, end="")
    return f"{result.exit_code}\n{result.stderr}" if result.exit_code else 0


def _cat(arguments: list[str]) -> object:
    for file in arguments:
        print(Path(file).read_text(encoding="utf-8"), end="")
    return 0


def _python(arguments: list[str]) -> object:
    before = sys.argv
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before
    return 0


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A temporary folder with copies of docs/ and specs/, which is the current one inside the block."""
    with tempfile.TemporaryDirectory() as name:
        for folder in ("docs", "specs"):
            shutil.copytree(ROOT / folder, Path(name) / folder)
        before = Path.cwd()
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def main() -> None:
    """Refresh the pages."""
    from kgen.verify import interpreter

    interpreter.require()
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        with copied():
            new = refreshed(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
        print(f"{'refreshed' if new != text else 'unchanged'}: {page}")


if __name__ == "__main__":
    main()
