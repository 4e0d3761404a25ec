"""What a command works on: the spec files it was given, and the folder their output goes to."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgen.errors import InputError, SpecError
from kgen.spec.files import spec_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.cache import RenderCache
    from kgen.diagnostics import Diagnostic
    from kgen.spec.loader import LoadedSpec


@dataclass(frozen=True)
class Source:
    """A spec file: ``shown`` as the user would write its path, ``header`` as its output names it, its bytes."""

    shown: str
    header: str
    data: bytes

    @classmethod
    def of(cls, path: Path, data: bytes) -> Source:
        """The file at ``path``, which holds ``data``; its output names it from beside its specs folder."""
        absolute = Path(os.path.abspath(path))
        return cls(_from_here(absolute), absolute.relative_to(_base(absolute.parent).parent).as_posix(), data)


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
    """The spec files that ``paths`` name, at least one path: files, and folders with all of their specs.

    Output goes to ``generated`` beside the specs folder unless ``out`` says otherwise. Raises ``InputError``
    with everything that is wrong with the paths.
    """
    sources: list[Source] = []
    bases: dict[Path, None] = {}
    for path, data in spec_files(paths):
        bases[_base(Path(os.path.abspath(path)).parent)] = None
        sources.append(Source.of(path, data))
    if out is None and len(bases) > 1:
        folders = ", ".join(_from_here(base) for base in bases)
        raise InputError(f"the specs lie in several folders ({folders}); give --out, or one folder at a time")
    base = next(iter(bases))
    whole = len(bases) == 1 and any(Path(os.path.abspath(path)) == base for path in paths)
    return Workspace(
        sources=tuple(sorted(sources, key=lambda source: (source.header, source.shown))),
        out=base.parent / "generated" if out is None else Path(os.path.abspath(out)),
        owner=base.name if whole else None,
        arguments=tuple(f"{path}/" if path.is_dir() else str(path) for path in paths),
        out_given=out is not None,
    )


def load(workspace: Workspace) -> tuple[LoadedSpec, ...]:
    """Every spec of the workspace; ``SpecError`` with the problems of all of them."""
    from kgen.spec.loader import load_text, shared_names

    loaded: list[LoadedSpec] = []
    problems: list[Diagnostic] = []
    for source in workspace.sources:
        try:
            loaded.append(load_text(source.data, source.shown))
        except SpecError as error:
            problems.extend(error.diagnostics)
    problems += shared_names(loaded)
    if problems:
        raise SpecError(problems)
    return tuple(_named(spec, source) for spec, source in zip(loaded, workspace.sources, strict=True))


def rendered(workspace: Workspace, cache: RenderCache) -> dict[str, str]:
    """``project`` of the workspace's specs, with what the cache holds already taken from there.

    Raises what loading and ``project`` raise, for all specs together.
    """
    everything: dict[str, str] = {}
    problems: list[Diagnostic] = []
    shared = False
    for source in workspace.sources:
        try:
            files = rendered_source(source, cache)
        except SpecError as error:
            problems.extend(error.diagnostics)
            continue
        shared = shared or not everything.keys().isdisjoint(files)
        everything.update(files)
    if problems:
        raise SpecError(problems)
    if shared:
        load(workspace)  # tells which specs share a name, and where
    return dict(sorted(everything.items()))


def rendered_source(source: Source, cache: RenderCache) -> dict[str, str]:
    """``project`` of one spec, from the cache where it holds it. Raises what loading and ``project`` raise."""
    key = cache.key(source.header, source.data)
    files = cache.get(key)
    if files is None:
        from kgen.project import project
        from kgen.spec.loader import load_text

        files = project([_named(load_text(source.data, source.shown), source)])
        cache.put(key, files)
    return files


def _named(loaded: LoadedSpec, source: Source) -> LoadedSpec:
    """Loaded under the path that the user can open, which messages keep; rendered under that of the header."""
    return dataclasses.replace(loaded, display=source.header)


def _base(folder: Path) -> Path:
    """The specs folder: the nearest one named ``specs`` at or above, else the file's own folder."""
    for candidate in (folder, *folder.parents):
        if candidate.name == "specs":
            return candidate
    return folder


def _from_here(path: Path) -> str:
    """Relative to the current folder where it lies below, with slashes."""
    try:
        return path.relative_to(os.getcwd()).as_posix()
    except (ValueError, FileNotFoundError):
        return path.as_posix()
