"""What ahead-of-time compilation gives back: plain frozen values, nothing of Triton."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.errors import KgenError


class CompileError(KgenError):
    """Kernels that do not compile; ``failures`` holds all of them."""

    exit_code = 1

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        self.failures = failures
        super().__init__("\n".join(failure.text() for failure in failures))


@dataclass(frozen=True)
class Device:
    """A GPU as a generated launcher sees it, in the words of Triton and of ``torch.cuda``."""

    target: str
    backend: str  # Triton's: "cuda" | "hip"
    arch: int | str  # Triton's: 90 | "gfx942"
    warp_size: int
    multi_processor_count: int  # of the common product of the target

    @property
    def capability(self) -> tuple[int, int]:
        """``torch.cuda.get_device_capability``; AMD's is that of ROCm's torch."""
        if isinstance(self.arch, int):
            return divmod(self.arch, 10)
        return int(self.arch[3]), int(self.arch[4])


DEVICES = {
    device.target: device
    for device in (
        Device("sm_80", "cuda", 80, 32, 108),  # A100
        Device("sm_86", "cuda", 86, 32, 84),  # A40, RTX 3090
        Device("sm_89", "cuda", 89, 32, 142),  # L40S
        Device("sm_90", "cuda", 90, 32, 132),  # H100, H200
        Device("sm_100", "cuda", 100, 32, 148),  # B200
        Device("sm_120", "cuda", 120, 32, 170),  # RTX 5090
        Device("gfx942", "hip", "gfx942", 64, 304),  # MI300X
    )
}


@dataclass(frozen=True)
class Launch:
    """A kernel as the module's own launcher launches it on ``target``.

    ``key`` is the same for two launches whose compiled code is the same: the
    source without comments of the kernel and of every function it calls, the
    constants, the types and alignments of the arguments, the options.
    """

    module: str
    kernel: str
    target: str
    key: str
    calls: tuple[str, ...]  # the representative calls that make this launch
    signature: tuple[tuple[str, str], ...]  # (argument, Triton's type), in order
    constants: tuple[tuple[str, object], ...]  # values of the tl.constexpr arguments
    num_warps: int
    num_stages: int

    @property
    def is_aligned(self) -> bool:
        """Rows start on 16 bytes: what the kernels are made for."""
        return dict(self.constants).get("STRIDE_UNIT") != 1

    @property
    def form(self) -> str:
        """Of the kernel: "portable", or "sm_90" for the one that only Hopper runs."""
        return "sm_90" if self.kernel.endswith("_sm90_kernel") else "portable"


@dataclass(frozen=True)
class Resources:
    """What one program of a compiled kernel takes.

    ``registers`` are a thread's (gfx942: vector and accumulation registers
    together, 512 at most), ``spill_bytes`` what a thread stores to and loads
    from local memory for want of registers, ``stack_bytes`` its frame there,
    ``instructions`` a census of the machine code by kind, sorted: memory
    instructions carry the bits a thread moves, ``("LDGSTS.128", 48)``.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    instructions: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]  # of the assembler
    order: tuple[tuple[str, int], ...] = ()  # of wgmma, waits for it and exponentials, runs of one kind counted

    def count(self, *prefixes: str) -> int:
        """Instructions whose kind begins with one of ``prefixes``."""
        return sum(number for kind, number in self.instructions if kind.startswith(prefixes))


@dataclass(frozen=True)
class CompiledKernel:
    """One launch, compiled."""

    launch: Launch
    resources: Resources
    threads: int  # of one program
    seconds: float  # of the compile, next to nothing where Triton's cache had it

    @property
    def kernel(self) -> str:
        return self.launch.kernel

    @property
    def target(self) -> str:
        return self.launch.target


@dataclass(frozen=True)
class Failure:
    """A launch that does not compile, or a module whose launches cannot be recorded (``kernel`` is empty)."""

    module: str
    kernel: str
    target: str
    message: str

    def text(self) -> str:
        """One paragraph that names module, kernel, target and what went wrong."""
        subject = f"{self.module}: {self.kernel}" if self.kernel else self.module
        return f"{subject} for {self.target}: {self.message}"


@dataclass(frozen=True)
class Report:
    """All results of a run, in the order of the requests."""

    kernels: tuple[CompiledKernel, ...]
    failures: tuple[Failure, ...]
    compiles: int  # distinct bodies that were compiled; the others share their results
    triton_version: str
