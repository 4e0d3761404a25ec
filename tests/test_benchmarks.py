"""The README's figures are the committed ones."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_readme_shows_the_committed_results():
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks/report.py")
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    record = json.loads((ROOT / "benchmarks/results/h200.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("<!-- speed:start -->\n")[2].partition("\n<!-- speed:end -->")[0]
    assert shown == report.table(record)


def test_every_workload_names_a_spec_and_was_right():
    record = json.loads((ROOT / "benchmarks/results/h200.json").read_text(encoding="utf-8"))
    for row in record["workloads"]:
        assert (ROOT / row["spec"]).is_file()
        assert 0 < row["error"] < 2e-2
        assert row["times"]["kgen"]["us"] > 0
