"""Printing: data to stdout, messages to stderr; colour and frames on a terminal alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from kgen.errors import InputError


class Format(StrEnum):
    """For people, or for a program."""

    TEXT = "text"
    JSON = "json"


class ReviewFormat(StrEnum):
    """As ``Format``, or as annotations of a GitHub workflow."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """A full disk behind stdout is told; a reader that went away (``BrokenPipeError``) is the caller's to end on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as failure:
        raise InputError(f"cannot write the output: {failure.strerror}") from failure


def line(text: str) -> None:
    """One line of data, or several."""
    with _writing():
        print(text)


def data(value: object) -> None:
    """One JSON document."""
    line(json.dumps(value, indent=2))


def note(text: str) -> None:
    """A message for people."""
    print(text, file=sys.stderr)


def error(text: str) -> None:
    """Why the command ends without what was asked."""
    note(f"kgen: error: {text}")


def warning(text: str) -> None:
    """What went on all the same, and should be known."""
    note(f"kgen: warning: {text}")


def annotation(level: str, title: str, message: str, path: str | None = None) -> None:
    """A workflow command of GitHub; ``level`` is error, warning or notice."""
    place = f"file={_escaped(path)}," if path is not None else ""
    line(f"::{level} {place}title={_escaped(title)}::{_escaped(message, keep=':,')}")


def _escaped(text: str, keep: str = "") -> str:
    for char in "%\r\n:,":
        if char not in keep:
            text = text.replace(char, f"%{ord(char):02X}")
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under a header: a Rich table on a terminal, aligned plain columns elsewhere."""
    if _is_terminal():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        framed = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for title in header:
            framed.add_column(Text(title), overflow="fold")
        for row in rows:
            framed.add_row(*(Text(cell) for cell in row))
        with _writing():
            Console(highlight=False).print(framed)
        return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def diff(text: str) -> None:
    """A unified diff, coloured on a terminal."""
    if not text:
        return
    if not _is_terminal():
        line(text.removesuffix("\n"))
        return
    from rich.console import Console
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    console = Console(highlight=False, soft_wrap=True)
    with _writing():
        for one in text.removesuffix("\n").split("\n"):
            console.print(Text(one, style=styles.get(one[:1], "")))


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Tell on stderr how far long work is; the yielded function takes what is worked on, cases done and all cases.

    A bar on a terminal; elsewhere a line when another thing is begun, so that a log stays short.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        seen: set[str] = set()

        def tell(what: str, done: int, total: int) -> None:
            if what not in seen:
                seen.add(what)
                note(f"{title} {what} (case {done} of {total})")

        yield tell
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, total: bar.update(task, description=f"{title} {what}", completed=done, total=total)


def flush() -> None:
    """Write out stdout now, so that a reader that went away is noticed here and not at exit."""
    if sys.stdout is not None:
        with _writing():
            sys.stdout.flush()


def abandon_stdout() -> None:
    """Let what is still buffered go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
