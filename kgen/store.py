"""Folders of the user's cache: where they lie, whether they can be trusted, and how they stay small.

An entry is a file or a folder with a name of its store's pattern. It gets that
name by a rename when it is whole; until then it has a temporary one, which a
process that dies may leave behind and ``trim`` removes later. Nothing else in a
store is ever touched.

A cache may fail in any way (no home, a full disk, another process that deletes
it) and what is made with it is the same: its users judge an entry by its bytes
before they use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = "KGEN_CACHE_DIR"
MOST_ENTRIES = 2048  # of a store
ABANDONED = 3600.0  # seconds after which nobody is still writing a temporary
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_LARGEST = 2**26  # bytes; an entry is some ten kilobytes


@dataclass(frozen=True)
class StoreInfo:
    """What ``kgen cache info`` tells of a store; ``problem`` is why it cannot be used, None if it can."""

    name: str
    folder: Path
    entries: int
    size: int
    problem: str | None


class Store:
    """One folder of the cache: its name there, and the pattern of its entries' names."""

    def __init__(self, name: str, entry: str) -> None:
        self.name = name
        self._entry = re.compile(entry)

    @property
    def folder(self) -> Path:
        """Where the entries lie; relative where there is no home."""
        return _base() / self.name

    def problem(self) -> str | None:
        """Why the folder cannot be used, None if it can; it is made if need be, private to the user."""
        folder = self.folder
        if not folder.is_absolute():
            return "there is no home folder"
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode):
                return "it is a link"
            if hasattr(os, "geteuid"):
                if status.st_uid != os.geteuid():
                    return "it belongs to another user"
                if status.st_mode & 0o022:
                    return "others may write to it; delete it"
                if stat.S_IMODE(status.st_mode) != 0o700:
                    folder.chmod(0o700)
        except (OSError, ValueError) as error:
            return f"it cannot be made: {getattr(error, 'strerror', None) or error}"
        return None if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"

    def temporary(self) -> Path:
        """A new name for what is being written, or deleted."""
        return self.folder / f".{secrets.token_hex(8)}.tmp"

    def discard(self, path: Path) -> None:
        """Take what has the name ``path`` away at once, whatever it is, then delete it.

        Raises ``OSError`` where it cannot be taken away; what cannot be deleted is left for ``trim``.
        """
        temporary = self.temporary()
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.rename(path, temporary)
            delete(temporary)

    def trim(self) -> None:
        """Delete the oldest entries over ``MOST_ENTRIES``, and temporaries that nobody is writing any more."""
        entries = sorted(self._found(self._entry), key=lambda found: found[1])
        for entry, _ in entries[: max(0, len(entries) - MOST_ENTRIES)]:
            with contextlib.suppress(OSError):
                self.discard(entry)
        for temporary, written in self._found(_TEMPORARY):
            if time.time() - written > ABANDONED:
                delete(temporary)

    def info(self) -> StoreInfo:
        """Where the store is, how much it holds, and whether it can be used."""
        problem = self.problem()
        sizes = [_size(entry) for entry, _ in self._found(self._entry)] if problem is None else []
        return StoreInfo(self.name, self.folder, len(sizes), sum(sizes), problem)

    def clear(self) -> int:
        """Delete every entry and every temporary, and nothing else; the number of entries that were deleted."""
        if self.problem() is not None:
            return 0
        removed = 0
        for entry, _ in self._found(self._entry):
            with contextlib.suppress(OSError):
                self.discard(entry)
                removed += 1
        for temporary, _ in self._found(_TEMPORARY):
            delete(temporary)
        return removed

    def _found(self, pattern: re.Pattern[str]) -> Iterator[tuple[Path, float]]:
        """What is named so, and when it was written; other processes may delete any of it meanwhile."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return
        for name in names:
            if pattern.fullmatch(name):
                with contextlib.suppress(OSError):
                    yield self.folder / name, (self.folder / name).lstat().st_mtime


RENDERED = Store("rendered", r"[0-9a-f]{64}\.json")
PACKAGES = Store("packages", r"[a-z][a-z0-9_]*-[0-9a-f]{64}")
STORES = (RENDERED, PACKAGES)


def read_regular(path: Path) -> bytes:
    """The bytes of an ordinary file; ``OSError`` for a link, a pipe, a folder or something absurdly large."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise OSError(f"{path} is not an entry")
        return file.read()


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with all that it holds; as far as it can be."""
    import shutil

    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _base() -> Path:
    """The folder of the cache: the chosen one, or the user's."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(os.path.abspath(chosen))
    import platformdirs

    return Path(platformdirs.user_cache_dir("kgen", appauthor=False))


def _size(entry: Path) -> int:
    """Bytes of the files of an entry."""
    total = 0
    with contextlib.suppress(OSError):
        status = entry.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return status.st_size
        for file in os.scandir(entry):
            with contextlib.suppress(OSError):
                total += file.stat(follow_symlinks=False).st_size
    return total
