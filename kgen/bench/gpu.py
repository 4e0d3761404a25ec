"""The GPU as a clock: graphs, flushes and events; what it is called; whether it is still there."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kgen.bench import traffic
from kgen.bench.timing import GpuLostError
from kgen.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSHES = {"write": 256 << 20, "read": 512 << 20}  # bytes written, or read, before each sample
WARM_UP = 3
# Distributions whose releases a figure depends on; those that are not installed are left out of a record.
DISTRIBUTIONS = ("torch", "triton", "fa3_fwd", "sgl-flash-mla", "flashinfer-python", "flash-attn-4")


def require() -> torch.device:
    """The GPU to measure on. Raises ``MissingDependencyError`` where there is none."""
    if not torch.cuda.is_available():
        raise MissingDependencyError(
            "kgen bench needs a GPU, and PyTorch sees none here; `kgen bench --list` and `--from FILE` need none"
        )
    return torch.device("cuda", torch.cuda.current_device())


class GpuClock:
    """Times replays by events, after a flush of L2 by one of ``FLUSHES``."""

    def __init__(self, flush: str, device: torch.device) -> None:
        nbytes = FLUSHES[flush]
        if flush == "write":
            buffer = torch.empty(nbytes // 4, dtype=torch.int32, device=device)
            self._flush: Callable[[], object] = buffer.zero_
        else:
            self._flush = traffic.read(nbytes, device)

    def samples(self, replay: Callable[[], object], count: int) -> list[float]:
        """Microseconds of ``count`` replays after one that is not counted."""
        try:
            replay()
            event: Any = torch.cuda.Event
            begins, ends = ([event(enable_timing=True) for _ in range(count)] for _ in range(2))
            for begin, end in zip(begins, ends, strict=True):
                self._flush()
                begin.record()
                replay()
                end.record()
            torch.cuda.synchronize()
            return [1e3 * begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)]
        except RuntimeError as error:
            raise_if_lost(error)
            raise


@dataclass(frozen=True)
class Captured:
    """A call as a CUDA graph: ``replay`` runs it again, and writes ``out``, what the captured call returned.

    A graph knows addresses alone, so ``call`` keeps every tensor alive that it reads and writes.
    """

    replay: Callable[[], object]
    out: object
    call: Callable[[], object]


def captured(call: Callable[[], object]) -> Captured:
    """Capture a call, after calls that compile and choose."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return Captured(graph.replay, out, call)


def raise_if_lost(cause: BaseException) -> None:
    """Raise ``GpuLostError`` where a fault has ended this process's use of the GPU."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise GpuLostError(f"the GPU is lost to this process: {one_line(cause)}") from error


def one_line(error: BaseException) -> str:
    """An error in one short line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:160]


def facts(device: torch.device) -> dict[str, object]:
    """What the GPU is."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "driver": _driver(),
    }


def versions() -> dict[str, str]:
    """Releases of everything that a figure depends on."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None  # type: ignore[no-untyped-call]
    return (
        found | ({"cudnn": str(cudnn)} if cudnn else {}) | ({"cuda": torch.version.cuda} if torch.version.cuda else {})
    )


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n", 1)[0].strip() or None
