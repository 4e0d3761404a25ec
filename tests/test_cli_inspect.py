"""`kgen inspect`: the table, JSON, and what it calls a problem."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kgen import inspect
from kgen.cli import app
from kgen.inspect import Inspection, Row

ROW = Row(
    module="one/prefill.py",
    kernel="_prefill_kernel",
    target="sm_80",
    calls=("prefill",),
    launch="BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3",
    registers=180,
    spill_bytes=0,
    spill_limit=0,
    stack_bytes=0,
    shared_bytes=40_960,
    shared_estimate=45_056,
    shared_limit=166_912,
    instructions=(("tensor core", 64), ("async copy 16 B", 16)),
    warnings=(),
)


def kgen(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def give(monkeypatch: pytest.MonkeyPatch, *rows: Row, failures: tuple[str, ...] = ()) -> None:
    found = Inspection(rows=rows, failures=failures, triton_version="3.9.0")
    monkeypatch.setattr(inspect, "inspect", lambda _specs, _targets: found)


def test_what_a_kernel_compiles_to(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, ROW)
    found = kgen("inspect")
    assert found.exit_code == 0
    for words in ("triton 3.9.0", "180", "40,960 / 45,056 / 166,912", "64 tensor core, 16 async copy 16 B", ROW.launch):
        assert words in found.stdout
    told = json.loads(kgen("inspect", "--format", "json").stdout)
    assert (told["triton"], told["problems"]) == ("3.9.0", [])
    assert told["rows"][0]["instructions"] == {"tensor core": 64, "async copy 16 B": 16}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (replace(ROW, spill_bytes=16), "one/prefill.py _prefill_kernel sm_80: spills 16 bytes"),
        (replace(ROW, shared_bytes=45_057), "takes 45,057 bytes of shared memory, the plan says 45,056"),
        (
            replace(ROW, shared_bytes=166_913, shared_estimate=170_000),
            "takes 166,913 bytes of shared memory, the target has 166,912",
        ),
    ],
)
def test_problems_are_exit_code_1(project: Path, monkeypatch: pytest.MonkeyPatch, row: Row, words: str) -> None:
    give(monkeypatch, ROW, row)
    found = kgen("inspect")
    assert found.exit_code == 1
    assert words in found.stdout.splitlines()[-1]
    told = json.loads(kgen("inspect", "--format", "json").stdout)
    assert len(told["problems"]) == 1


def test_the_form_for_unaligned_rows_may_spill(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, replace(ROW, spill_bytes=16, spill_limit=None))
    assert kgen("inspect").exit_code == 0


def test_a_tile_may_spill_what_its_plan_allows(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, replace(ROW, spill_bytes=16, spill_limit=16))
    assert kgen("inspect").exit_code == 0
    give(monkeypatch, replace(ROW, spill_bytes=17, spill_limit=16))
    found = kgen("inspect")
    assert found.exit_code == 1
    assert "spills 17 bytes of registers, the plan allows 16" in found.stdout


def test_a_kernel_that_does_not_compile_is_exit_code_1(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, failures=("one/prefill.py for sm_80: out of registers",))
    found = kgen("inspect")
    assert found.exit_code == 1
    assert found.stdout.splitlines()[-1] == "one/prefill.py for sm_80: out of registers"


@pytest.mark.triton
def test_one_kernel_for_one_target(project: Path) -> None:
    found = kgen("inspect", "specs/one.yaml", "--target", "sm_80")
    assert found.exit_code == 0, found.output
    assert "one/decode.py" in found.stdout
    assert "sm_90" not in found.stdout
    assert kgen("inspect", "specs/one.yaml", "--target", "sm_1").exit_code == 2
