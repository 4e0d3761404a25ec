"""A ``config.json`` read from its bytes, and the place of each key in it."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from kgen.diagnostics import Diagnostic, Loc, Problem, clipped
from kgen.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 8 * 1024 * 1024  # of labels alone, image models have some megabytes
_DEEPEST = 64
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|[^\s{}\[\],:"]+')


@dataclass(frozen=True)
class Document:
    """The parsed object, and ``path``, which names the file in messages."""

    path: str
    data: dict[str, Any]
    text: str = field(repr=False)

    def diagnostic(self, problem: Problem) -> Diagnostic:
        """A problem with its place in the file."""
        return _at(self.path, self.text, problem, _places(self.text))


def read(data: bytes, path: str) -> Document:
    """The object that a ``config.json`` holds.

    Raises:
        SpecError: too large, not UTF-8, not JSON, nested too deep, no object, or a key that is there twice.
    """

    def fail(message: str, advice: str | None = None, offset: int = 0, text: str = "") -> NoReturn:
        raise SpecError([_diagnostic(path, text, Problem("KG501", (), message, advice), offset, 1)])

    if len(data) > MAX_BYTES:
        fail(f"the file has more than {MAX_BYTES:,} bytes; a config.json is small")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        fail("the file is not UTF-8 text", "name the config.json of a model")
    depth = 0
    for bracket in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(bracket[0], 0)
        if depth > _DEEPEST:
            fail(f"objects and lists are nested more than {_DEEPEST} deep", None, bracket.start(), text)

    twice: list[str] = []

    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twice.append(key)
            found[key] = value
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        fail(f"the file is not JSON: {error.msg}", "name the config.json of a model", error.pos, text)
    except ValueError as error:  # a number of thousands of digits
        fail(f"the file is not JSON that can be read: {clipped(str(error), 90)}")
    if not isinstance(parsed, dict):
        fail("the file is JSON and holds no object", "a config.json begins with {", 0, text)
    if twice:
        fail(f"key {clipped(twice[0])} is there twice in one object", "keep one")
    return Document(path, parsed, text)


def _places(text: str) -> dict[Loc, tuple[int, int]]:
    """Offset and length of each key of nested objects, of a text that is JSON."""
    found: dict[Loc, tuple[int, int]] = {}
    path: list[str | int] = []
    inside: list[bool] = []  # whether each open bracket is an object's
    awaits_key = False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in "{[":
            inside.append(mark == "{")
            path.append(0)
            awaits_key = mark == "{"
        elif mark in "}]":
            inside.pop()
            path.pop()
            awaits_key = False
        elif mark == ",":
            awaits_key = inside[-1]
            if not inside[-1]:
                path[-1] = int(path[-1]) + 1
        elif awaits_key:
            path[-1] = json.loads(mark)
            found[tuple(path)] = (token.start(), len(mark))
            awaits_key = False
    return found


def _at(path: str, text: str, problem: Problem, places: dict[Loc, tuple[int, int]]) -> Diagnostic:
    loc = problem.loc
    while loc and loc not in places:
        loc = loc[:-1]
    offset, length = places.get(loc, (0, 1))
    return _diagnostic(path, text, problem, offset, length)


def _diagnostic(path: str, text: str, problem: Problem, offset: int, length: int) -> Diagnostic:
    starts = [0, *(newline.end() for newline in re.finditer("\n", text))]
    line = bisect_right(starts, offset)
    source = text[starts[line - 1] :].partition("\n")[0].rstrip("\r")
    column = offset - starts[line - 1] + 1
    return Diagnostic(problem.code, path, line, column, length, problem.message, source, problem.help)
