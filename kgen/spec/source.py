"""The bytes of a spec file to lines of text, or what is wrong with them."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from kgen.spec.document import Span
from kgen.spec.files import MAX_BYTES

MAX_HIDDEN = 20  # hidden characters reported of one file

_LINE_BREAK = re.compile(r"\r\n|\n|\r")
# Bidirectional controls reorder what a reader sees; the last three are no characters at all.
_HIDDEN = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\ufffe\uffff")


@dataclass(frozen=True)
class Fault:
    """Why the file cannot be read, and where."""

    code: str
    span: Span
    message: str
    help: str | None = None


@dataclass(frozen=True)
class SourceText:
    """The text of a file and its lines, without a byte-order mark; ``faults`` if it is not to be parsed."""

    text: str
    lines: tuple[str, ...]
    faults: tuple[Fault, ...] = ()


def decode(source: str | bytes) -> SourceText:
    """The text of a file: UTF-8, of limited size, not empty, without hidden characters."""
    if isinstance(source, str):
        try:
            source = source.encode("utf-8")
        except UnicodeEncodeError as error:
            return _refused(f"the text holds half a character (a surrogate) at offset {error.start}")
    if len(source) > MAX_BYTES:
        return _refused(f"the file is larger than {MAX_BYTES:,} bytes, the limit of a spec")
    try:
        text = source.decode("utf-8").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    except UnicodeDecodeError as error:
        lines = split_lines(source[: error.start].decode("utf-8").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))
        span = Span(len(lines), len(lines[-1]) + 1, 1)
        message = f"byte 0x{source[error.start]:02x} is not UTF-8"
        return SourceText("", lines, (Fault("KG001", span, message, "save the file as UTF-8"),))
    if not text.strip():
        return _refused("the file is empty", "`kgen init` writes a first spec")
    lines = split_lines(text)
    return SourceText(text, lines, tuple(_hidden_characters(lines)[:MAX_HIDDEN]))


def split_lines(text: str) -> tuple[str, ...]:
    """Lines as the YAML parser counts them in text without hidden characters."""
    return tuple(_LINE_BREAK.split(text))


def _refused(message: str, hint: str | None = None) -> SourceText:
    return SourceText("", ("",), (Fault("KG001", Span(1, 1, 1), message, hint),))


def _hidden_characters(lines: tuple[str, ...]) -> list[Fault]:
    """Characters that hide or reorder what a reader sees, or that no editor shows."""
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        if line.isascii() and line.isprintable():
            continue
        for column, char in enumerate(line, 1):
            if char != "\t" and (unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in _HIDDEN):
                name = unicodedata.name(char, "a control character").lower()
                message = f"hidden character U+{ord(char):04X} ({name})"
                faults.append(Fault("KG002", Span(number, column, 1), message, "remove it"))
    return faults
