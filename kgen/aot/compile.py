"""Compile generated modules ahead of time, in parallel, each distinct body once. No GPU is needed."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from platformdirs import user_cache_path

from kgen.aot import worker
from kgen.aot.calls import Sizes
from kgen.aot.model import DEVICES, CompiledKernel, CompileError, Failure, Launch, Report
from kgen.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

WORKERS = 2
_Outcome = TypeVar("_Outcome")


def compile_module(
    module: Path | str | ModuleType, target: str, *, cache_dir: Path | None = None
) -> tuple[CompiledKernel, ...]:
    """Every kernel that ``module`` (a generated file, or the module itself) launches, compiled for ``target``.

    Raises CompileError with all failures; InputError for a target that is not known or a file
    that is not there; MissingDependencyError without torch or Triton.
    """
    report = compile_modules([(_path(module), target)], cache_dir=cache_dir)
    if report.failures:
        raise CompileError(report.failures)
    return report.kernels


def record_launches(
    requests: Sequence[tuple[Path, str]], *, sizes: Sequence[Sizes] = (Sizes(),)
) -> tuple[tuple[Launch, ...], ...]:
    """For each ``(generated module, target)`` its distinct launches over calls of all ``sizes``; nothing is compiled.

    Raises as ``compile_module``.
    """
    _check(requests)
    with _pool(1, None) as pool:
        futures = [[pool.submit(worker.record, str(path), target, one) for one in sizes] for path, target in requests]
        outcomes = [[future.result() for future in row] for row in futures]
    failures = tuple(outcome for row in outcomes for outcome in row if isinstance(outcome, Failure))
    if failures:
        raise CompileError(failures)
    return tuple(
        tuple({launch.key: launch for outcome in row if isinstance(outcome, tuple) for launch in outcome}.values())
        for row in outcomes
    )


def compile_modules(
    requests: Sequence[tuple[Path, str]],
    *,
    keep: Callable[[Launch], bool] = lambda launch: True,
    cache_dir: Path | None = None,
    workers: int = WORKERS,
) -> Report:
    """Compile each ``(generated module, target)``; failures are part of the report.

    Launches for which ``keep`` is false are left out. ``cache_dir`` holds Triton's cache of compiled kernels
    (default: ``TRITON_CACHE_DIR``, else a folder of kgen's own in the user's cache).
    Raises InputError and MissingDependencyError as ``compile_module``.
    """
    _check(requests)
    sizes = Sizes()
    failures: list[Failure] = []
    with _pool(workers, cache_dir) as pool:
        recordings = [(path, target, pool.submit(worker.record, str(path), target, sizes)) for path, target in requests]
        launches: list[Launch] = []
        for path, target, future in recordings:
            outcome = _result(future, str(path), "", target)
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                launches.extend(filter(keep, outcome))
        bodies: dict[str, Future[CompiledKernel | Failure]] = {}
        for launch in launches:
            if launch.key not in bodies:
                bodies[launch.key] = pool.submit(worker.build, launch.module, launch.target, sizes, launch.key)
        kernels: list[CompiledKernel] = []
        for launch in launches:
            built = _result(bodies[launch.key], launch.module, launch.kernel, launch.target)
            if isinstance(built, Failure):
                failures.append(replace(built, module=launch.module))
            else:
                kernels.append(replace(built, launch=launch))
    return Report(
        kernels=tuple(kernels), failures=tuple(failures), compiles=len(bodies), triton_version=version("triton")
    )


def _result(future: Future[_Outcome], module: str, kernel: str, target: str) -> _Outcome | Failure:
    try:
        return future.result()
    except BrokenProcessPool:
        return Failure(module, kernel, target, "the compiler's process died at this kernel or one compiled beside it")


def _path(module: Path | str | ModuleType) -> Path:
    if isinstance(module, ModuleType):
        if module.__file__ is None:
            raise InputError(f"module {module.__name__} has no file to compile from")
        return Path(module.__file__)
    return Path(module)


def _check(requests: Sequence[tuple[Path, str]]) -> None:
    for path, target in requests:
        if target not in DEVICES:
            raise InputError(f"{target} is not a target; choose from {', '.join(DEVICES)}")
        if not path.is_file():
            raise InputError(f"{path} is not there; run kgen build first")
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"compiling needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _pool(workers: int, cache_dir: Path | None) -> ProcessPoolExecutor:
    folder = cache_dir or os.environ.get("TRITON_CACHE_DIR") or user_cache_path("kgen") / "triton"
    return ProcessPoolExecutor(
        max_workers=workers,
        # Not fork: the parent may hold threads, a GPU or an interpreter-mode Triton.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=worker.start,
        initargs=(str(folder), list(sys.path)),
    )
