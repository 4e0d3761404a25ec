"""The GPUs kgen generates for, and the limits a plan must keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetInfo:
    """``shared_bytes`` is what one program may take; ``family`` picks the tile table.

    ``has_pdl``: programmatic dependent launch, programs placed before the kernel they wait for has ended.
    """

    name: str
    family: str
    shared_bytes: int
    gpus: str  # examples, for people
    has_pdl: bool = False


TARGET_INFO: dict[str, TargetInfo] = {
    info.name: info
    for info in (
        TargetInfo("sm_80", "ampere", 163 * 1024, "A100"),
        TargetInfo("sm_86", "ampere", 99 * 1024, "A10, RTX 30"),
        TargetInfo("sm_89", "ampere", 99 * 1024, "L4, L40S, RTX 40"),
        TargetInfo("sm_90", "hopper", 227 * 1024, "H100, H200", has_pdl=True),
        TargetInfo("sm_100", "blackwell", 227 * 1024, "B200", has_pdl=True),
        TargetInfo("sm_120", "ampere", 99 * 1024, "RTX 50", has_pdl=True),
        TargetInfo("gfx942", "cdna", 64 * 1024, "MI300X"),
    )
}
