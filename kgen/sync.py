"""Generated text against the files on disk: compare, write, prune.

kgen owns a folder ``<out>/<spec>/`` that it writes to, or that holds a file
with its marker. Nothing outside such folders is looked at, and nothing without
the marker is ever changed.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kgen.errors import InputError, KgenError
from kgen.render.header import MARKER, body_digest, body_of, marked_source, parse_header

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_WANTED = re.compile(r"[a-z][a-z0-9_]*/(?:__init__|[a-z][a-z0-9_]*)\.py")
_TEMPORARY = ".kgen-"


class Kind(StrEnum):
    """How a file differs from what kgen generates."""

    CHANGED = "changed"  # kgen wrote it, from another spec, template or version
    MISSING = "missing"
    ORPHANED = "orphaned"  # kgen wrote it, and no spec asks for it any more
    HAND_EDITED = "hand-edited"  # its body is not the one its own header states
    FOREIGN = "foreign"  # not kgen's; told, and left alone


@dataclass(frozen=True)
class Drift:
    """One file that is not as generated.

    ``path`` is the posix path below the output folder, ``before`` the bytes on
    disk and ``after`` the generated text, each None where there is none.
    ``blocks`` marks what stands in the way of a generated file, ``edited`` a
    file of kgen's that holds what kgen did not write.
    """

    path: str
    kind: Kind
    detail: str
    before: bytes | None = None
    after: str | None = None
    blocks: bool = False
    edited: bool = False

    @property
    def fails(self) -> bool:
        """Whether a check fails because of it."""
        return self.kind is not Kind.FOREIGN or self.blocks


@dataclass(frozen=True)
class Applied:
    """What a build did: the drifts it mended, the files it left, the number already as generated."""

    written: tuple[Drift, ...]
    pruned: tuple[Drift, ...]
    foreign: tuple[Drift, ...]
    unchanged: int


def compare(wanted: Mapping[str, str], out: Path, owner: str | None) -> tuple[Drift, ...]:
    """Every difference between the generated files and the folder ``out``, in the order of the paths.

    ``owner`` is the specs folder, as headers write it, of which ``wanted`` is the whole output; None where
    only some of its specs are given, and then nothing is orphaned. Raises ``InputError`` where the disk
    cannot be read.
    """
    for path in wanted:
        if not _WANTED.fullmatch(path):
            raise KgenError(f"{path!r} is not a path that kgen may write to")
    try:
        _require_folder(out)
        drifts = [drift for path, text in wanted.items() if (drift := _compare_file(path, text, out))]
        drifts += _extras(wanted, out, owner)
    except OSError as error:
        raise _readable(error, out, "read") from error
    return tuple(sorted(drifts, key=lambda drift: drift.path))


def apply(wanted: Mapping[str, str], out: Path, owner: str | None) -> Applied:
    """Make ``out`` hold the generated files: write those that differ, prune the orphaned.

    Files that are as generated keep their bytes and times. Nothing is written when something that is not
    kgen's stands in the way of any file: then, and where the disk refuses, ``InputError``.
    """
    drifts = compare(wanted, out, owner)
    blocking = [f"{out / drift.path}: {drift.detail}" for drift in drifts if drift.blocks]
    if blocking:
        raise InputError("\n".join([*blocking, "kgen overwrites nothing that it did not write; move it away"]))
    written = tuple(drift for drift in drifts if drift.after is not None)
    pruned = tuple(drift for drift in drifts if drift.kind is Kind.ORPHANED)
    foreign = tuple(drift for drift in drifts if drift.kind is Kind.FOREIGN)
    for drift in written:
        assert drift.after is not None
        write(out / drift.path, drift.after)
    try:
        for drift in pruned:
            (out / drift.path).unlink(missing_ok=True)
        _remove_empty({(out / drift.path).parent for drift in pruned})
    except OSError as error:
        raise _readable(error, out, "prune") from error
    return Applied(written, pruned, foreign, len(wanted) - len(written))


def write(path: Path, text: str) -> None:
    """Replace the file at once: a reader sees the old bytes or the new, also when the disk fills up.

    Raises ``InputError`` where the disk refuses.
    """
    temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(text.encode())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _readable(error, path, "write") from error


def unified_diff(drift: Drift, shown: str) -> str:
    """From the file on disk to the generated one, as ``patch -p1`` reads it; empty where only line ends differ.

    ``shown`` is the path to name, relative to where the patch would be applied.
    """
    old = (drift.before or b"").decode(errors="replace").replace("\r\n", "\n")
    new = drift.after or ""
    if old == new or drift.kind is Kind.FOREIGN:
        return ""
    names = (
        "/dev/null" if drift.before is None else f"a/{shown}",
        "/dev/null" if drift.after is None else f"b/{shown}",
    )
    lines = difflib.unified_diff(_lines(old), _lines(new), *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends; unlike ``str.splitlines`` only a newline ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _require_folder(out: Path) -> None:
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"{out}: the output folder is a file or a broken link; move it or give another --out")


def _compare_file(path: str, text: str, out: Path) -> Drift | None:
    """The drift of one wanted file, None where the disk holds exactly its bytes."""
    target = out / path
    folder = _mode(target.parent)
    if folder is not None and not stat.S_ISDIR(folder):
        what = "is a symbolic link" if stat.S_ISLNK(folder) else "is a file"
        detail = f"{PurePosixPath(path).parent} {what}, and a folder must be there"
        return Drift(path, Kind.FOREIGN, detail, after=text, blocks=True)
    mode = _mode(target) if folder is not None else None
    if mode is None:
        return Drift(path, Kind.MISSING, "not generated yet, or deleted", after=text)
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
        return Drift(path, Kind.FOREIGN, f"{what} stands where a generated file must be", after=text, blocks=True)
    before = target.read_bytes()
    if before == text.encode():
        return None
    if marked_source(before) is None:
        detail = "a file without kgen's header stands where a generated file must be"
        return Drift(path, Kind.FOREIGN, detail, before, text, blocks=True)
    edited = _edited(before)
    if edited:
        return Drift(path, Kind.HAND_EDITED, edited, before, text, edited=True)
    return Drift(path, Kind.CHANGED, _why_changed(before, text), before, text)


def _edited(data: bytes) -> str | None:
    """How a file with the marker differs from what kgen once wrote, None where it is as written."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "it is not UTF-8 text"
    if text.startswith("\ufeff"):
        return "it begins with a byte-order mark"
    if "\r" in text and _is_as_written(text.replace("\r\n", "\n")):
        return "its line ends are CRLF; `* text eol=lf` in .gitattributes keeps them LF"
    if _is_as_written(text):
        return None
    if _is_as_written(f"{text}\n"):
        return "its final newline is lost"
    return "its header is damaged" if parse_header(text) is None else "its body is not the one its header states"


