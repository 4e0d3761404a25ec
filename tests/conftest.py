"""What every test may rely on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Tests run kernels in Triton's interpreter, those for a GPU on the GPU.

    Triton and numpy read these when they are first imported.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
        # The interpreter's products are too small for threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
