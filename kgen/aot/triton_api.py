"""The only module that touches Triton's own machinery; what differs between its releases is handled here.

Works with 3.6 to 3.9. A launch is recorded through Triton's ``jit_cache_hook``:
the launcher binds and specialises exactly as on a GPU, asks the hook before it
compiles, and neither compiles nor launches when the hook says "done".
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver

from kgen.aot.machine_code import (
    amdgcn_census,
    amdgcn_metadata,
    ptxas_resources,
    ptxas_warnings,
    sass_census,
    sass_order,
)
from kgen.aot.model import Device, Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PTXAS_LOG = "ptxas.log"


@dataclass(frozen=True)
class RecordedLaunch:
    """What Triton would compile for one launch."""

    function: Any  # triton.JITFunction
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]


class _AbsentGPU(DriverBase):  # type: ignore[misc]
    """A driver that knows its target and nothing else: enough to bind a launch, not to make one."""

    def __init__(self, target: GPUTarget) -> None:
        super().__init__()
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("no kernel is launched ahead of time")

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> GPUTarget:
        # Triton keeps its binders by device: the target as the device keeps those of targets apart.
        return self.target

    def get_current_stream(self, device: GPUTarget) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("no kernel is launched ahead of time")


class _Indexing(TorchFunctionMode):
    """Lets fake GPU tensors be sliced under a torch that was built without GPUs.

    ``tensor[...]`` asks for the device's guard before anything else can answer, and
    such a torch has none. The view is worked out on a meta tensor instead.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        tensor, index = args
        view = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")[index]
        return tensor.as_strided(view.shape, view.stride(), tensor.storage_offset() + view.storage_offset())


def gpu_target(device: Device) -> GPUTarget:
    """Triton's name of the device."""
    return GPUTarget(device.backend, device.arch, device.warp_size)


@contextlib.contextmanager
def recording(device: Device, record: Callable[[RecordedLaunch], None]) -> Iterator[None]:
    """Inside, tensors are fake and on ``device``, and launches of Triton kernels go to ``record``."""

    def hook(*, fn: Any, **details: Any) -> bool:
        about = details["compile"]
        options = json.loads(about["specialization_data"])["options"]
        record(
            RecordedLaunch(
                function=fn.jit_function,
                signature=about["signature"],
                constants=about["constants"],
                attributes=about["configs"][0],
                # JSON made lists of Triton's tuples.
                options={key: tuple(value) if isinstance(value, list) else value for key, value in options.items()},
            )
        )
        return True

    previous_driver, previous_hook = driver._active, knobs.runtime.jit_cache_hook
    driver.set_active(_AbsentGPU(gpu_target(device)))
    knobs.runtime.jit_cache_hook = hook
    try:
        with FakeTensorMode(), _Indexing(), _torch_sees(device), warnings.catch_warnings():
            # A fake tensor's address is 0, which is what "well aligned" needs.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield
    finally:
        driver._active = previous_driver
        knobs.runtime.jit_cache_hook = previous_hook


@contextlib.contextmanager
def _torch_sees(device: Device) -> Iterator[None]:
    """``torch.cuda`` answers for ``device``."""
    major, minor = device.capability
    properties = SimpleNamespace(
        name=device.target,
        major=major,
        minor=minor,
        gcnArchName=f"{device.arch}:sramecc+:xnack-" if device.backend == "hip" else "",
        multi_processor_count=device.multi_processor_count,
        warp_size=device.warp_size,
    )
    answers: dict[str, Any] = {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_properties": lambda device=None: properties,
        "device": lambda device: contextlib.nullcontext(),
        "device_of": lambda tensor: contextlib.nullcontext(),
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        hip = "7.0" if device.backend == "hip" else None
        stack.enter_context(mock.patch.object(torch.version, "hip", hip))
        yield


def compile_launch(launch: RecordedLaunch, device: Device) -> Resources:
    """Compile for ``device`` and read the machine code; raises what Triton raises."""
    source = launch.function.ASTSource(launch.function, launch.signature, launch.constants, launch.attributes)
    kernel, log = _compile(source, device, launch.options, always_compile=False)
    if device.backend == "hip":
        return _amd_resources(kernel)
    # Only the assembler's own words tell of spills and serialised wgmma, and a cached kernel
    # comes without them: they are kept in its entry of the cache.
    log_path = _entry(kernel) / _PTXAS_LOG
    if not log and not log_path.exists():
        kernel, log = _compile(source, device, launch.options, always_compile=True)
    if log:
        log_path.write_text(log, encoding="utf-8")
    return _nvidia_resources(kernel, log_path.read_text(encoding="utf-8"))


def _compile(source: Any, device: Device, options: dict[str, Any], *, always_compile: bool) -> tuple[Any, str]:
    """The compiled kernel and the log of its assembler, which is empty when the cache had the kernel."""
    log = io.StringIO()
    with _knobs(always_compile=always_compile), contextlib.redirect_stdout(log):
        kernel = triton.compile(source, target=gpu_target(device), options=options)
    return kernel, log.getvalue()


@contextlib.contextmanager
def _knobs(*, always_compile: bool) -> Iterator[None]:
    with knobs.compilation.scope(), knobs.nvidia.scope():
        knobs.compilation.always_compile = always_compile
        knobs.nvidia.dump_ptxas_log = True
        yield


def _entry(kernel: Any) -> Path:
    """The folder of the kernel in Triton's cache."""
    return Path(get_cache_manager(kernel.hash).cache_dir)


def _nvidia_resources(kernel: Any, log: str) -> Resources:
    registers, spill_bytes, stack_bytes = ptxas_resources(log)
    disassembly = _disassemble(kernel.asm["cubin"])
    return Resources(
        registers=registers,
        spill_bytes=spill_bytes,
        stack_bytes=stack_bytes,
        shared_bytes=kernel.metadata.shared,
        instructions=sass_census(disassembly),
        warnings=ptxas_warnings(log),
        order=sass_order(disassembly),
    )


def _amd_resources(kernel: Any) -> Resources:
    assembly = kernel.asm["amdgcn"]
    return Resources(
        registers=amdgcn_metadata(assembly, "vgpr_count"),
        spill_bytes=4 * amdgcn_metadata(assembly, "vgpr_spill_count"),
        stack_bytes=amdgcn_metadata(assembly, "private_segment_fixed_size"),
        shared_bytes=kernel.metadata.shared,
        instructions=amdgcn_census(assembly),
        warnings=(),
    )


def _disassemble(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-c", file.name], capture_output=True, text=True, check=True, timeout=120
        )
    return run.stdout