def _is_as_written(text: str) -> bool:
    header = parse_header(text)
    return header is not None and header.body_digest == body_digest(body_of(text))


def _why_changed(before: bytes, text: str) -> str:
    old, new = parse_header(before.decode()), parse_header(text)
    assert old is not None, "told as hand-edited before"
    assert new is not None, "render writes a header"
    if old.spec_digest != new.spec_digest:
        return "the spec says something else than when it was generated"
    if old.body_digest != new.body_digest:
        return "kgen generates other source from the same spec now"
    return "only its header is out of date"


def _extras(wanted: Collection[str], out: Path, owner: str | None) -> Iterable[Drift]:
    """Orphaned and foreign files of the folders that kgen owns."""
    if not out.is_dir():
        return
    folders = {path.split("/", 1)[0] for path in wanted}
    for folder in sorted(os.scandir(out), key=lambda entry: entry.name):
        if not folder.is_dir(follow_symlinks=False):
            continue
        found = {
            entry.name: _marked(entry)
            for entry in os.scandir(folder)
            if entry.name != "__pycache__" and not _in_flight(entry)
        }
        if folder.name not in folders and (owner is None or not any(found.values())):
            continue
        for name, source in found.items():
            path = f"{folder.name}/{name}"
            if path in wanted:
                continue
            if source is None:
                yield Drift(path, Kind.FOREIGN, "not a file of kgen's; left alone")
            elif owner is not None and str(PurePosixPath(source).parent) == owner:
                before = Path(out, path).read_bytes()
                edited = _edited(before)
                detail = f"no spec asks for it any more (it was generated from {source})"
                detail = f"{detail}; {edited}" if edited else detail
                yield Drift(path, Kind.ORPHANED, detail, before, edited=edited is not None)
            elif owner is not None:
                yield Drift(
                    path, Kind.FOREIGN, f"generated from {source}, which is not among the specs of {owner}/; left alone"
                )


def _in_flight(entry: os.DirEntry[str]) -> bool:
    """A file that another build is writing now; an old one was left by a process that died."""
    if not entry.name.startswith(_TEMPORARY):
        return False
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime < 3600
    except FileNotFoundError:  # it got its name between the listing and now
        return True


def _marked(entry: os.DirEntry[str]) -> str | None:
    """The spec that a file with the marker names; None for every other kind of entry."""
    if not entry.is_file(follow_symlinks=False):
        return None
    with open(entry.path, "rb") as file:
        start = file.read(len(MARKER) + 3)
        return marked_source(start + file.readline()) if marked_source(start) is not None else None


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that pruning left with nothing but Python's own cache."""
    for folder in folders:
        if {entry.name for entry in os.scandir(folder)} <= {"__pycache__"}:
            for compiled in folder.glob("__pycache__/*.pyc"):
                compiled.unlink(missing_ok=True)
            # A folder that holds something else after all stays.
            with contextlib.suppress(OSError):
                if (folder / "__pycache__").is_dir():
                    (folder / "__pycache__").rmdir()
                folder.rmdir()


def _readable(error: OSError, path: Path, verb: str) -> InputError:
    """An operating system's refusal in words that say what to do."""
    advice = {
        errno.EACCES: "permission denied; make the folder writable or give another --out",
        errno.EPERM: "not permitted; make the folder writable or give another --out",
        errno.EROFS: "the file system is read-only; give another --out",
        errno.ENOSPC: "the disk is full; free some space and run the command again",
        errno.EDQUOT: "the disk quota is used up; free some space and run the command again",
        errno.ENOTDIR: "a file stands where a folder must be; move it away",
    }
    reason = advice.get(error.errno or 0, error.strerror or str(error))
    return InputError(f"cannot {verb} {path}: {reason}")
