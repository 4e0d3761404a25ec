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


def test_the_readme_shows_the_committed_record(committed: Record) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("<!-- speed:start -->\n")[2].partition("\n<!-- speed:end -->")[0]
    assert shown == report.markdown(committed), "put benchmarks/results/h200.md between the README's marks"


def test_the_file_beside_it_shows_the_record(committed: Record) -> None:
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == report.markdown(committed) + "\n"


def test_the_record_is_of_the_workloads_and_specs_that_are_there(committed: Record) -> None:
    assert len(committed.rows) >= 30
    for row in committed.rows:
        (one,) = workloads.find([row.id])
        (loaded,) = load_specs([shipped(one.spec)], ungenerated="allowed")
        spec = loaded.spec
        kind = spec.kernels[one.kernel].kind
        assert (row.spec, row.kernel, row.shape) == (one.spec, one.kernel, one.shape)
        assert row.layer == workloads.layer_in_words(spec.attention, kind)
        assert row.work == workloads.cost(spec, one)


def test_every_kernel_of_ours_was_right_or_is_not_yet_generated(committed: Record) -> None:
    cells = {row.id: row.cells[KGEN] for row in committed.rows}
    assert {name for name, cell in cells.items() if cell.status != "measured"} == {"j1", "j2"}
    for cell in cells.values():
        assert bool(cell.times) == (cell.status == "measured")
        assert cell.status == "not generated" or (cell.error is not None and 0 < cell.error < 2e-2)
