"""What every test may rely on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgen.store import ENVIRONMENT


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--aot-full``: compile every committed kernel, on any release of Triton (see test_aot.py)."""
    parser.addoption("--aot-full", action="store_true", help="compile every committed kernel ahead of time")


def pytest_configure(config: pytest.Config) -> None:
    """Tests run kernels in Triton's interpreter, those for a GPU on the GPU.

    Triton and numpy read these when they are first imported.
    """
    if config.getoption("markexpr") != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
        # The interpreter's tensors are too small for threads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache of rendered output is neither read nor written by a test."""
    patch = pytest.MonkeyPatch()
    patch.setenv(ENVIRONMENT, str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a user with two specs, which is the current folder."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/one.yaml").write_text(SPEC.format(name="one", heads=8))
    (tmp_path / "specs/two.yml").write_text(SPEC.format(name="two", heads=4))
    monkeypatch.chdir(tmp_path)
    return tmp_path


SPEC = """\
name: {name}
attention:
  kind: grouped
  num_qo_heads: {heads}
  num_kv_heads: 2
  head_dim_qk: 64
  mask: {{kind: causal}}
dtype: float16
kernels:
  prefill: {{}}
  decode: {{}}
"""
