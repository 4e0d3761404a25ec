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
import sys
from pathlib import Path

from kgen import resources
from kgen.store import RENDERED, Store, read_regular

_LIBRARIES = ("jinja2", "markupsafe", "pydantic", "pydantic_core", "yaml")


class RenderCache:
    """The entries of one store, or of none (``store=None``: every look-up misses)."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self._stored = False

    @classmethod
    def open(cls) -> RenderCache:
        """The user's cache, made if need be; one that holds nothing where that cannot be."""
        return cls(RENDERED if RENDERED.problem() is None else None)

    def key(self, header: str, data: bytes) -> str:
        """The key of the spec with these bytes, whose output names it ``header``."""
        return hashlib.sha256(b"\0".join((toolchain_digest().encode(), header.encode(), data))).hexdigest()

    def get(self, key: str) -> dict[str, str] | None:
        """The files stored under ``key`` by their paths, None where there are none that can be trusted."""
        if self.store is None:
            return None
        try:
            digest, payload = read_regular(self.store.folder / f"{key}.json").split(b"\n", 1)
            if digest != _seal(key, payload):
                return None
            files = json.loads(payload)
        except (OSError, ValueError):
            return None
        return files if isinstance(files, dict) else None

    def put(self, key: str, files: dict[str, str]) -> None:
        """Keep the files of one spec, if the folder allows."""
        if self.store is None:
            return
        payload = json.dumps(files, ensure_ascii=False).encode()
        temporary = self.store.temporary()
        try:
            with open(temporary, "xb") as file:
                file.write(_seal(key, payload) + b"\n" + payload)
            os.replace(temporary, self.store.folder / f"{key}.json")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        if not self._stored:
            self._stored = True  # once a process is often enough
            self.store.trim()


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
