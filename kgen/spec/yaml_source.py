"""Strict YAML with positions: text in, plain data and the place of every key and value out.

The parser's events are read one by one (PyYAML's pure-Python parser, so that
positions and words are the same everywhere) and built up with a stack of our
own: nothing recurses, nothing is expanded, and reading stops at the first
limit that the file exceeds.

Refused, each with its place: files over 64 KiB, text that is not UTF-8, control
characters, nesting over 16 levels, duplicate keys, keys that are not text,
anchors, aliases, tags, merge keys, directives and further documents, and the
scalars of ``kgen.spec.scalars``.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from kgen.diagnostics import Diagnostic, Loc, Problem, clipped
from kgen.spec import scalars

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
# Bidirectional controls reorder what a reader sees; the last three are no characters at all.
_HIDDEN = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\ufffe\uffff"
)


class Refused:
    """Stands in the data for a value that has already been reported."""


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

    ``problems`` are the faults of the YAML itself, ``refused`` the paths they
    concern; ``is_complete`` is false where reading stopped early.
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

    def at(
        self, code: str, span: Span, message: str, help: str | None = None
    ) -> Diagnostic:
        """A diagnostic at ``span``."""
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return Diagnostic(
            code,
            self.display,
            span.line,
            span.column,
            max(1, span.length),
            message,
            line,
            help,
        )


def read(source: str | bytes, display: str) -> Document:
    """Parse ``source``; never raises for what is in it."""
    text, problem = _decode(source)
    lines = tuple(_LINE_BREAK.split(text))
    document = Document(display, lines)
    if problem is not None:
        span, message, help = problem
        return Document(
            display,
            lines,
            problems=(document.at("KG001", span, message, help),),
            is_complete=False,
        )
    unsafe = [
        document.at("KG002", span, message, help)
        for span, message, help in _control_characters(lines)
    ]
    if unsafe:
        return Document(display, lines, problems=tuple(unsafe[:20]), is_complete=False)
    return _Builder(document).build(text)


_Fault = tuple[Span, str, "str | None"]


def _decode(source: str | bytes) -> tuple[str, _Fault | None]:
    if isinstance(source, str):
        try:
            source = source.encode("utf-8")
        except UnicodeEncodeError as error:
            return "", (
                Span(1, 1, 1),
                f"the text holds a lone surrogate at character {error.start}",
                "save it as UTF-8",
            )
    if len(source) > MAX_BYTES:
        size = f"{len(source):,} bytes"
        return "", (
            Span(1, 1, 1),
            f"the file has {size}; a spec has at most {MAX_BYTES:,}",
            None,
        )
    try:
        text = source.decode("utf-8").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    except UnicodeDecodeError as error:
        before = source[: error.start].decode("utf-8")
        rows = _LINE_BREAK.split(before)
        span = Span(len(rows), len(rows[-1]) + 1, 1)
        return "", (
            span,
            f"byte 0x{source[error.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        )
    if not text.strip():
        return "", (
            Span(1, 1, 1),
            "the file is empty",
            "`kgen init` writes a first spec",
        )
    return text, None


def _control_characters(lines: tuple[str, ...]) -> list[_Fault]:
    """Characters that no editor shows: they hide or reorder what a reader sees."""
    faults: list[_Fault] = []
    for number, line in enumerate(lines, 1):
        if line.isascii() and line.isprintable():
            continue
        for column, char in enumerate(line, 1):
            if char != "\t" and (
                unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in _HIDDEN
            ):
                name = unicodedata.name(char, "a control character").lower()
                faults.append(
                    (
                        Span(number, column, 1),
                        f"character U+{ord(char):04X} ({name}) in the file",
                        "remove it",
                    )
                )
    return faults


@dataclass
class _Frame:
    """An open mapping or list. ``hidden`` ones are read past and not kept."""

    loc: Loc
    container: dict[str, Any] | list[Any]
    hidden: bool
    key: str | None = None
    key_span: Span | None = None
    hides_value: bool = False
    awaits_value: bool = False


class _Stop(Exception):
    """Reading stops here; the reason is already reported."""


class _Builder:
    """Builds a document from parser events."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._frames: list[_Frame] = []
        self._problems: list[Diagnostic] = []
        self._nodes: dict[Loc, Node] = {}
        self._refused: set[Loc] = set()
        self._root: Any = None
        self._documents = 0

    def build(self, text: str) -> Document:
        is_complete = True
        loader = yaml.SafeLoader(text)
        try:
            while loader.check_event():
                self._event(loader.get_event())
        except _Stop:
            is_complete = False
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
            is_complete = False
        except (yaml.YAMLError, ValueError):
            # PyYAML converts the numbers of escapes and directives without checking them.
            mark = loader.get_mark()
            self._report(
                "KG003",
                self._span(mark, mark),
                "an escape or directive with a number out of range",
            )
            is_complete = False
        if is_complete and not isinstance(self._root, (dict, Refused)):
            root = self._nodes.get((), Node(None, Span(1, 1, 1), ""))
            self._report(
                "KG007",
                root.value,
                "a spec is a mapping of fields to values",
                "begin with `name: <name of the spec>`",
            )
            is_complete = False
        d = self._document
        problems = tuple(sorted(self._problems, key=lambda p: (p.line, p.column)))
        return Document(
            d.display,
            d.lines,
            self._root,
            self._nodes,
            problems,
            frozenset(self._refused),
            is_complete,
        )

    def _event(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._document_start(event)
        elif isinstance(event, yaml.NodeEvent):
            self._node(event)
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            self._frames.pop()

    def _document_start(self, event: yaml.DocumentStartEvent) -> None:
        span = self._span(event.start_mark, event.start_mark)
        self._documents += 1
        if self._documents > 1:
            self._report(
                "KG005",
                span,
                "a second document; a file holds one spec",
                "move it to a file of its own",
            )
            raise _Stop
        if event.version or event.tags:
            self._report(
                "KG005",
                span,
                "YAML directives are not used in specs",
                "remove the line",
            )

    def _node(self, event: yaml.NodeEvent) -> None:
        frame = self._frames[-1] if self._frames else None
        refusal = _refusal(event)
        span = self._span(event.start_mark, event.end_mark)
        if refusal:
            self._report(
                "KG005",
                Span(span.line, span.column, _word(self._line(span), span.column)),
                *refusal,
            )
        if (
            frame is not None
            and isinstance(frame.container, dict)
            and not frame.awaits_value
        ):
            self._key(frame, event, span, bool(refusal))
        else:
            self._value(frame, event, span, bool(refusal))

    def _key(
        self, frame: _Frame, event: yaml.NodeEvent, span: Span, is_refused: bool
    ) -> None:
        frame.awaits_value, frame.hides_value, frame.key, frame.key_span = (
            True,
            True,
            None,
            span,
        )
        if not isinstance(event, yaml.ScalarEvent):
            if not is_refused:
                self._report(
                    "KG006",
                    Span(span.line, span.column, 1),
                    "a key that is a list or a mapping; keys are text",
                )
            if isinstance(event, yaml.CollectionStartEvent):
                self._open(frame.loc, event, hidden=True)
            return
        if is_refused:
            return
        key, fault = self._text_of(event)
        if event.style is None and event.value == "<<":
            self._report(
                "KG005",
                span,
                "merge keys are not used in specs",
                "write the fields out",
            )
        elif isinstance(fault, scalars.Ambiguous):
            self._report(
                "KG006",
                span,
                f"{fault.message}; keys are text",
                f'write "{clipped(event.value)}"',
            )
        elif key is None:
            shown = clipped(event.value) or "an empty key"
            self._report(
                "KG006",
                span,
                f"{shown} is not text; keys are text",
                f'write "{clipped(event.value)}"',
            )
        elif key in frame.container:
            first = self._nodes.get((*frame.loc, key))
            where = (
                f" (first on line {first.key.line})"
                if first is not None and first.key is not None
                else ""
            )
            self._report(
                "KG004",
                span,
                f"duplicate key {clipped(key)}{where}",
                "keep one of the two",
            )
        else:
            frame.key, frame.hides_value = key, frame.hidden

    def _text_of(self, event: yaml.ScalarEvent) -> tuple[str | None, object]:
        """The key as text, or ``None`` and what it was read as."""
        if event.style is not None:
            return event.value, None
        value = scalars.resolve(event.value)
        return (value, None) if isinstance(value, str) else (None, value)

    def _value(
        self, frame: _Frame | None, event: yaml.NodeEvent, span: Span, is_refused: bool
    ) -> None:
        hidden = frame is not None and (frame.hidden or frame.hides_value)
        loc: Loc = ()
        if frame is not None:
            last = (
                len(frame.container) if isinstance(frame.container, list) else frame.key
            )
            loc = frame.loc if hidden or last is None else (*frame.loc, last)
        value: Any
        text: str | None = None
        if isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        elif isinstance(event, yaml.ScalarEvent):
            value, text = self._scalar(event, span, loc, hidden)
        else:
            value = Refused()
        if is_refused and not hidden:
            self._refused.add(loc)
            value = (
                Refused() if not isinstance(event, yaml.CollectionStartEvent) else value
            )
        if not hidden:
            key_span = frame.key_span if frame is not None else None
            self._nodes[loc] = Node(key_span, span, text)
            self._attach(frame, value)
        if frame is not None:
            frame.awaits_value = frame.hides_value = False
        if isinstance(event, yaml.CollectionStartEvent):
            self._open(loc, event, hidden=hidden, container=value)

    def _scalar(
        self, event: yaml.ScalarEvent, span: Span, loc: Loc, hidden: bool
    ) -> tuple[Any, str]:
        value: Any = event.value
        text = event.value
        if event.style is None:
            value = scalars.resolve(text)
        else:
            text = f'"{text}"'
        if any("\ud800" <= c <= "\udfff" for c in text):
            value = scalars.Ambiguous(
                "an escape that is half a character (a surrogate)",
                "write the character itself",
            )
        if isinstance(value, scalars.Ambiguous):
            self._report("KG008", span, value.message, value.help)
            if not hidden:
                self._refused.add(loc)
            value = Refused()
        return value, text

    def _attach(self, frame: _Frame | None, value: Any) -> None:
        if frame is None:
            self._root = value
        elif isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is not None:
            frame.container[frame.key] = value

    def _open(
        self, loc: Loc, event: yaml.Event, *, hidden: bool, container: Any = None
    ) -> None:
        if len(self._frames) >= MAX_DEPTH:
            span = self._span(event.start_mark, event.start_mark)
            self._report(
                "KG003",
                span,
                f"nested more than {MAX_DEPTH} levels deep",
                "a spec needs four",
            )
            raise _Stop
        if container is None:
            container = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._frames.append(_Frame(loc, container, hidden))

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        message, help = f"not valid YAML: {error.problem or error.context}", None
        opened = error.context_mark
        if "flow" in (error.context or "") and opened is not None:
            message, mark = (
                f"not valid YAML: this is not closed before {_found(error.problem)}",
                opened,
            )
        elif (
            "quoted scalar" in (error.context or "")
            and opened is not None
            and "end of stream" in (error.problem or "")
        ):
            message, mark = (
                "not valid YAML: the quote opened here is not closed",
                opened,
            )
        elif "mapping values" in (error.problem or ""):
            message, help = (
                "not valid YAML: a second `: ` in one value",
                "start a new line, or quote text that holds `: `",
            )
        elif "\\t" in (error.problem or ""):
            message, help = (
                "not valid YAML: a tab where indentation is expected",
                "indent with spaces",
            )
        span = Span(1, 1, 1) if mark is None else self._span(mark, mark)
        self._report("KG003", span, message, help)

    def _span(self, start: yaml.Mark, end: yaml.Mark) -> Span:
        line = min(start.line + 1, len(self._document.lines))
        column = (
            start.column + 1
            if line == start.line + 1
            else len(self._document.lines[-1]) + 1
        )
        text = self._document.lines[line - 1]
        length = (
            end.column - start.column
            if end.line == start.line
            else len(text.rstrip()) - column + 1
        )
        return Span(line, column, max(1, length))

    def _line(self, span: Span) -> str:
        return self._document.lines[span.line - 1]

    def _report(
        self, code: str, span: Span, message: str, help: str | None = None
    ) -> None:
        self._problems.append(self._document.at(code, span, message, help))


def _refusal(event: yaml.NodeEvent) -> tuple[str, str] | None:
    """Why a node is refused whatever its value, and the help."""
    if isinstance(event, yaml.AliasEvent):
        return (
            f"alias *{clipped(event.anchor)}: aliases are not used in specs",
            "write the value out",
        )
    if event.anchor is not None:
        return (
            f"anchor &{clipped(event.anchor)}: anchors are not used in specs",
            "remove it",
        )
    if event.tag is not None:
        return f"tag {clipped(event.tag)}: tags are not used in specs", "remove it"
    return None


def _word(line: str, column: int) -> int:
    """Length of the word of ``line`` that starts at ``column``."""
    match = re.compile(r"\S*").match(line, column - 1)
    return len(match.group()) if match else 1


def _found(problem: str | None) -> str:
    got = re.search(r"but got '(.*)'", problem or "")
    token = got.group(1) if got else ""
    return (
        "the end of the file"
        if token == "<stream end>"
        else f"`{token}`"
        if token
        else "the next value"
    )
