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


# The README's record of all kinds of layers, and that of latent layers.
LEAST_ROWS = {RESULTS: 20, RESULTS.with_stem("h200_latent"): 9}


@pytest.fixture(scope="module", params=LEAST_ROWS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture(scope="module")
def committed(path: Path) -> Record:
    return record.read(path)


def test_the_readme_shows_the_committed_record() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("<!-- speed:start -->\n")[2].partition("\n<!-- speed:end -->")[0]
    assert shown == report.markdown(record.read(RESULTS)), "put benchmarks/results/h200.md between the README's marks"


def test_the_file_beside_it_shows_the_record(path: Path, committed: Record) -> None:
    assert path.with_suffix(".md").read_text(encoding="utf-8") == report.markdown(committed) + "\n"


def test_the_record_is_of_the_workloads_and_specs_that_are_there(path: Path, committed: Record) -> None:
    assert len(committed.rows) >= LEAST_ROWS[path]
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
    assert len(timed) == len(committed.rows)
    assert all(cell.status == "measured" and cell.error is not None and 0 < cell.error < 2e-2 for cell in timed)
