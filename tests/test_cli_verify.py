"""`kgen verify`: the table, the other formats, and its exit codes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from kgen.cli import app, output
from kgen.verify import run
from kgen.verify.cases import Case

pytestmark = pytest.mark.triton

SMALL = """\
name: small
attention:
  kind: grouped
  num_qo_heads: 2
  num_kv_heads: 1
  head_dim_qk: 16
  mask: {kind: causal}
dtype: float16
kernels:
  decode: {num_splits: 2}
"""


def kgen(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/small.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_kernel_is_run_and_its_errors_are_shown(small: Path) -> None:
    kgen("build")
    found = kgen("verify")
    assert found.exit_code == 0, found.output
    head, row, last = found.stdout.splitlines()
    assert head.split()[:2] == ["KERNEL", "PASSED"]
    passed, of = row.split()[1].split("/")
    assert row.startswith("small.decode ")
    assert passed == of
    assert int(of) > 5
    assert " kept " in row
    assert last.startswith(f"{of} of {of} cases passed on cpu in ")
    assert found.stderr.splitlines() == [f"verifying small.decode (case 1 of {of})"]


def test_what_did_not_run_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small / "specs/small.yaml"
    path.write_text(path.read_text().replace("head_dim_qk: 16", "head_dim_qk: 64") + "  prefill: {}\n")
    monkeypatch.setattr(run, "verify", lambda *arguments, **options: ())
    told = "not run here, for they need a Hopper GPU (--device cuda): small.prefill_sm90"
    assert kgen("verify").stderr.splitlines() == [told]
    assert kgen("verify", "--format", "json").stderr == ""
    for capability, left in (((9, 0), []), ((8, 0), [told])):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert kgen("verify", "--device", "cuda").stderr.splitlines() == left


def test_a_merge_is_a_row_of_its_own(small: Path) -> None:
    path = small / "specs/small.yaml"
    path.write_text(path.read_text().replace("decode: {num_splits: 2}", "merge_states: {layout: ragged}"))
    kgen("build")
    found = kgen("verify", "--format", "json")
    assert found.exit_code == 0, found.output
    results = json.loads(found.stdout)
    assert {(result["spec"], result["kernel"]) for result in results} == {("small", "merge_states")}
    assert {result["case"]["parts"] for result in results} >= {1, 2, 3, 33}
    assert all(result["passed"] and result["poison_ok"] for result in results)


def test_stale_source_is_not_verified(small: Path) -> None:
    assert kgen("verify").exit_code == 1
    kgen("build")
    file = small / "generated/small/decode.py"
    file.write_text(file.read_text().replace("exp2", "exp"))
    found = kgen("verify")
    assert found.exit_code == 1
    assert "kgen build" in found.stderr


def test_no_gpu_is_exit_code_4(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    kgen("build")
    assert kgen("verify", "--device", "cuda").exit_code == 4
    assert kgen("verify", "--device", "tpu").exit_code == 2


GOOD = run.Result(
    spec="small",
    kernel="decode",
    case=Case("one key", "an edge", "sm_80", 1, 1, 1, (1,)),
    max_error=1e-4,
    max_limit=1e-3,
    frobenius_error=1e-4,
    frobenius_limit=1e-3,
    lse_error=1e-7,
    lse_limit=1e-6,
    poison_ok=True,
    seconds=1.0,
    message=None,
)
BAD = replace(GOOD, max_error=math.nan, poison_ok=False, message="out[0, 1] is nan")


@pytest.fixture
def mismatch(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "verify", lambda *_args, **_options: (GOOD, BAD))


@pytest.mark.usefixtures("mismatch")
def test_a_mismatch_is_exit_code_1_in_every_format() -> None:
    text = kgen("verify")
    assert text.exit_code == 1
    assert "1/2" in text.stdout
    assert "CHANGED" in text.stdout
    assert "FAILED small.decode one key (B1 N1 [1]): out[0, 1] is nan" in text.stdout
    assert text.stdout.splitlines()[-1] == "1 of 2 cases passed on cpu in 2 s"

    review = kgen("verify", "--format", "github")
    assert review.exit_code == 1
    assert review.stdout == ("::error file=generated/small/decode.py,title=wrong result::one key: out[0, 1] is nan\n")

    machine = kgen("verify", "--format", "json")
    assert machine.exit_code == 1

    def refuse(constant: str) -> object:
        raise AssertionError(f"{constant} is not JSON")

    told = json.loads(machine.stdout, parse_constant=refuse)
    assert [row["passed"] for row in told] == [True, False]
    assert told[1]["max_error"] == "nan"
    assert told[1]["case"]["reason"] == "an edge"


def test_progress_in_a_log_is_a_line_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("verifying") as tell:
        for done in range(1, 5):
            tell("a.prefill" if done < 3 else "a.decode", done, 4)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err == "verifying a.prefill (case 1 of 4)\nverifying a.decode (case 3 of 4)\n"
