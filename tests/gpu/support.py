"""What the tests on a GPU share: the device, and how a kernel goes through its cases beside other processes."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kgen.spec.model import SpecFile
from kgen.verify.run import cases, check_case

# Tensors whose strides pass 2**31 take 20 to 60 GB a case: so many processes may hold such at a time.
SPARSE_AT_A_TIME = 2


def the_gpu() -> torch.device:
    """The GPU; without one these tests fail, they do not pass by not running."""
    if not torch.cuda.is_available():
        pytest.fail("pytest -m gpu needs a GPU, and PyTorch sees none here", pytrace=False)
    return torch.device("cuda", torch.cuda.current_device())


def assert_passed(spec: SpecFile, kernel: str, module: ModuleType, gpu: torch.device) -> None:
    """Every case of a kernel; all failures at once."""
    failed = []
    for number, case in enumerate(cases(spec, kernel, module, gpu)):
        with _turn() if case.layout.startswith("sparse") else nullcontext():
            result = check_case(spec, kernel, module, case, gpu, number)
        if not result.passed:
            failed.append(f"{case.name} ({case.shape}): {result.message}")
    assert not failed, "\n".join(failed)


@contextmanager
def _turn() -> Iterator[None]:
    """Wait for a turn at gigabytes of memory, which the processes of pytest-xdist share, and give them back."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    path = Path(tempfile.gettempdir(), f"kgen_gpu_tests.{worker % SPARSE_AT_A_TIME}.lock")
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            torch.cuda.empty_cache()
