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


# What the README shows, by the marks around it: the portable forms beside their peers, and the forms for sm_90.
RECORDS = {"speed": RESULTS, "speed-sm90": RESULTS.with_stem("h200_sm90")}
LEAST_ROWS = {"speed": 30, "speed-sm90": 6}


@pytest.fixture(scope="module", params=RECORDS)
def mark(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def committed(mark: str) -> Record:
    return record.read(RECORDS[mark])


def test_the_readme_shows_the_committed_record(mark: str, committed: Record) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.partition(f"<!-- {mark}:start -->\n")[2].partition(f"\n<!-- {mark}:end -->")[0]
    assert shown == report.markdown(committed), f"put {RECORDS[mark].stem}.md between the README's marks {mark}"


def test_the_file_beside_it_shows_the_record(mark: str, committed: Record) -> None:
    assert RECORDS[mark].with_suffix(".md").read_text(encoding="utf-8") == report.markdown(committed) + "\n"


def test_the_record_is_of_the_workloads_and_specs_that_are_there(mark: str, committed: Record) -> None:
    assert len(committed.rows) >= LEAST_ROWS[mark]
    for row in committed.rows:
        (one,) = workloads.find([row.id])
        (loaded,) = load_specs([shipped(one.spec)], ungenerated="allowed")
        spec = loaded.spec
        kind = spec.kernels[one.kernel].kind
        assert (row.spec, row.kernel, row.shape) == (one.spec, one.kernel, one.shape)
        assert row.layer == workloads.layer_in_words(spec.attention, kind)
        assert row.work == workloads.cost(spec, one)


def test_every_kernel_of_ours_was_right_or_is_not_yet_generated(mark: str, committed: Record) -> None:
    cells = {row.id: row.cells[KGEN] for row in committed.rows}
    assert {name for name, cell in cells.items() if cell.status != "measured"} == (
        {"j1", "j2"} if mark == "speed" else set()
    )
    for cell in cells.values():
        assert bool(cell.times) == (cell.status == "measured")
        assert cell.status == "not generated" or (cell.error is not None and 0 < cell.error < 2e-2)
