"""Generated modules from disk: found, fresh, imported."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from typing import TYPE_CHECKING

from kgen.errors import InputError, StaleError
from kgen.project import project
from kgen.verify.cases import Tiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from kgen.spec.loader import LoadedSpec

_serial = itertools.count()


def check_fresh(specs: Sequence[LoadedSpec], root: Path) -> None:
    """Make sure that the files under ``root`` are what the specs generate.

    Raises ``StaleError`` that lists the files that are missing or differ.
    """
    stale = []
    for name, text in project(specs).items():
        path = root / name
        try:
            fresh = path.read_bytes() == text.encode()
        except OSError:
            stale.append(f"{path} is missing")
            continue
        if not fresh:
            stale.append(f"{path} is not what its spec generates")
    if stale:
        raise StaleError("\n".join(stale))


def load_package(folder: Path) -> dict[str, ModuleType]:
    """Import the package in ``folder`` under a name of its own; its modules by name.

    The name is new on every call, so that a file that changed is read again.

    Raises ``InputError`` when it cannot be imported.
    """
    name = f"_kgen_generated_{next(_serial)}_{folder.name}"
    try:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        spec.loader.exec_module(package)
        return {
            path.stem: importlib.import_module(f"{name}.{path.stem}")
            for path in sorted(folder.glob("*.py"))
            if path.stem != "__init__" and not path.stem.endswith("_sm90")  # the kernel imports its form for sm_90
        }
    except Exception as error:  # a generated file may be anything by now
        raise InputError(f"{folder} cannot be imported: {type(error).__name__}: {error}; run: kgen build") from error


def sm90_tiles(module: ModuleType) -> Tiles | None:
    """The tile of a module's form for sm_90; None where it has none, or this release of Triton cannot compile it."""
    if not hasattr(module, "form"):
        return None
    try:
        form = importlib.import_module(f"{module.__name__}_sm90")
    except ImportError:
        return None
    return Tiles("sm_90", form._GROUPS.value * form._ROWS.value, form._KEYS.value)


def tiles(module: ModuleType) -> tuple[Tiles, ...]:
    """The tile sizes of a module's launch table, one a target."""
    table: Mapping[str, Mapping[str, int]] = module._LAUNCH
    return tuple(
        Tiles(target, row["BLOCK_M"] if "BLOCK_M" in row else row["BLOCK_H"], row["BLOCK_N"])
        for target, row in table.items()
    )
