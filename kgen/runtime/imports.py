"""Packages imported from text: their modules are those sources, whatever a disk holds by the time they are read.

Python's own importer would read the files again, or what it compiled of other
ones, and a form for one GPU is imported long after the package. Triton takes a
kernel's source from ``inspect``, which asks ``linecache``: it is given the same
text there, so that what is compiled is what is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import io
import linecache
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType


@dataclass(frozen=True)
class Package:
    """Sources by file name, ``__init__.py`` among them, and the folder that their paths name."""

    folder: str
    sources: Mapping[str, str]


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finds and loads the packages that it was given, by the names that they are imported under."""

    def __init__(self) -> None:
        self.packages: dict[str, Package] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = self._find(fullname)
        if found is None:
            return None
        is_package = self.is_package(fullname)
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=found[0], is_package=is_package)
        spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        return fullname in self.packages

    def get_filename(self, fullname: str) -> str:
        return self._module(fullname)[0]

    def get_source(self, fullname: str) -> str:
        return self._module(fullname)[1]

    def exec_module(self, module: ModuleType) -> None:
        path, source = self._module(module.__name__)
        # Without a time of the file it is never compared with the disk.
        linecache.cache[path] = (len(source), None, io.StringIO(source).readlines(), path)
        super().exec_module(module)

    def _module(self, fullname: str) -> tuple[str, str]:
        found = self._find(fullname)
        if found is None:
            raise ImportError(f"no module named {fullname}", name=fullname)
        return found

    def _find(self, fullname: str) -> tuple[str, str] | None:
        """Path and source of a module."""
        name, _, module = fullname.partition(".")
        package, file = self.packages.get(name), f"{module or '__init__'}.py"
        if package is None or file not in package.sources:
            return None
        return os.path.join(package.folder, file), package.sources[file]


_importer = _Importer()


def provide(name: str, package: Package) -> None:
    """Let ``import name`` give this package; nothing happens where the name already gives one."""
    _importer.packages.setdefault(name, package)
    if _importer not in sys.meta_path:
        sys.meta_path.insert(0, _importer)


def is_provided(name: str) -> bool:
    """Whether ``import name`` gives a package that was provided before."""
    return name in _importer.packages
