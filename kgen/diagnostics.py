"""What is wrong with a spec, and where.

A ``Problem`` points into the parsed document by its path of keys; the loader
turns it into a ``Diagnostic``, which points into the file.

Codes: KG0xx the file and its YAML, KG1xx one field, KG2xx fields that do not
fit together, KG3xx a feature kgen does not generate yet, KG4xx a kernel that no
plan fits on a target.
"""

from __future__ import annotations

from dataclasses import dataclass

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """A fault found in a spec, at ``loc`` (path of keys and indices from the root)."""

    code: str
    loc: Loc
    message: str
    help: str | None = None


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
        lines = [head]
        if self.source_line.strip():
            # Tabs are kept so that the caret stays under its column.
            indent = "".join("\t" if c == "\t" else " " for c in self.source_line[: self.column - 1])
            lines.append(f"    {self.source_line}")
            lines.append(f"    {indent}{'^' * max(1, self.length)}")
        if self.help:
            lines.append(f"    help: {self.help}")
        return "\n".join(lines)

    def github(self) -> str:
        """The workflow command that annotates the line in a GitHub review."""
        message = self.message + (f" ({self.help})" if self.help else "")
        escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        return f"::error file={self.path},line={self.line},col={self.column},title={self.code}::{escaped}"
