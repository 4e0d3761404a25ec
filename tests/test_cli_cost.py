"""`kgen cost`: what it prints and where, its plot, and its exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kgen.cli import app
from kgen.cli.cost import quantity
from kgen.models import plot
from kgen.models.devices import devices
from kgen.models.plot import curve, figure
from kgen.plan import features
from kgen.plan.features import Feature
from kgen.spec.loader import load_specs

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs/cost.md"
FOUR = (
    "docs/cost/mha_128.yaml",
    "specs/llama3_405b.yaml",
    "docs/cost/deepseek_v3.yaml",
    "docs/cost/mqa_128.yaml",
)


def kgen(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


@pytest.mark.usefixtures("here")
def test_the_text_is_that_of_the_docs() -> None:
    block = re.search(r"```console\n\$ kgen (.*)\n([^`]*)```", DOCS.read_text())
    assert block is not None
    assert block[1].split() == ["cost", *FOUR, "--context", "128000"]
    found = kgen(*block[1].split())
    assert found.exit_code == 0
    assert found.stdout == block[2]
    for ratio in ("16.00", "3.56", "2.25"):
        assert f"  {ratio}\n" in found.stdout


def test_the_docs_have_the_table_of_devices() -> None:
    text = DOCS.read_text().partition("<!-- devices:start -->\n")[2].partition("\n<!-- devices:end -->")[0]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    assert shown == [
        [
            f"`{key}`",
            one.name,
            f"{one.memory_tb_s:g}",
            *(f"{one.tflop_s[dtype]:g}" for dtype in ("bfloat16", "float16", "tf32", "float32")),
            one.source,
        ]
        for key, one in devices().items()
    ]


@pytest.mark.usefixtures("here")
def test_json_has_the_comparison_and_exact_figures() -> None:
    found = kgen("cost", *FOUR, "--context", "128000", "--layers", "126", "--format", "json")
    told = json.loads(found.stdout)
    assert told["workload"] == {"batch": 1, "context": 128_000, "queries": 128_000}
    assert [(row["spec"], row["times_the_next"]) for row in told["comparison"]] == [
        ("mha_128", 16.0),
        ("llama3_405b", 2048 / 576),
        ("deepseek_v3", 2.25),
        ("mqa_128", None),
    ]
    llama = told["specs"][1]
    assert llama["cache"] == {
        "elements_per_token": 2048,
        "bytes_per_token": 4096,
        "held_bytes": 524_288_000,
        "seen_bytes": 524_288_000,
        "model": {"bytes_per_token": 126 * 4096, "held_bytes": 126 * 524_288_000},
    }
    decode, prefill = llama["kernels"]
    assert decode == {
        "kernel": "decode",
        "kind": "decode",
        "queries": 1,
        "pairs": 128_000,
        "flops": 2 * 128 * 128_000 * 256,
        "read_bytes": 524_288_000 + 128 * 128 * 2,
        "written_bytes": 128 * 128 * 2 + 128 * 4,
        "bytes": 524_354_048,
        "intensity": pytest.approx(15.998, abs=1e-3),
        "floor_seconds": pytest.approx(524_354_048 / 4.8e12),
        "bound": "memory",
    }
    assert (prefill["pairs"], prefill["bound"]) == (128_000 * 128_001 // 2, "compute")


def test_batch_queries_and_measured_rates(project: Path) -> None:
    arguments = ("cost", "specs/one.yaml", "--context", "1000", "--batch", "3", "--queries", "10", "--device", "A100")
    given = (*arguments, "--bandwidth-tb-s", "0.5", "--tflop-s", "100", "--format", "json")
    by_datasheet, by_hand = (json.loads(kgen(*some).stdout) for some in ((*arguments, "--format", "json"), given))
    assert by_datasheet["workload"] == {"batch": 3, "context": 1000, "queries": 10}
    prefill = by_datasheet["specs"][0]["kernels"][1]
    assert prefill["pairs"] == sum(range(991, 1001))
    assert prefill["floor_seconds"] == pytest.approx(prefill["bytes"] / 2.039e12)
    assert by_hand["specs"][0]["kernels"][1]["floor_seconds"] == pytest.approx(prefill["bytes"] / 0.5e12)
    assert by_hand["device"]["measured"] == {"bandwidth_tb_s": 0.5, "tflop_s": 100.0}
    assert by_hand["specs"][0]["peak_tflop_s"] == 100.0
    head = kgen(*given[:-2]).stdout.splitlines()[0]
    assert head == "NVIDIA A100 80GB SXM: 0.5 TB/s (measured), 100 TFLOP/s in float16 (measured)"


def test_what_is_not_generated_is_counted_and_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Feature("KG398", "two KV heads", "", lambda _: iter([("attention", "num_kv_heads")]))
    causal = Feature("KG399", "causal masks", "", lambda _: iter([("attention", "mask")]))
    monkeypatch.setattr(features, "NOT_YET", (heads, causal))
    found = kgen("cost", "specs/one.yaml", "--format", "json")
    assert found.exit_code == 0
    assert found.stderr == "specs/one.yaml: not generated yet: two KV heads, causal masks\n"
    (told,) = json.loads(found.stdout)["specs"]
    assert told["not_generated"] == ["two KV heads", "causal masks"]
    assert told["cache"]["elements_per_token"] == 256


def test_without_arguments_all_specs_are_counted(project: Path) -> None:
    found = kgen("cost")
    assert (found.exit_code, found.stderr) == (0, "")
    assert "context 8,192, 8,192 query tokens" in found.stdout
    assert {"one", "two"} <= set(found.stdout.split())


def test_specs_of_several_folders_and_pairs_that_are_not_counted(project: Path) -> None:
    text = (project / "specs/one.yaml").read_text()
    other = project / "other.yaml"
    other.write_text(text.replace("name: one", "name: other").replace("{kind: causal}", "{kind: prefix_lm}"))
    found = kgen("cost", "specs/one.yaml", "other.yaml", "--layers", "4")
    assert found.exit_code == 0
    assert "4 LAYERS, A TOKEN" in found.stdout
    assert "not counted: pairs depend on the length of each sequence's prefix" in found.stdout
    told = json.loads(kgen("cost", "other.yaml", "--format", "json").stdout)
    assert [set(kernel) for kernel in told["specs"][0]["kernels"]] == [{"kernel", "kind", "uncounted"}] * 2
    assert told["specs"][0]["cache"]["seen_bytes"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "h300"), "--device h300: not in the table"),
        (("--bandwidth-tb-s", "0"), "--bandwidth-tb-s 0: expected a number above 0"),
        (("--tflop-s", "nan"), "--tflop-s nan: expected a number above 0"),
        (("--tflop-s", "inf"), "--tflop-s inf: expected a number above 0"),
        (("--context", "0"), "--context"),
        (("--batch", "2147483648"), "--batch"),
        (("--layers", "-1"), "--layers"),
        (("--plot", "a.pdf"), "--plot a.pdf: the name ends in .pdf, expected .png or .svg"),
        (("--plot", "missing/a.svg"), "--plot missing/a.svg: cannot be written: No such file or directory"),
        (("specs/three.yaml",), "specs/three.yaml: no such file"),
    ],
)
def test_input_that_cannot_be_used(project: Path, arguments: tuple[str, ...], words: str) -> None:
    found = kgen("cost", *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert words in re.sub(r"\s*\n\W*", " ", found.stderr)


def test_a_spec_that_is_wrong_is_refused(project: Path) -> None:
    (project / "specs/one.yaml").write_text("name: one\n")
    found = kgen("cost")
    assert found.exit_code == 2
    assert "specs/one.yaml:1:1: error[KG1" in found.stderr


def test_a_plot_without_matplotlib(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = kgen("cost", "--plot", "a.png")
    assert (found.exit_code, found.stdout) == (4, "")
    assert "--plot needs matplotlib, which is not installed: pip install 'kgen[plot]'" in found.stderr
    assert not (project / "a.png").exists()
    assert kgen("cost").exit_code == 0


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml")])
def test_a_plot(project: Path, name: str, magic: bytes) -> None:
    written = []
    for _ in range(2):
        found = kgen("cost", "--plot", name, "--layers", "2", "--format", "json")
        assert found.exit_code == 0
        assert found.stderr == f"wrote {name}\n"
        json.loads(found.stdout)
        written.append((project / name).read_bytes())
    assert written[0].startswith(magic)
    assert written[0] == written[1]
    if name == "a.SVG":
        for words in (b"Cache of 2 layers, batch 1", b">one<", b">two<", b"cache (bytes)"):
            assert words in written[0]


def test_a_plot_is_that_of_the_options(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.append((figure, path)))
    kgen("cost", "specs/one.yaml", "--plot", "a.png", "--layers", "7", "--batch", "3", "--context", "1000")
    kgen("cost", "specs/one.yaml", "--plot", "b.png", "--context", "1000")
    ends = [(path.name, figure.axes[0].lines[0].get_ydata()[-1]) for figure, path in drawn]
    assert ends == [("a.png", 7 * 3 * 1000 * 512), ("b.png", 1000 * 512)]


def test_the_curves_are_the_bytes(project: Path) -> None:
    spec = project / "specs/one.yaml"
    spec.write_text(spec.read_text().replace("{kind: causal}", "{kind: sliding_window, size: 100}"))
    loaded = load_specs([project / "specs"])
    windowed, causal = (curve(one.spec, 3, 4096, 5) for one in loaded)
    assert (causal.contexts[0], causal.contexts[-1]) == (16, 4096)
    assert causal.held == tuple(5 * 3 * tokens * 2 * 2 * 64 * 2 for tokens in causal.contexts)
    assert causal.seen is None
    assert windowed.seen == tuple(5 * 3 * min(tokens, 100) * 512 for tokens in windowed.contexts)
    (axes,) = figure([windowed, causal], "title").axes
    assert [(line.get_label(), tuple(line.get_ydata())) for line in axes.lines] == [
        ("one", windowed.held),
        ("one, seen by the newest token", windowed.seen),
        ("two", causal.held),
    ]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert curve(loaded[1].spec, 1, 1, 1).contexts == (1,)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (999, "999 B"),
        (1000, "1.000 kB"),
        (524_288_000, "524.3 MB"),
        (999_960, "1.000 MB"),
        (65_536_000_000_000, "65.54 TB"),
        (1.0923e-4, "109.2 uB"),
        (2.5, "2.500 B"),
        (3e-10, "0.3000 nB"),
        (12e21, "12000 EB"),
    ],
)
def test_quantities(value: float, shown: str) -> None:
    assert quantity(value, "B") == shown
