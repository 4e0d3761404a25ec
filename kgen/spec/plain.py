"""The document of a spec as Python has it (dicts, lists, text, numbers) to the text of its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from kgen.diagnostics import clipped
from kgen.errors import InputError
from kgen.spec import scalars
from kgen.spec.files import MAX_BYTES
from kgen.spec.yaml_source import MAX_DEPTH

_MAX_BITS = 128  # of an integer; Python refuses to print very long ones


def text_of(document: Mapping[str, Any]) -> str:
    """YAML that reads as ``document``, its keys in the same order.

    Raises ``InputError`` that names a value which no spec file can hold, and where a document is too large for one.
    """
    plain = _Copy().of(document, "the document", MAX_DEPTH)
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=MAX_BYTES)


class _Dumper(yaml.SafeDumper):
    """Text that a reader would take for something else is quoted."""


def _quoted(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if scalars.resolve(text) == text else '"')


_Dumper.add_representer(str, _quoted)


class _Copy:
    """Plain values alone, each place of its own: a part that stands in two places is written twice."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, value: object, place: str, depth: int) -> object:
        self._count += 1
        if depth < 0 or self._count > MAX_BYTES:
            raise InputError(f"{place}: the document is nested too deeply, or too large, for a spec")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise InputError(f"{place}: the number is out of every range of a spec")
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return {
                self._key(key, place): self.of(entry, _below(place, key), depth - 1) for key, entry in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.of(entry, _below(place, number), depth - 1) for number, entry in enumerate(value)]
        raise InputError(
            f"{place}: a value of type {type(value).__name__} cannot stand in a spec: it holds mappings, lists,"
            " text, numbers, True, False and None"
        )

    def _key(self, key: object, place: str) -> str:
        if not isinstance(key, str):
            raise InputError(f"{place}: a key is a {type(key).__name__}, and keys are text")
        return str.__str__(key)


def _below(place: str, key: object) -> str:
    part = clipped(str(key))
    return part if place == "the document" else f"{place}.{part}"
