"""Records of `kgen bench`: their JSON, tables, plots and comparison; and the verb."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from kgen.bench import compare, plots, record, report, workloads
from kgen.bench import peers as peer_table
from kgen.bench import run as bench_run
from kgen.bench.peers import PEERS, Peer
from kgen.bench.record import KGEN, READ, Ceilings, Cell, Record, Row
from kgen.bench.timing import Timing
from kgen.cli import app
from kgen.errors import InputError, KgenError
from kgen.models.accounting import KernelCost
from kgen.resources import shipped
from tests.bench_support import GROUPED, FakeClock, machine, spec_file, stand_ins

REPOSITORY = Path(__file__).resolve().parent.parent


def kgen(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def fake_peers(monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, ...]:
    return stand_ins(monkeypatch)


def row(name: str, us: float, peers: dict[str, float], kind: str = "decode", **changes: Any) -> Row:
    def measured(value: float) -> Cell:
        return Cell("measured", error=1e-3, times={"write": Timing(value, value - 1, value + 1, value, value, 70)})

    cells = {KGEN: measured(us), **{peer: measured(value) for peer, value in peers.items()}}
    work = KernelCost(1, 8192, 8_589_934_592, 2_147_483_648, 1_000_000)
    fields: dict[str, Any] = {
        "group": "core",
        "spec": "specs/llama3_8b.yaml",
        "kernel": kind,
        "layer": "32/8 d128",
        "shape": "B64 L8192",
        "dtype": "bfloat16",
        "batch": 64,
        "queries": 1,
        "context": 8192,
        "tokens": 524288,
    }
    return Row(id=name, kind=kind, work=work, cells=cells, **{**fields, **changes})


def a_record(*rows: Row, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "date": "2026-01-02",
        "kgen": "1",
        "device": {"name": "A GPU", "driver": "1.2"},
        "versions": {"torch": "3", "triton": "4"},
        "rounds": 7,
        "flushes": ("write",),
        "baselines": ("head a program",),
        "ceilings": {"write": Ceilings(4.0, 3.9, 700.0)},
    }
    return Record(rows=rows, **{**fields, **changes})


def test_a_record_comes_back_from_its_json(tmp_path: Path) -> None:
    before = a_record(
        dataclasses.replace(row("a2", 500.0, {"FA3": 510.0}), work=None),
        row("g1", 1000.0, {}, "prefill"),
        left_out={"h": "why"},
    )
    path = tmp_path / "new/record.json"
    record.write(before, path)
    assert record.read(path) == before
    assert json.loads(path.read_text())["schema"] == record.SCHEMA


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "is no JSON"),
        ("[]", "its schema is None"),
        ('{"schema": 999}', "its schema is 999"),
        ('{"schema": 1}', "no whole record .* KeyError"),
    ],
)
def test_a_file_that_is_no_record_is_told(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        record.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        record.read(tmp_path / "missing.json")


def test_the_best_peer_is_neither_a_baseline_nor_the_bare_read() -> None:
    one = row("a2", 500.0, {"FA3": 510.0, "cuDNN": 495.0, READ: 480.0, "head a program": 400.0})
    best = a_record(one).best_peer(one, "write")
    assert best is not None
    assert best[0] == "cuDNN"
    assert a_record(one).best_peer(one, "read") is None


def test_the_table_has_times_rates_and_parts_of_the_floor() -> None:
    one = row("a2", 600.0, {"FA3": 510.0, READ: 530.0})
    marked = dataclasses.replace(one.cells["FA3"], note="a contiguous copy")
    failed = Cell("failed", "RuntimeError: no")
    one = dataclasses.replace(one, cells={**one.cells, "FA3": marked, "FA2": failed, "FA4": Cell("missing", "gone")})
    text = report.markdown(a_record(one, left_out={"h": "the time budget of 9 s was spent"}))
    cells = "32/8 d128 | B64 L8192 | 600.0 (599.0 to 601.0) | 3.58 TB/s | 90% | 530.0 | 510.0* | 0.85 |"
    assert f"| a2: llama3_8b decode | {cells}" in text
    assert "A GPU, driver 1.2, 2026-01-02, torch 3, triton 4." in text
    assert "a read of 2 GiB at 4.00 TB/s, a copy at 3.90 TB/s, an 8192³ bfloat16 matrix product at 700 TFLOP/s" in text
    assert "- \\* FA3 got a contiguous copy (a2)." in text
    assert "- FA2 failed: RuntimeError: no (a2)." in text
    assert "- FA4 did not load: gone." in text
    assert "- Not measured: h: the time budget of 9 s was spent." in text


def test_what_is_not_generated_has_its_reason_below_the_table() -> None:
    one = dataclasses.replace(row("e1", 1.0, {"FlashMLA": 81.0}), layer="MLA 128 h 512+64")
    one = dataclasses.replace(one, cells={**one.cells, KGEN: Cell("not generated", "latent layers (MLA)")})
    text = report.markdown(a_record(one))
    assert "| MLA 128 h 512+64 | B64 L8192 | — | — | — | — | 81.0 | — |" in text
    assert "- kgen not generated: latent layers (MLA) (e1)." in text


def test_the_plots_are_the_same_from_the_same_record(tmp_path: Path) -> None:
    one = a_record(
        row("a2", 600.0, {"FA3": 510.0, "head a program": 900.0}), row("g1", 1000.0, {"FA3": 800.0}, "prefill")
    )
    first = {path.name: path.read_bytes() for path in plots.draw(one, tmp_path / "h200.json")}
    assert set(first) == {"h200_roofline.svg", "h200_bars.svg"}
    assert {path.name: path.read_bytes() for path in plots.draw(one, tmp_path / "h200.json")} == first
    roofline = first["h200_roofline.svg"].decode()
    assert all(text in roofline for text in (">a2<", ">g1<", "4.00 TB/s and 700 TFLOP/s", "kgen, prefill"))
    assert ">head a program<" in first["h200_bars.svg"].decode()
    assert plots.draw(a_record(ceilings={}), tmp_path / "h200.json") == ()


def test_bars_show_times_over_ours() -> None:
    figure = plots.bars(a_record(row("a2", 600.0, {"FA3": 510.0, "FA2": 900.0})))
    assert figure is not None
    ends = [patch.get_x() + patch.get_width() for patch in figure.axes[0].patches]
    assert sorted(ends) == pytest.approx([0.85, 1.5])


# Comparison.


def test_changes_are_of_the_same_workload_gpu_and_flush() -> None:
    old = a_record(row("a2", 500.0, {"FA3": 500.0}), row("b", 10.0, {}), row("c", 10.0, {}, shape="B1 L1"))
    new = a_record(row("a2", 600.0, {"FA3": 550.0}), row("b", 10.2, {}), row("c", 99.0, {}), row("d", 1.0, {}))
    a2, b = compare.changes(old, new)
    assert (a2.id, a2.ratio, a2.peer_ratio) == ("a2", pytest.approx(1.2), pytest.approx(1.1))
    assert b.peer_ratio is None
    assert a2.is_slower(0.1)
    assert not a2.is_slower(0.21)
    assert not b.is_slower(0.05)
    with pytest.raises(InputError, match=r"old record is of an A GPU, this one of an Other"):
        compare.changes(old, a_record(row("a2", 1.0, {}), device={"name": "Other"}))
    with pytest.raises(InputError, match="no workload in common"):
        compare.changes(old, a_record(row("z", 1.0, {})))


# The verb.


@pytest.fixture
def two_records(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    record.write(a_record(row("a2", 500.0, {"FA3": 500.0})), old)
    record.write(a_record(row("a2", 530.0, {"FA3": 500.0})), new)
    return old, new


def test_comparing_ends_with_1_beyond_the_tolerance(two_records: tuple[Path, Path]) -> None:
    old, new = two_records
    found = kgen("bench", "--from", new, "--compare", old)
    assert found.exit_code == 1
    assert re.search(r"a2 +write +500.0 +530.0 +1.060 +1.000 +SLOWER\n1 of 1 slower by more than 5%", found.stdout)
    assert kgen("bench", "--from", new, "--compare", old, "--tolerance", "0.1").exit_code == 0
    assert kgen("bench", "--from", old, "--compare", new).exit_code == 0
    data = json.loads(kgen("bench", "--from", new, "--compare", old, "--format", "json").stdout)
    assert data["changes"][0]["ratio"] == pytest.approx(1.06)
    assert data["changes"][0]["slower"] is True
    assert data["rows"][0]["cells"]["FA3"]["times"]["write"]["us"] == 500.0


def test_a_record_is_reported_and_written_again_beside_its_table_and_plots(
    tmp_path: Path, two_records: tuple[Path, Path]
) -> None:
    out = tmp_path / "results/again.json"
    found = kgen("bench", "--from", two_records[0], "--out", out)
    assert found.exit_code == 0
    assert record.read(out) == record.read(two_records[0])
    assert (tmp_path / "results/again.md").read_text() == found.stdout
    written = {path.name for path in (tmp_path / "results").iterdir()}
    assert written == {"again.json", "again.md", "again_bars.svg", "again_roofline.svg"}


def test_a_record_in_which_our_kernel_was_wrong_ends_with_1(tmp_path: Path) -> None:
    one = row("a2", 500.0, {})
    path = tmp_path / "record.json"
    record.write(a_record(dataclasses.replace(one, cells={KGEN: Cell("wrong", "by 1")})), path)
    assert kgen("bench", "--from", path).exit_code == 1


@pytest.mark.triton
def test_the_verb_measures_what_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_peers: Sequence[Peer]
) -> None:
    monkeypatch.setattr(bench_run, "machine", lambda flushes: machine({flush: FakeClock() for flush in flushes}))
    monkeypatch.setattr(peer_table, "PEERS", fake_peers)
    path, out = spec_file(tmp_path, GROUPED), tmp_path / "out.json"
    sizes = ("--batch", "3", "--context", "9", "--least-context", "5")
    found = kgen("bench", path, "--kernel", "paged", *sizes, "--flush", "both", "--peers", "good", "--out", out)
    assert found.exit_code == 0, found.stderr
    (one,) = record.read(out).rows
    assert (one.id, one.shape, one.tokens) == ("layer.paged", "B3 L5-9", 21)
    assert set(one.cells) == {KGEN, "good", READ}
    assert set(one.cells["good"].times) == {"write", "read"}
    assert "layer.paged" in found.stderr
    alone = kgen("bench", f"{tmp_path}/", "--kernel", "paged", "--context", "9", "--no-peers", "--format", "json")
    assert set(json.loads(alone.stdout)["rows"][0]["cells"]) == {KGEN, READ}


def test_plots_that_fail_cost_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_records: tuple[Path, Path]
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(plots, "draw", fails)
    found = kgen("bench", "--from", two_records[0], "--out", tmp_path / "again.json")
    assert found.exit_code == 0
    assert "| a2: llama3_8b decode |" in found.stdout
    assert "no plots: RuntimeError: no font" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("a1", "--batch", "2"), "--batch: for a spec of your own"),
        (("nothing",), "no workload is called nothing"),
        (("a1", "--peers", "fa9"), "--peers fa9: fa9 is no peer; there are default, all, cudnn"),
        (("a1", "--from", "x.json"), "--from reports a record as it is"),
        (("missing.yaml",), "missing.yaml"),
    ],
)
def test_wrong_arguments_end_with_2(arguments: tuple[str, ...], why: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    found = kgen("bench", *arguments)
    assert found.exit_code == 2
    assert why in found.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_4_and_says_what_needs_none() -> None:
    found = kgen("bench", "a1")
    assert found.exit_code == 4
    assert "needs a GPU" in found.stderr
    listed = kgen("bench", "--list")
    assert listed.exit_code == 0
    assert "flashinfer" in listed.stdout
    data = json.loads(kgen("bench", "--list", "--format", "json").stdout)
    assert [one["id"] for one in data["workloads"]] == [one.id for one in workloads.WORKLOADS]


def test_the_docs_have_every_peer_and_every_option() -> None:
    text = (REPOSITORY / "docs/bench.md").read_text()
    peers = text.partition("| key | peer | times |")[2].partition("\n\n")[0]
    keys = {key for line in peers.splitlines()[2:] for key in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])}
    assert keys == {peer.key for peer in PEERS}
    options = set(re.findall(r"--[a-z-]+", kgen("bench", "--help").stdout)) - {"--help", "--show-completion"}
    assert options <= set(re.findall(r"--[a-z-]+", text))


def test_peers_are_chosen_by_key() -> None:
    assert [peer.key for peer in peer_table.chosen("fa3, cudnn")] == ["cudnn", "fa3"]
    assert [peer.name for peer in peer_table.chosen("all")] == [peer.name for peer in PEERS]
    assert not any(peer.is_spare for peer in (*peer_table.chosen("all"), *peer_table.chosen("default,flex")))
    assert [peer.key for peer in peer_table.chosen("default") if peer.is_spare] == ["flex"]
    defaults = peer_table.chosen("default")
    assert "flashinfer" not in {peer.key for peer in defaults}
    assert peer_table.chosen("default,flashinfer") == PEERS
    assert peer_table.chosen("plain") == tuple(peer for peer in PEERS if peer.key == "plain")
    assert {peer.place.partition(":")[0] for peer in PEERS} == {
        path.stem for path in (REPOSITORY / "kgen/bench/peers").glob("*.py") if path.stem not in ("__init__", "shapes")
    }


def test_a_shipped_spec_that_is_missing_is_a_fault_of_the_installation() -> None:
    with pytest.raises(KgenError, match=r"specs/no_such.yaml is missing"):
        shipped("specs/no_such.yaml")
