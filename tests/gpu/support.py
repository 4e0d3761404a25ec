"""What the tests on a GPU share: the device, and how a kernel goes through its cases."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from kgen.spec.model import SpecFile
from kgen.verify.run import cases, check_case


def the_gpu() -> torch.device:
    """The GPU; without one these tests fail, they do not pass by not running."""
    if not torch.cuda.is_available():
        pytest.fail("pytest -m gpu needs a GPU, and PyTorch sees none here", pytrace=False)
    return torch.device("cuda", torch.cuda.current_device())


def assert_passed(spec: SpecFile, kernel: str, module: ModuleType, gpu: torch.device) -> None:
    """Every case of a kernel; all failures at once."""
    failed = []
    for number, case in enumerate(cases(spec, kernel, module, gpu)):
        result = check_case(spec, kernel, module, case, gpu, number)
        if case.layout.startswith("sparse"):
            torch.cuda.empty_cache()  # gigabytes, of sizes that no later case asks for
        if not result.passed:
            failed.append(f"{case.name} ({case.shape}): {result.message}")
    assert not failed, "\n".join(failed)
