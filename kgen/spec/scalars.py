"""Plain (unquoted) YAML scalars, read only where every version of YAML agrees.

YAML 1.1 reads ``no`` as false and ``010`` as eight; YAML 1.2 reads a string and
ten; libraries mix the two. A spec must mean the same to every tool, so a scalar
that they read differently is refused with the spelling to use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_NUMBER = 64  # characters; longer numbers are outside every field's range and slow to convert
MAX_DIGITS = 19  # digits of an integer

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"([-+]?[0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
# Any float that some library reads as one: 1e-3, 1.0e3, -.5, 1_000.5
_LOOSE_FLOAT = re.compile(r"(?P<sign>[-+]?)(?P<whole>[0-9][0-9_]*)?(\.(?P<part>[0-9_]*))?([eE](?P<exp>[-+]?[0-9]+))?")
_PREFIXED = re.compile(r"[-+]?0[xXoObB][0-9a-fA-F_]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")
_WORDS = {"yes": "true", "on": "true", "y": "true", "true": "true", "null": "null"}
_WORDS |= {"no": "false", "off": "false", "n": "false", "false": "false"}

Value = None | bool | int | float | str


@dataclass(frozen=True)
class Ambiguous:
    """A scalar that is refused: why, and what to write."""

    message: str
    help: str


def resolve(text: str) -> Value | Ambiguous:
    """The value of a plain scalar, or why it is refused."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if text.lower() in _WORDS:
        word = _WORDS[text.lower()]
        return Ambiguous(
            f"{text} is a word that versions of YAML read differently", f'write {word}, or "{text}" for text'
        )
    if text in ("=", "<<"):
        return Ambiguous(f"{text} has a meaning of its own in YAML 1.1", f'write "{text}" for text')
    return _number(text) if text[0] in "0123456789+-." else text


def _number(text: str) -> Value | Ambiguous:
    is_integer = _INTEGER.fullmatch(text)
    if is_integer or _FLOAT.fullmatch(text):
        if len(text) > MAX_NUMBER or (is_integer and len(text.lstrip("+-")) > MAX_DIGITS):
            return _too_long(text)
        if is_integer:
            return int(text)
        value = float(text)
        if value in (float("inf"), float("-inf")):
            return Ambiguous(f"{text} is too large for a floating-point number", "write a number below 1.0e+308")
        return value
    if _NOT_FINITE.fullmatch(text):
        return Ambiguous(f"{text} is not a finite number", "write a finite number, such as 1.0e+6")
    if _DATE.fullmatch(text):
        return Ambiguous("a date, which YAML 1.1 does not read as text", "put the value in quotes")
    return _other_spelling(text)


def _other_spelling(text: str) -> str | Ambiguous:
    """A number in a spelling that only some libraries know, or else a string."""
    if not any(c.isdigit() for c in text):
        return text
    plain = text.replace("_", "").lstrip("+")
    loose = _LOOSE_FLOAT.fullmatch(text)
    if _PREFIXED.fullmatch(text):
        if len(text) > MAX_NUMBER:
            return _too_long(text)
        try:
            spelling = str(int(plain, 0))
        except ValueError:
            return text  # 0o9, 0b2: no library takes it for a number
    elif _SEXAGESIMAL.fullmatch(text):
        return Ambiguous(
            f"{_short(text)} is a number in base 60 to YAML 1.1", "put the value in quotes, or write it in base 10"
        )
    elif _LEADING_ZERO.fullmatch(text):
        sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
        spelling = sign + (digits.lstrip("0") or "0")
    elif loose and (loose["whole"] or loose["part"]):
        spelling = _spelling(loose)
    else:
        return text
    if len(text) > MAX_NUMBER:
        return _too_long(text)
    return Ambiguous(
        f"{text} is a number that versions of YAML read differently", f'write {spelling}, or "{text}" for text'
    )


def _spelling(number: re.Match[str]) -> str:
    """The spelling of a float that every version of YAML reads."""
    sign = "-" if number["sign"] == "-" else ""
    whole = (number["whole"] or "0").replace("_", "").lstrip("0") or "0"
    part = (number["part"] or "").replace("_", "")
    exponent = number["exp"]
    if part == "" and exponent is None:
        return sign + whole if number["part"] is None else f"{sign}{whole}.0"
    if exponent is None:
        return f"{sign}{whole}.{part}"
    exponent = exponent if exponent[0] in "+-" else f"+{exponent}"
    return f"{sign}{whole}.{part or '0'}e{exponent}"


def _too_long(text: str) -> Ambiguous:
    return Ambiguous(
        f"{_short(text)} is a number of {len(text)} characters", f"write a number of at most {MAX_DIGITS} digits"
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_DIGITS + 1 else f"{text[:MAX_DIGITS]}…"
