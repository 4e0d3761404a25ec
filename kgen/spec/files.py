"""The spec files that paths name, and their bytes; light, so that a build from the cache imports no model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kgen.diagnostics import printable
from kgen.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 64 * 1024  # of one spec


def spec_files(paths: Sequence[Path]) -> tuple[tuple[Path, bytes], ...]:
    """Files, and the ``*.yaml`` and ``*.yml`` of folders (by name, not of their subfolders), with their bytes.

    A file that is named twice comes once. Raises ``InputError`` with every path that cannot be used.
    """
    found: dict[str, tuple[Path, bytes]] = {}
    errors: list[str] = []
    for path in paths:
        try:
            for file in _files(path):
                data = read(file)
                found.setdefault(os.path.realpath(file), (file, data))
        except InputError as error:
            errors.append(str(error))
    if errors:
        raise InputError("\n".join(errors))
    return tuple(found.values())


def read(path: Path, *, what: str = "a spec file", most: int = MAX_BYTES) -> bytes:
    """At most one byte more than ``most``, which a spec may have; ``what`` the path should be, for messages.

    Raises ``InputError`` where the path is missing, a folder, no regular file, or cannot be read.
    """
    if not str(path).isprintable():
        raise InputError(f"{printable(str(path))}: the path holds control characters; rename it")
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, expected {what}")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            return file.read(most + 1)
    except FileNotFoundError:
        why = "is a broken link" if path.is_symlink() else "no such file or folder"
        raise InputError(f"{path}: {why}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        # What is named like a spec is one, or an error: a broken link must not count as a spec that was deleted.
        entries = [entry for entry in path.iterdir() if entry.suffix in SUFFIXES and not entry.name.startswith(".")]
    except (OSError, ValueError) as error:
        raise InputError(f"{printable(str(path))}: cannot be read: {_reason(error)}") from None
    if not entries:
        raise InputError(f"{path}: the folder holds no spec (*.yaml or *.yml); `kgen init` writes a first one")
    return sorted(entries, key=lambda entry: entry.name)


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
