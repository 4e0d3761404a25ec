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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from kgen.diagnostics import clipped
from kgen.spec import scalars
from kgen.spec.document import Document, Node, Span
from kgen.spec.source import decode

if TYPE_CHECKING:
    from kgen.diagnostics import Diagnostic, Loc

MAX_DEPTH = 16


def read(source: str | bytes, display: str) -> Document:
    """Parse ``source``; never raises for what is in it."""
    decoded = decode(source)
    document = Document(display, decoded.lines)
    if decoded.faults:
        problems = tuple(document.at(fault.code, fault.span, fault.message, fault.help) for fault in decoded.faults)
        return Document(display, decoded.lines, problems=problems, is_complete=False)
    return _Builder(document).build(decoded.text)


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


class _StopError(Exception):
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
        """The document that ``text`` holds, as far as it can be read."""
        is_complete = self._parse(text)
        if is_complete and not isinstance(self._root, dict) and () not in self._refused:
            place = self._nodes[()].value if () in self._nodes else Span(1, 1, 1)
            hint = "begin with `name: <name of the spec>`"
            self._report("KG007", place, "a spec is a mapping of fields to values", hint)
            is_complete = False
        if isinstance(self._root, dict) and self._root:
            # What concerns the whole spec is shown at its first key.
            first = self._nodes[(next(iter(self._root)),)]
            self._nodes[()] = Node(None, first.key or first.value, None)
        d = self._document
        problems = tuple(sorted(self._problems, key=lambda p: (p.line, p.column)))
        return Document(d.display, d.lines, self._root, self._nodes, problems, frozenset(self._refused), is_complete)

    def _parse(self, text: str) -> bool:
        """Read all events; false, with a problem reported, where that stops early."""
        loader = yaml.SafeLoader(text)
        try:
            while loader.check_event():
                self._event(loader.get_event())  # type: ignore[no-untyped-call]
        except _StopError:
            return False
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
            return False
        except (yaml.YAMLError, ValueError, OverflowError):
            # PyYAML converts the numbers of escapes and directives without checking them.
            mark = loader.get_mark()
            self._report("KG003", self._span(mark, mark), "an escape or directive with a number out of range")
            return False
        return True

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
            self._report("KG005", span, "a second document; a file holds one spec", "move it to a file of its own")
            raise _StopError
        if event.version or event.tags:
            self._report("KG005", span, "YAML directives are not used in specs", "remove the line")

    def _node(self, event: yaml.NodeEvent) -> None:
        frame = self._frames[-1] if self._frames else None
        refusal = _refusal(event)
        span = self._span(event.start_mark, event.end_mark)
        if refusal:
            self._report("KG005", Span(span.line, span.column, _word(self._line(span), span.column)), *refusal)
        if frame is not None and isinstance(frame.container, dict) and not frame.awaits_value:
            self._key(frame, event, span, bool(refusal))
        else:
            self._value(frame, event, span, bool(refusal))

    def _key(self, frame: _Frame, event: yaml.NodeEvent, span: Span, is_refused: bool) -> None:
        frame.awaits_value, frame.hides_value, frame.key, frame.key_span = (True, True, None, span)
        if not isinstance(event, yaml.ScalarEvent):
            if not is_refused:
                self._report(
                    "KG006", Span(span.line, span.column, 1), "a key that is a list or a mapping; keys are text"
                )
            if isinstance(event, yaml.CollectionStartEvent):
                self._open(frame.loc, event, hidden=True)
            return
        if is_refused:
            return
        key, fault = self._text_of(event)
        if event.style is None and event.value == "<<":
            self._report("KG005", span, "merge keys are not used in specs", "write the fields out")
        elif isinstance(fault, scalars.Ambiguous):
            self._report("KG006", span, f"{fault.message}; keys are text", f'write "{clipped(event.value)}"')
        elif key is None:
            shown = clipped(event.value) or "an empty key"
            self._report("KG006", span, f"{shown} is not text; keys are text", f'write "{clipped(event.value)}"')
        elif key in frame.container:
            first = self._nodes.get((*frame.loc, key))
            where = f" (first on line {first.key.line})" if first is not None and first.key is not None else ""
            self._report("KG004", span, f"duplicate key {clipped(key)}{where}", "keep one of the two")
        else:
            frame.key, frame.hides_value = key, frame.hidden

    def _text_of(self, event: yaml.ScalarEvent) -> tuple[str | None, object]:
        """The key as text, or ``None`` and what it was read as."""
        if event.style is not None:
            return event.value, None
        value = scalars.resolve(event.value)
        return (value, None) if isinstance(value, str) else (None, value)

    def _value(self, frame: _Frame | None, event: yaml.NodeEvent, span: Span, is_refused: bool) -> None:
        hidden = frame is not None and (frame.hidden or frame.hides_value)
        loc: Loc = ()
        if frame is not None:
            last = len(frame.container) if isinstance(frame.container, list) else frame.key
            loc = frame.loc if hidden or last is None else (*frame.loc, last)
        value: Any
        text: str | None = None
        if isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        elif isinstance(event, yaml.ScalarEvent):
            value, text = self._scalar(event, span, loc, hidden)
        else:
            value = None
        if is_refused and not hidden and not isinstance(event, yaml.CollectionStartEvent):
            # The entries of a mapping with an anchor are still worth checking; an alias or tagged scalar is not.
            self._refused.add(loc)
            value = None
        if not hidden:
            key_span = frame.key_span if frame is not None else None
            self._nodes[loc] = Node(key_span, span, text)
            self._attach(frame, value)
        if frame is not None:
            frame.awaits_value = frame.hides_value = False
        if isinstance(event, yaml.CollectionStartEvent):
            self._open(loc, event, hidden=hidden, container=value)

    def _scalar(self, event: yaml.ScalarEvent, span: Span, loc: Loc, hidden: bool) -> tuple[Any, str]:
        value: Any = event.value
        text = event.value
        if event.style is None:
            value = scalars.resolve(text)
        else:
            text = f'"{text}"'
        if any("\ud800" <= c <= "\udfff" for c in text):
            value = scalars.Ambiguous("an escape that is half a character (a surrogate)", "write the character itself")
        if isinstance(value, scalars.Ambiguous):
            self._report("KG008", span, value.message, value.help)
            if not hidden:
                self._refused.add(loc)
            value = None
        return value, text

    def _attach(self, frame: _Frame | None, value: Any) -> None:
        if frame is None:
            self._root = value
        elif isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is not None:
            frame.container[frame.key] = value

    def _open(self, loc: Loc, event: yaml.Event, *, hidden: bool, container: Any = None) -> None:
        if len(self._frames) >= MAX_DEPTH:
            span = self._span(event.start_mark, event.start_mark)
            self._report("KG003", span, f"nested more than {MAX_DEPTH} levels deep", "a spec needs four")
            raise _StopError
        if container is None:
            container = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._frames.append(_Frame(loc, container, hidden))

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        message, hint = f"not valid YAML: {error.problem or error.context}", None
        opened = error.context_mark
        if "flow" in (error.context or "") and opened is not None:
            message, mark = (f"not valid YAML: this is not closed before {_found(error.problem)}", opened)
        elif (
            "quoted scalar" in (error.context or "") and opened is not None and "end of stream" in (error.problem or "")
        ):
            message, mark = ("not valid YAML: the quote opened here is not closed", opened)
        elif "mapping values" in (error.problem or ""):
            message, hint = (
                "not valid YAML: a second `: ` in one value",
                "start a new line, or quote text that holds `: `",
            )
        elif "\\t" in (error.problem or ""):
            message, hint = ("not valid YAML: a tab in place of spaces", "indent and separate with spaces")
        span = Span(1, 1, 1) if mark is None else self._span(mark, mark)
        self._report("KG003", span, message, hint)

    def _span(self, start: Any, end: Any) -> Span:
        line = min(start.line + 1, len(self._document.lines))
        column = start.column + 1 if line == start.line + 1 else len(self._document.lines[-1]) + 1
        text = self._document.lines[line - 1]
        length = end.column - start.column if end.line == start.line else len(text.rstrip()) - column + 1
        return Span(line, column, max(1, length))

    def _line(self, span: Span) -> str:
        return self._document.lines[span.line - 1]

    def _report(self, code: str, span: Span, message: str, hint: str | None = None) -> None:
        self._problems.append(self._document.at(code, span, message, hint))


def _refusal(event: Any) -> tuple[str, str] | None:
    """Why a node is refused whatever its value, and the hint."""
    if isinstance(event, yaml.AliasEvent):
        return (f"alias *{clipped(str(event.anchor))}: aliases are not used in specs", "write the value out")
    if event.anchor is not None:
        return (f"anchor &{clipped(str(event.anchor))}: anchors are not used in specs", "remove it")
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
    return "the end of the file" if token == "<stream end>" else f"`{token}`" if token else "the next value"
