"""Rendered output by content: what one spec becomes, kept in the user's cache folder.

A key is the digest of all that decides the output: the bytes of the spec, the
path that its header names, kgen's sources and tables, its templates and the
releases of the libraries that read and render. Times of files play no part. A
hit saves the models of a spec, its plans and Jinja: about half of what a build
takes that changes nothing.

The cache may fail in any way (no home, a full disk, damaged entries, another
process writing) and the build is the same, only slower: an entry is used only
if its digest is right, and written by a rename.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import secrets
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from kgen import resources

ENVIRONMENT = "KGEN_CACHE_DIR"
MOST_ENTRIES = 2048
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_LARGEST = 2**26  # bytes; an entry is some ten kilobytes
_LIBRARIES = ("jinja2", "markupsafe", "pydantic", "pydantic_core", "yaml")


@dataclass(frozen=True)
class CacheInfo:
    """What ``kgen cache info`` tells; ``problem`` is why the folder cannot be used, None if it can."""

    folder: Path | None
    entries: int
    size: int
    problem: str | None


class RenderCache:
    """The entries of one folder, or of none (``folder=None``: every look-up misses)."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._stored = False

    @classmethod
    def open(cls) -> RenderCache:
        """The user's cache, made if need be; one that holds nothing where that cannot be."""
        folder, problem = _usable_folder()
        return cls(folder if problem is None else None)

    def key(self, header: str, data: bytes) -> str:
        """The key of the spec with these bytes, whose output names it ``header``."""
        return hashlib.sha256(b"\0".join((toolchain_digest().encode(), header.encode(), data))).hexdigest()

    def get(self, key: str) -> dict[str, str] | None:
        """The files stored under ``key`` by their paths, None where there are none that can be trusted."""
        if self.folder is None:
            return None
        try:
            digest, payload = _read_regular(self.folder / f"{key}.json").split(b"\n", 1)
            if digest != _seal(key, payload):
                return None
            files = json.loads(payload)
        except (OSError, ValueError):
            return None
        return files if isinstance(files, dict) else None

    def put(self, key: str, files: dict[str, str]) -> None:
        """Keep the files of one spec, if the folder allows."""
        if self.folder is None:
            return
        payload = json.dumps(files, ensure_ascii=False).encode()
        temporary = self.folder / f".{secrets.token_hex(8)}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(_seal(key, payload) + b"\n" + payload)
            os.replace(temporary, self.folder / f"{key}.json")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        if not self._stored:
            self._stored = True
            self._trim()

    def _trim(self) -> None:
        """Drop the oldest entries over ``MOST_ENTRIES``; once a process is often enough."""
        assert self.folder is not None
        try:
            entries = [entry for entry in os.scandir(self.folder) if _ENTRY.fullmatch(entry.name)]
            entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)
            for entry in entries[: max(0, len(entries) - MOST_ENTRIES)]:
                os.unlink(entry)
        except OSError:
            pass  # another process trims too


def info() -> CacheInfo:
    """Where the cache is, how much it holds, and whether it can be used."""
    folder, problem = _usable_folder()
    if folder is None or problem is not None:
        return CacheInfo(folder, 0, 0, problem)
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder) if _ENTRY.fullmatch(entry.name)]
    return CacheInfo(folder, len(sizes), sum(sizes), None)


def clear() -> int:
    """Delete every entry, and nothing else; the number of entries that were there."""
    folder, problem = _usable_folder()
    if folder is None or problem is not None:
        return 0
    removed = 0
    for entry in os.scandir(folder):
        if _ENTRY.fullmatch(entry.name) or _TEMPORARY.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                os.unlink(entry)
                removed += bool(_ENTRY.fullmatch(entry.name))
    return removed


@functools.cache
def toolchain_digest() -> str:
    """The digest of what turns specs into text, for this process."""
    digest = digest_of_files(resources.PACKAGE, resources.templates_dir())
    return hashlib.sha256("\n".join((digest, *_releases())).encode()).hexdigest()


def digest_of_files(package: Path, templates: Path) -> str:
    """sha256 in hex over names and bytes of kgen's sources, its tables and its templates."""
    total = hashlib.sha256()
    for root, patterns in ((package, ("*.py", "*.json")), (templates, ("*.j2",))):
        for path in sorted({path for pattern in patterns for path in root.rglob(pattern)}):
            name, data = path.relative_to(root).as_posix(), path.read_bytes()
            total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def _releases() -> list[str]:
    """Python's release and the metadata folders of the libraries, which their names date; none is imported."""
    found = {f"python {sys.version_info.major}.{sys.version_info.minor}"}
    for library in _LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is not None and spec.origin is not None:
            name = "pyyaml" if library == "yaml" else library
            folder = Path(spec.origin).parent.parent
            found.update(entry for entry in os.listdir(folder) if re.match(rf"{name}-\d", entry, re.IGNORECASE))
    return sorted(found)


def _seal(key: str, payload: bytes) -> bytes:
    """Binds an entry to its key, so that a renamed or damaged one is not taken for another."""
    return hashlib.sha256(key.encode() + payload).hexdigest().encode()


def _read_regular(path: Path) -> bytes:
    """The bytes of an ordinary file; ``OSError`` for a link, a pipe, a folder or something absurdly large."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise OSError(f"{path} is not an entry")
        return file.read()


def _usable_folder() -> tuple[Path | None, str | None]:
    """The folder of the entries, private to the user; with the reason if it cannot be used."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        base = Path(os.path.abspath(chosen))
    else:
        import platformdirs

        base = Path(platformdirs.user_cache_dir("kgen", appauthor=False))
    folder = base / "rendered"
    if not base.is_absolute():
        return folder, "there is no home folder"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return folder, "it is a link"
        if hasattr(os, "geteuid"):
            if status.st_uid != os.geteuid():
                return folder, "it belongs to another user"
            if stat.S_IMODE(status.st_mode) != 0o700:
                folder.chmod(0o700)
    except (OSError, ValueError) as error:
        return folder, f"it cannot be made: {getattr(error, 'strerror', None) or error}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return folder, "it is not writable"
    return folder, None
