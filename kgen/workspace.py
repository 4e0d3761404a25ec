"""What a command works on: the spec files it was given, and the folder their output goes to."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgen.errors import InputError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.cache import RenderCache
    from kgen.diagnostics import Diagnostic
    from kgen.spec.loader import LoadedSpec

SUFFIXES = (".yaml", ".yml")
_SMALL = 2**20  # bytes; what is larger is no spec, and the loader says so


@dataclass(frozen=True)
class Source:
    """A spec file: ``path`` to open, ``shown`` as the user would write it, ``header`` as its output names it."""

    path: Path
    shown: str
    header: str


@dataclass(frozen=True)
class Workspace:
    """Spec files and their output folder.

    ``owner`` is the specs folder as headers write it where the whole of it was given, None for a subset:
    only the whole may prune. ``out_given`` tells an output folder that the user chose.
    """

    sources: tuple[Source, ...]
    out: Path
    owner: str | None
    arguments: tuple[str, ...]
    out_given: bool

    def shown(self, path: str) -> str:
        """A path of the output as the user would write it from the current folder."""
        return _from_here(self.out / path)

    @property
    def arguments_text(self) -> str:
        """The arguments that name this workspace again on a command line."""
        import shlex

        parts = [*self.arguments, *(("--out", _from_here(self.out)) if self.out_given else ())]
        return " ".join(shlex.quote(part) for part in parts)


def find(paths: Sequence[Path], out: Path | None = None) -> Workspace:
    """The spec files that ``paths`` name: files, and folders with all of their ``*.yaml`` and ``*.yml``.

    Output goes to ``generated`` beside the specs folder unless ``out`` says otherwise. Raises ``InputError``
    with everything that is wrong with the paths.
    """
    problems: list[str] = []
    sources: dict[Path, Source] = {}
    bases: dict[Path, None] = {}
    for path in paths:
        files = _files(path, problems)
        for file in files:
            absolute = Path(os.path.abspath(file))
            base = _base(absolute.parent)
            bases[base] = None
            header = absolute.relative_to(base.parent).as_posix()
            sources.setdefault(absolute, Source(absolute, _from_here(absolute), header))
    if out is None and len(bases) > 1:
        folders = ", ".join(_from_here(base) for base in bases)
        problems.append(f"the specs lie in several folders ({folders}); give --out, or one folder at a time")
    if problems:
        raise InputError("\n".join(problems))
    base = next(iter(bases))
    whole = len(bases) == 1 and any(Path(os.path.abspath(path)) == base for path in paths)
    return Workspace(
        sources=tuple(sorted(sources.values(), key=lambda source: (source.header, source.path))),
        out=base.parent / "generated" if out is None else Path(os.path.abspath(out)),
        owner=base.name if whole else None,
        arguments=tuple(str(path) for path in paths),
        out_given=out is not None,
    )


def load(workspace: Workspace) -> tuple[LoadedSpec, ...]:
    """Every spec of the workspace; ``SpecError`` with the problems of all of them."""
    loaded: list[LoadedSpec] = []
    problems: list[Diagnostic] = []
    for source in workspace.sources:
        try:
            loaded.append(_load(source, _read(source)))
        except SpecError as error:
            problems.extend(_as_shown(error, source))
    if problems:
        raise SpecError(problems)
    return tuple(loaded)


def rendered(workspace: Workspace, cache: RenderCache) -> dict[str, str]:
    """``project`` of the workspace's specs, with what the cache holds already taken from there.

    Raises what loading and ``project`` raise, for all specs together.
    """
    by_source: dict[Source, dict[str, str]] = {}
    problems: list[Diagnostic] = []
    for source in workspace.sources:
        data = _read(source)
        key = cache.key(source.header, data) if data is not None else None
        files = cache.get(key) if key is not None else None
        if files is None:
            from kgen.project import project

            try:
                files = project([_load(source, data)])
            except SpecError as error:
                problems.extend(_as_shown(error, source))
                continue
            if key is not None:
                cache.put(key, files)
        by_source[source] = files
    if problems:
        raise SpecError(problems)
    owner: dict[str, Source] = {}
    for source, files in by_source.items():
        for path in files:
            other = owner.setdefault(path, source)
            if other is not source:
                name = path.split("/", 1)[0]
                raise InputError(f"{other.shown} and {source.shown} have the same name: {name}; rename one of them")
    return {path: by_source[owner[path]][path] for path in sorted(owner)}


def _files(path: Path, problems: list[str]) -> list[Path]:
    """The spec files that one argument names."""
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
            if not files:
                problems.append(f"{path}: a folder without specs (*.yaml, *.yml); `kgen init` writes a first one")
            return files
        if path.is_file():
            return [path]
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return []
    except ValueError as error:  # a null byte
        problems.append(f"{str(path)!r}: not a path: {error}")
        return []
    what = "neither a file nor a folder" if os.path.lexists(path) else "no such file or folder"
    problems.append(f"{path}: {what}")
    return []


def _base(folder: Path) -> Path:
    """The specs folder: the nearest one named ``specs`` at or above, else the file's own folder."""
    for candidate in (folder, *folder.parents):
        if candidate.name == "specs":
            return candidate
    return folder


def _from_here(path: Path) -> str:
    """Relative to the current folder where that is shorter to read, posix slashes."""
    try:
        return Path(path).relative_to(os.getcwd()).as_posix()
    except (ValueError, FileNotFoundError):
        return Path(path).as_posix()


def _read(source: Source) -> bytes | None:
    """The bytes of a spec of ordinary size; None leaves the file, and what is wrong with it, to the loader."""
    try:
        if source.path.is_file() and source.path.stat().st_size <= _SMALL:
            return source.path.read_bytes()
    except OSError:
        pass
    return None


def _load(source: Source, data: bytes | None) -> LoadedSpec:
    from kgen.spec.loader import load_file, load_text

    return load_file(source.path, display=source.header) if data is None else load_text(data, source.header)


def _as_shown(error: SpecError, source: Source) -> list[Diagnostic]:
    """The problems with the path that the user can open, in place of the one that headers state."""
    return [dataclasses.replace(diagnostic, path=source.shown) for diagnostic in error.diagnostics]
