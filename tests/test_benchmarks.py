"""The committed record of `kgen bench`: the README shows it, and it is of the specs that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgen.bench import record, report, workloads
from kgen.bench.record import KGEN, Record
from kgen.resources import shipped
from kgen.spec.loader import load_specs

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks/results/h200.json"


@pytest.fixture(scope="module")
def committed() -> Record:
    return record.read(RESULTS)


def test_the_readme_and_the_file_beside_it_show_the_committed_record(committed: Record) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("<!-- speed:start -->\n")[2].partition("\n<!-- speed:end -->")[0]
    text = report.markdown(committed)
    assert shown == text, "put benchmarks/results/h200.md between the marks of the README"
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == text + "\n"


def test_the_record_is_of_the_workloads_and_specs_that_are_there(committed: Record) -> None:
    assert len(committed.rows) > 20
    for row in committed.rows:
        (one,) = workloads.find([row.id])
        (loaded,) = load_specs([shipped(one.spec)], ungenerated="allowed")
        spec = loaded.spec
        kind = spec.kernels[one.kernel].kind
        assert (row.spec, row.kernel, row.shape) == (one.spec, one.kernel, one.shape)
        assert row.layer == workloads.layer_in_words(spec.attention, kind)
        assert row.work == workloads.cost(spec, one)


def test_every_kernel_of_ours_with_a_time_was_right(committed: Record) -> None:
    timed = [row.cells[KGEN] for row in committed.rows if row.cells[KGEN].times]
    assert len(timed) > 20
    assert all(cell.status == "measured" and cell.error is not None and 0 < cell.error < 2e-2 for cell in timed)
