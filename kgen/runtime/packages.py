"""Packages of loaded specs on disk: one folder a package, named by the digest of all that it holds.

The files are there for people and tools: tracebacks, debuggers and profilers
name them. What runs is the text in memory that they are compared with (see
``kgen.runtime.imports``), so that no state of the disk can change a module.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import TYPE_CHECKING

from kgen.store import PACKAGES, delete, read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ATTEMPTS = 8  # of writing an entry that other processes replace, damage or delete meanwhile
# What they cause: the name was taken by a folder or a file, or the cache was cleared.
_OTHERS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ENOENT)


def digest(files: Mapping[str, str]) -> str:
    """sha256 in hex over the names and the texts of a package's files."""
    total = hashlib.sha256()
    for name, text in sorted(files.items()):
        data = text.encode()
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def place(name: str, files: Mapping[str, str]) -> Path:
    """The folder in the user's cache that holds the package ``name``: exactly ``files``, by their names.

    What else stands in its place (a truncated or edited file, one too many, a link) is replaced.
    Raises ``OSError`` with the reason where the cache cannot hold it.
    """
    entry = PACKAGES.folder / f"{name}-{digest(files)}"
    wanted = {file: text.encode() for file, text in files.items()}
    for attempt in range(_ATTEMPTS):
        problem = PACKAGES.problem()
        if problem is not None:
            raise OSError(problem)
        if _holds(entry, wanted):
            if attempt == 0:
                _touch(entry)
            else:
                PACKAGES.trim()
            return entry
        if os.path.lexists(entry):
            PACKAGES.discard(entry)
        _write(entry, wanted)
    raise OSError("what is written to it does not stay as written")


def _holds(entry: Path, wanted: Mapping[str, bytes]) -> bool:
    """Whether ``entry`` is a folder of these files and nothing else."""
    try:
        if entry.is_symlink() or set(os.listdir(entry)) != set(wanted):
            return False
        return all(read_regular(entry / file) == data for file, data in wanted.items())
    except OSError:
        return False


def _write(entry: Path, wanted: Mapping[str, bytes]) -> None:
    """Give a folder of these files its name; left to the next attempt where another process comes in between."""
    temporary = PACKAGES.temporary()
    try:
        temporary.mkdir(mode=0o700)
        for file, data in wanted.items():
            with open(temporary / file, "xb") as opened:
                opened.write(data)
        os.rename(temporary, entry)
    except OSError as error:
        if error.errno not in _OTHERS:
            raise
    finally:
        delete(temporary)


def _touch(entry: Path) -> None:
    """Count as used now, so that the oldest that ``trim`` finds is the one that nobody needs."""
    with contextlib.suppress(OSError):
        os.utime(entry)
