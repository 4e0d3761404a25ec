"""Peak rates of GPUs, from public datasheets (``devices.json``).

Dense rates, without structured sparsity. No kernel reaches them: they bound a time from below, and a measured
rate takes their place where one is known.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgen.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgen.spec.model import DType

_TABLE = Path(__file__).with_name("devices.json")


@dataclass(frozen=True)
class Device:
    """``memory_tb_s`` in 10^12 bytes a second, ``tflop_s`` in 10^12 operations a second by type of the operands."""

    key: str
    name: str
    target: str
    memory_tb_s: float
    tflop_s: Mapping[str, float]
    source: str

    def peak(self, dtype: DType, *, allow_tf32: bool) -> float:
        """The rate of products of ``dtype``: float32 is IEEE unless TF32 is allowed."""
        return float(self.tflop_s["tf32" if dtype == "float32" and allow_tf32 else dtype])


@functools.cache
def devices() -> dict[str, Device]:
    """Every device of the table by its key."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {key: Device(key=key, **row) for key, row in table.items()}


def device(key: str) -> Device:
    """The device of a key, in any case; ``InputError`` with the keys that are known."""
    found = devices().get(key.lower())
    if found is None:
        raise InputError(
            f"--device {key}: not in the table of devices, which has {', '.join(devices())}; for another one give its "
            "rates with --bandwidth-tb-s and --tflop-s, beside the nearest of these"
        )
    return found
