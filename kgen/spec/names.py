"""Names of specs and kernels: they become Python packages and modules, on every file system."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, WithJsonSchema

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH = 64
PATTERN = re.compile(r"[a-z][a-z0-9_]*")

# A folder of one of these names on the import path hides what generated code imports.
_IMPORTED = ("kgen", "numpy", "torch", "triton")
# Windows opens devices under these names, whatever the suffix.
_DEVICES = ("aux", "con", "nul", "prn", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)))
_KEYWORDS = tuple(word for word in keyword.kwlist if PATTERN.fullmatch(word))
# `decode_sm90.py` is the form of `decode` for another GPU.
_TARGET_SUFFIX = r"_(sm|gfx)[0-9]+[a-z]?"


def fault(name: str) -> str | None:
    """Why ``name`` cannot name a package or module, ``None`` if it can."""
    if len(name) > MAX_LENGTH:
        return f"it has {len(name):,} characters, a name has at most {MAX_LENGTH}"
    if not PATTERN.fullmatch(name):
        return "a name is lowercase letters, digits and _, and begins with a letter"
    if name in _KEYWORDS:
        return "it is a keyword of Python, so it could not be imported"
    if name in _IMPORTED:
        return "it would hide the package of that name"
    if name in _DEVICES:
        return "it is a device on Windows, so the file could not be checked out there"
    return None


def module_fault(name: str) -> str | None:
    """Why ``name`` cannot name a kernel, ``None`` if it can."""
    if re.search(f"{_TARGET_SUFFIX}$", name):
        return "endings such as _sm90 and _gfx942 are kept for the forms of a kernel for one GPU"
    return fault(name)


def usable(name: str, fault: Callable[[str], str | None]) -> str | None:
    """A valid name made of ``name``, ``None`` if there is none."""
    made = re.sub(r"[^a-z0-9]+", "_", name[:MAX_LENGTH].lower()).strip("_")
    return made if made and fault(made) is None else None


def _package_name(name: str) -> str:
    reason = fault(name)
    if reason:
        raise ValueError(reason)
    return name


def _module_name(name: str) -> str:
    reason = module_fault(name)
    if reason:
        raise ValueError(reason)
    return name


def _schema(*forbidden: dict[str, object]) -> WithJsonSchema:
    pattern = f"^{PATTERN.pattern}$"
    reserved = {"enum": [*_DEVICES, *_IMPORTED, *_KEYWORDS]}
    not_these = {"anyOf": [reserved, *forbidden]} if forbidden else reserved
    return WithJsonSchema({"type": "string", "pattern": pattern, "maxLength": MAX_LENGTH, "not": not_these})


PackageName = Annotated[str, AfterValidator(_package_name), _schema()]
ModuleName = Annotated[str, AfterValidator(_module_name), _schema({"pattern": f"{_TARGET_SUFFIX}$"})]
