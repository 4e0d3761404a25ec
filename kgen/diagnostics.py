"""What is wrong with a spec, and where.

A ``Problem`` points into the parsed document by its path of keys; the loader
turns it into a ``Diagnostic``, which points into the file.

Codes: KG0xx the file and its YAML, KG1xx one field, KG2xx fields that do not
fit together, KG3xx a feature kgen does not generate yet, KG4xx a kernel that no
plan fits on a target, KG5xx a config.json that cannot become a spec.

A spec may come from a stranger, so whatever a diagnostic prints is made
printable first: no terminal escape, line break or bidirectional control of the
file reaches the terminal or the log of a CI run.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

Loc = tuple[str | int, ...]

MAX_LINE_SHOWN = 120  # characters of a source line that a diagnostic shows
_BEFORE_CARET = 60  # characters kept before the caret when a line is clipped


def printable(text: str) -> str:
    """``text`` with every character that is not printable written as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, limit: int = 48) -> str:
    """``text`` made printable and cut to about ``limit`` characters."""
    return printable(text) if len(text) <= limit else f"{printable(text[: limit - 1])}…"


def joined(words: list[str] | tuple[str, ...], last: str = "or") -> str:
    """``a, b or c``."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


@dataclass(frozen=True)
class Problem:
    """A fault found in a spec, at ``loc`` (path of keys and indices from the root).

    A ``loc`` that is not written in the file (a default, a missing field) is shown
    at the nearest parent that is. ``at`` says whether the key or the value is wrong.
    """

    code: str
    loc: Loc
    message: str
    help: str | None = None
    at: Literal["key", "value"] = "value"


@dataclass(frozen=True)
class Diagnostic:
    """A problem with its place in the file (``line`` and ``column`` count from 1)."""

    code: str
    path: str
    line: int
    column: int
    length: int
    message: str
    source_line: str
    help: str | None = None

    def text(self) -> str:
        """``file:line:col: error[KGnnn]: message``, the line, a caret and the help."""
        head = f"{self.path}:{self.line}:{self.column}: error[{self.code}]: {self.message}"
        lines = [printable(head)]
        if self.source_line.strip():
            source, column = self._window()
            # Tabs are kept, and wide characters count double, so that the caret stays under its column.
            indent = "".join(_blank(c) for c in source[: column - 1])
            length = max(1, min(self.length, len(source) - column + 1))
            carets = sum(_width(c) for c in source[column - 1 : column - 1 + length])
            lines.append(f"    {source}")
            lines.append(f"    {indent}{'^' * max(1, carets)}")
        if self.help:
            lines.append(f"    help: {printable(self.help)}")
        return "\n".join(lines)

    def github(self) -> str:
        """The workflow command that annotates the line in a GitHub review."""
        message = self.message + (f" ({self.help})" if self.help else "")
        path = _escaped(printable(self.path)).replace(":", "%3A").replace(",", "%2C")
        place = f"file={path},line={self.line},col={self.column},title={self.code}"
        return f"::error {place}::{_escaped(printable(message))}"

    def _window(self) -> tuple[str, int]:
        """The source line, safe to print and cut around the caret, and the caret's column in it."""
        line = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in self.source_line)
        if len(line) <= MAX_LINE_SHOWN:
            return line, self.column
        start = max(0, min(self.column - 1 - _BEFORE_CARET, len(line) - MAX_LINE_SHOWN))
        end = start + MAX_LINE_SHOWN
        left, right = "…" if start else "", "…" if end < len(line) else ""
        return f"{left}{line[start:end]}{right}", self.column - start + len(left)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _width(char: str) -> int:
    """Columns a terminal gives ``char``."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _blank(char: str) -> str:
    return "\t" if char == "\t" else " " * _width(char)
