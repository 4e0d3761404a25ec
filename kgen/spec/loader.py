"""Spec files to validated specs, or every fault of every file with its place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from kgen.diagnostics import Diagnostic, Problem
from kgen.errors import SpecError
from kgen.plan import features
from kgen.spec import rules
from kgen.spec.files import read as read_file
from kgen.spec.files import spec_files
from kgen.spec.validate import validate
from kgen.spec.yaml_source import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kgen.spec.document import Document
    from kgen.spec.model import SpecFile

MAX_REPORTED = 100  # problems of one file; a file with more is not a spec


@dataclass(frozen=True)
class LoadedSpec:
    """A valid spec and where it comes from.

    ``display`` is the path as it was given, ``digest`` the SHA-256 of the
    resolved spec (comments and the order of keys do not count).
    """

    path: Path | None
    display: str
    spec: SpecFile
    digest: str
    document: Document = field(repr=False, compare=False)

    def diagnose(self, problems: Iterable[Problem]) -> tuple[Diagnostic, ...]:
        """Problems with their places in this file, in file order."""
        return self.document.diagnose(problems)


def load_text(text: str | bytes, display: str, *, ungenerated: Literal["refused", "allowed"] = "refused") -> LoadedSpec:
    """Parse and validate a spec. ``display`` names it in messages, ``ungenerated`` is as in ``load_specs``.

    Raises:
        SpecError: with every problem found, in file order.
    """
    return _load(text, None, display, ungenerated)


def load_file(path: Path, *, display: str | None = None) -> LoadedSpec:
    """Read, parse and validate a spec file.

    Raises:
        InputError: the path is missing, a folder, no regular file, or cannot be read.
        SpecError: with every problem found, in file order.
    """
    return _load(read_file(path), path, display or str(path), "refused")


def load_specs(
    paths: Sequence[Path], *, ungenerated: Literal["refused", "allowed"] = "refused"
) -> tuple[LoadedSpec, ...]:
    """Load files, and the ``*.yaml`` and ``*.yml`` of folders (by name, not of their subfolders).

    A file that is named twice is loaded once. ``ungenerated="allowed"`` also takes specs of what kgen does not
    generate yet, for uses that generate nothing.

    Raises:
        InputError: a path that is missing or cannot be read, a folder without specs.
        SpecError: the problems of all files, and names that two specs share.
    """
    loaded: list[LoadedSpec] = []
    diagnostics: list[Diagnostic] = []
    sources = spec_files(paths)
    for path, text in sources:
        try:
            loaded.append(_load(text, path, str(path), ungenerated))
        except SpecError as error:
            diagnostics += error.diagnostics
    diagnostics += shared_names(loaded)
    if diagnostics:
        order = {str(path): index for index, (path, _) in enumerate(sources)}
        raise SpecError(sorted(diagnostics, key=lambda d: (order[d.path], d.line, d.column, d.code)))
    return tuple(loaded)


def digest(spec: SpecFile) -> str:
    """SHA-256 (hex) of the resolved spec as canonical JSON."""
    data = spec.model_dump(mode="json")
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def shared_names(loaded: Sequence[LoadedSpec]) -> list[Diagnostic]:
    """Two specs of one name would write the same files."""
    first: dict[str, str] = {}
    found: list[Diagnostic] = []
    for item in loaded:
        if item.spec.name in first:
            message = f"name {item.spec.name} is taken by {first[item.spec.name]}"
            found += item.diagnose([Problem("KG213", ("name",), message, "give each spec a name of its own")])
        else:
            first[item.spec.name] = item.display
    return found


def _load(text: str | bytes, path: Path | None, display: str, ungenerated: Literal["refused", "allowed"]) -> LoadedSpec:
    document = read(text, display)
    diagnostics = list(document.problems)
    spec: SpecFile | None = None
    if document.is_complete:
        validated = validate(document)
        spec = validated.spec
        diagnostics += document.diagnose(validated.problems)
        if spec is not None:
            unmet = features.check(spec) if ungenerated == "refused" else []
            diagnostics += document.diagnose(validated.as_written([*rules.check(spec), *unmet]))
    if diagnostics or spec is None:
        ordered = sorted(diagnostics, key=lambda d: (d.line, d.column, d.code))
        raise SpecError(_limited(ordered))
    return LoadedSpec(path, display, spec, digest(spec), document)


def _limited(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    if len(diagnostics) <= MAX_REPORTED:
        return diagnostics
    kept, rest = diagnostics[: MAX_REPORTED - 1], diagnostics[MAX_REPORTED - 1 :]
    message = f"{rest[0].message} (and more problems below)"
    return [*kept, replace(rest[0], message=message)]
