"""Kernels of a spec, imported: ``kgen.load`` and ``kgen.loads``.

What is imported is what ``kgen build`` writes for the same spec. Its source lies
in the user's cache (``KGEN_CACHE_DIR``; ``kgen cache info`` tells where), in a
folder named by the digest of what it holds, for tracebacks, debuggers and
profilers to show. A module is always the source that its spec renders: what lies
in the cache is compared with it and replaced, and where the cache cannot be used
a warning says so and the source stays in memory.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgen.cache import RenderCache
from kgen.diagnostics import clipped, joined
from kgen.errors import InputError, MissingDependencyError
from kgen.runtime import imports, packages
from kgen.spec.files import read
from kgen.store import PACKAGES
from kgen.workspace import Source, rendered_source

if TYPE_CHECKING:
    from types import ModuleType

_UNFILED = "<spec>"  # a spec without a file, in messages and in the headers of its modules


def load(spec: str | os.PathLike[str] | Mapping[str, Any], kernel: str | None = None) -> ModuleType:
    """The module of one kernel of a spec, with its ``attention`` function.

    ``spec`` is the path of a spec file (text is always a path: ``loads`` takes the text of a spec), or the
    document of a spec: a mapping of its fields, as YAML or JSON reads them, which messages show as the lines of a
    file. ``kernel`` is the kernel's name in the spec; it may be left out where the spec has one kernel.

    The same spec gives the same module throughout a process, a spec that says something else another one.
    torch and Triton are imported with the module, not before.

    Raises:
        InputError: a path that is missing or cannot be read; a document that holds what no spec can; a kernel
            that the spec does not have, or none named of several. The message lists the kernels.
        SpecError: every problem of the spec, as ``kgen build`` tells them (an ``InputError`` too).
        MissingDependencyError: torch or Triton is missing.

    Warns ``RuntimeWarning``, once, where the source cannot be kept in the user's cache.
    """
    return _module(_source(spec), kernel)


def loads(text: str, kernel: str | None = None) -> ModuleType:
    """The module of one kernel, from the text of a spec. Raises and warns as ``load``."""
    if not isinstance(text, str):
        raise InputError(f"kgen.loads takes the text of a spec, got a {type(text).__name__}")
    return _module(Source(_UNFILED, _UNFILED, text.encode(errors="surrogatepass")), kernel)


def _source(spec: object) -> Source:
    if isinstance(spec, Mapping):
        from kgen.spec.plain import text_of

        return Source(_UNFILED, _UNFILED, text_of(spec).encode(errors="surrogatepass"))
    name = os.fspath(spec) if isinstance(spec, os.PathLike) else spec
    if not isinstance(name, str):
        raise InputError(f"kgen.load takes the path of a spec file or its document, got a {type(spec).__name__}")
    if "\n" in name:
        raise InputError(f"{clipped(name)}: is no path of a spec file; kgen.loads takes the text of a spec")
    path = Path(name)
    return Source.of(path, read(path))


def _module(source: Source, kernel: str | None) -> ModuleType:
    files = rendered_source(source, RenderCache.open())
    package = next(iter(files)).partition("/")[0]
    sources = {path.partition("/")[2]: text for path, text in files.items()}
    chosen = _chosen(source, kernel, sources)
    name = f"_kgen_{package}_{packages.digest(sources)}"
    if not imports.is_provided(name):
        imports.provide(name, imports.Package(_folder(package, sources), sources))
    try:
        return importlib.import_module(f"{name}.{chosen}")
    except ImportError as error:
        missing = MissingDependencyError.of(error)
        if missing is None:
            raise
        raise missing from error


def _chosen(source: Source, kernel: str | None, sources: Mapping[str, str]) -> str:
    """The kernel to import: the one that is named, or the only one."""
    # No kernel's name ends in _sm90: such a module is a kernel's form for Hopper.
    stems = (file.removesuffix(".py") for file in sources)
    kernels = sorted(stem for stem in stems if stem != "__init__" and not stem.endswith("_sm90"))
    if kernel is None and len(kernels) == 1:
        return kernels[0]
    if kernel is None:
        raise InputError(f"{source.shown} has the kernels {joined(kernels, 'and')}; name one of them")
    if kernel not in kernels:
        raise InputError(f"{source.shown} has no kernel {clipped(repr(kernel))}; it has {joined(kernels, 'and')}")
    return kernel


def _folder(package: str, sources: Mapping[str, str]) -> str:
    """The folder that the paths of the package's modules name: in the cache, or none that exists."""
    try:
        return str(packages.place(package, sources))
    except OSError as error:
        _warn_once(f"{PACKAGES.folder}: {error.strerror or error}")
        return f"<kgen>/{package}-{packages.digest(sources)}"


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"the source of loaded kernels is kept in memory alone, where debuggers and profilers cannot show it: {reason}",
        RuntimeWarning,
        stacklevel=5,
    )
