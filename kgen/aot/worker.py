"""What runs in a process of its own: load a generated module, record its launches, compile them.

A fresh process, because ``TRITON_INTERPRET`` decides at import what ``triton.jit``
makes, and because a compiler that crashes must not take kgen with it.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kgen.aot.calls import Sizes, representative_calls
from kgen.aot.model import DEVICES, CompiledKernel, Failure, Launch
from kgen.errors import KgenError

if TYPE_CHECKING:
    from kgen.aot.triton_api import RecordedLaunch


def start(cache_dir: str, import_path: list[str]) -> None:
    """Set the process up; before anything imports Triton."""
    for name in ("TRITON_INTERPRET", "TRITON_ALWAYS_COMPILE", "TRITON_DUMP_PTXAS_LOG"):
        os.environ.pop(name, None)
    os.environ["TRITON_CACHE_DIR"] = cache_dir
    # Triton 3.9 warns that 3.10 will change the default; what is compiled here is today's default, said aloud.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    sys.path[:] = import_path
    atexit.register(_end_quietly)


def _end_quietly() -> None:
    """Triton 3.9 lists what Gluon's compiler left behind when its process ends: nobody's to act on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def record(path: str, target: str, sizes: Sizes) -> tuple[Launch, ...] | Failure:
    """The distinct launches of the module's representative calls on ``target``, in order."""
    try:
        return tuple(launch for launch, _ in _recorded(path, target, sizes).values())
    except Exception as error:
        return Failure(path, "", target, f"recording its launches failed: {_describe(error)}")


def build(path: str, target: str, sizes: Sizes, key: str) -> CompiledKernel | Failure:
    """Compile one of the launches that ``record`` found."""
    from kgen.aot.triton_api import compile_launch

    launch, recorded = _recorded(path, target, sizes)[key]
    device = DEVICES[target]
    begin = time.perf_counter()
    try:
        resources = compile_launch(recorded, device)
    except Exception as error:
        return Failure(path, launch.kernel, target, f"{_describe(error)} (launched by: {', '.join(launch.calls)})")
    return CompiledKernel(
        launch=launch,
        resources=resources,
        threads=launch.num_warps * device.warp_size,
        seconds=time.perf_counter() - begin,
    )


def _describe(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@functools.lru_cache(maxsize=64)
def _recorded(path: str, target: str, sizes: Sizes) -> dict[str, tuple[Launch, RecordedLaunch]]:
    from kgen.aot.identity import functions_of, is_jitted, launch_key
    from kgen.aot.triton_api import recording

    module = _load(path)
    launches: dict[str, tuple[Launch, RecordedLaunch]] = {}
    label = ""

    def note(recorded: RecordedLaunch) -> None:
        key = launch_key(recorded, target)
        if key in launches:
            launch, first = launches[key]
            if label not in launch.calls:
                launches[key] = replace(launch, calls=(*launch.calls, label)), first
            return
        names = [parameter.name for parameter in recorded.function.params]
        launch = Launch(
            module=path,
            kernel=recorded.function.__name__,
            target=target,
            key=key,
            calls=(label,),
            signature=tuple((name, str(kind)) for name, kind in recorded.signature.items()),
            constants=tuple((names[index[0]], value) for index, value in sorted(recorded.constants.items())),
            num_warps=recorded.options["num_warps"],
            num_stages=recorded.options["num_stages"],
        )
        launches[key] = launch, recorded

    with recording(DEVICES[target], note):
        for call in representative_calls(module.SPEC, Path(path).stem, sizes):
            label = call.label
            getattr(module, call.function)(*call.args, **call.kwargs)

    reached = {name for _, recorded in launches.values() for name in functions_of(recorded.function)}
    unreached = [
        name
        for name, value in vars(module).items()
        if is_jitted(value) and value.__module__ == module.__name__ and name not in reached
    ]
    if unreached:
        raise KgenError(f"no representative call launches {', '.join(sorted(unreached))}")
    return launches


@functools.lru_cache(maxsize=64)
def _load(path: str) -> ModuleType:
    # In a package of its own, as it was generated: modules of two specs are both called "prefill".
    file = Path(path).resolve()
    package = "_kgen_aot_" + "_".join(file.parts[-3:-1])
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(file.parent)]
    name = f"{package}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise KgenError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
