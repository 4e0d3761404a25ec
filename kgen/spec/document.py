"""A parsed spec file: its data, and where in the file each key and value stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kgen.diagnostics import Diagnostic, Loc, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Span:
    """A stretch of one line; ``line`` and ``column`` count from 1."""

    line: int
    column: int
    length: int


@dataclass(frozen=True)
class Node:
    """Where a value stands, and its key if it has one.

    ``text`` is the scalar as written, ``None`` for a mapping or a list and ``""``
    for a value that is not there (``mask:``).
    """

    key: Span | None
    value: Span
    text: str | None

    def span(self, problem: Problem) -> Span:
        """What to underline: the value if it is written on one line, else the key."""
        if self.key is not None and (problem.at == "key" or not self.text):
            return self.key
        return self.value


@dataclass(frozen=True)
class Document:
    """A parsed file: ``data`` of plain dicts, lists and scalars, and ``nodes`` by path of keys.

    ``problems`` are the faults of the YAML itself, ``refused`` the paths of the
    values they concern (``None`` in the data); ``is_complete`` is false where
    reading stopped early.
    """

    display: str
    lines: tuple[str, ...]
    data: Any = None
    nodes: dict[Loc, Node] = field(default_factory=dict)
    problems: tuple[Diagnostic, ...] = ()
    refused: frozenset[Loc] = frozenset()
    is_complete: bool = True

    def diagnose(self, problems: Iterable[Problem]) -> tuple[Diagnostic, ...]:
        """The problems with their places, in file order."""
        found = [self._diagnostic(problem) for problem in problems]
        return tuple(sorted(found, key=lambda d: (d.line, d.column, d.code)))

    def _diagnostic(self, problem: Problem) -> Diagnostic:
        loc = problem.loc
        while loc and loc not in self.nodes:
            loc = loc[:-1]
        # A missing field or a default is shown at its parent's key.
        written = loc == problem.loc
        node = self.nodes.get(loc)
        if node is None:
            return self.at(problem.code, Span(1, 1, 1), problem.message, problem.help)
        span = node.span(problem) if written else (node.key or node.value)
        return self.at(problem.code, span, problem.message, problem.help)

    def at(self, code: str, span: Span, message: str, hint: str | None = None) -> Diagnostic:
        """A diagnostic at ``span``."""
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return Diagnostic(code, self.display, span.line, span.column, max(1, span.length), message, line, hint)
