"""`kgen bench` without a GPU: statistics, order of rounds, what a failure costs, records, tables, plots, the verb."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from kgen.bench import compare, plots, record, report, timing, workloads
from kgen.bench import peers as peer_table
from kgen.bench import run as bench_run
from kgen.bench.gpu import Captured
from kgen.bench.inputs import Problem, UnsupportedError
from kgen.bench.peers import PEERS, Candidate, Peer
from kgen.bench.record import KGEN, READ, Ceilings, Cell, Record, Row
from kgen.bench.run import Machine, Settings, run
from kgen.bench.timing import GpuLostError, Timing
from kgen.bench.workloads import Workload
from kgen.cli import app
from kgen.errors import InputError, KgenError
from kgen.models import accounting
from kgen.models.accounting import KernelCost
from kgen.resources import shipped
from tests.bench_support import GROUPED, load, right, spec_file, workload

REPOSITORY = Path(__file__).resolve().parent.parent


def kgen(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


# Statistics and turns.


def test_a_timing_is_the_median_of_the_rounds_and_the_quartiles_of_all_samples() -> None:
    found = timing.summary([[10.0, 30.0, 20.0], [40.0, 60.0, 50.0], [70.0, 90.0, 80.0]])
    assert found == Timing(us=50.0, q1=30.0, q3=70.0, least=20.0, most=80.0, samples=9)
    assert timing.summary([[7.0]]) == Timing(7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_an_outlier_moves_neither_median_nor_quartiles() -> None:
    quiet = timing.summary([[10.0] * 9] * 5)
    loud = timing.summary([[10.0] * 8 + [1e6]] * 5)
    assert (loud.us, loud.q1, loud.q3) == (quiet.us, quiet.q1, quiet.q3)


def test_turns_interleave_and_rotate() -> None:
    assert list(timing.turns("abc", 4)) == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]
    assert list(timing.turns((), 3)) == []


def test_a_round_takes_about_as_long_for_every_candidate() -> None:
    assert timing.repeats(500.0) == 50
    assert timing.repeats(5.0) == timing.MOST
    assert timing.repeats(1e5) == timing.FEWEST
    assert timing.repeats(0.0) == timing.MOST


class FakeClock:
    """Times replays that are functions of the number of their call; notes the order."""

    def __init__(self) -> None:
        self.order: list[tuple[Any, int]] = []

    def samples(self, replay: Callable[[], Any], count: int) -> list[float]:
        found = replay()
        self.order.append((found[0], count))
        return [found[1]] * count


def test_rounds_follow_the_turns_with_each_candidates_number_of_samples() -> None:
    clock = FakeClock()
    replays = {"slow": lambda: ("slow", 5000.0), "fast": lambda: ("fast", 500.0)}
    found = timing.interleaved(replays, clock, 3, failed=lambda *_: pytest.fail("none fails"))
    assert clock.order[:2] == [("slow", 3), ("fast", 3)]
    rounds = [("slow", 5), ("fast", 50), ("fast", 50), ("slow", 5), ("slow", 5), ("fast", 50)]
    assert clock.order[2:] == rounds
    assert (found["slow"].us, found["fast"].us, found["fast"].samples) == (5000.0, 500.0, 150)


def test_a_candidate_that_fails_in_a_late_round_costs_itself_alone() -> None:
    calls = itertools.count()

    def bad() -> tuple[str, float]:
        if next(calls) == 2:
            raise RuntimeError("late")
        return "bad", 9.0

    failures: list[tuple[str, str]] = []
    found = timing.interleaved(
        {"bad": bad, "good": lambda: ("good", 5.0)},
        FakeClock(),
        4,
        failed=lambda name, error: failures.append((name, str(error))),
    )
    assert failures == [("bad", "late")]
    assert set(found) == {"good"}
    assert found["good"].samples == 4 * timing.MOST


# Workloads.


def test_every_workload_is_a_kernel_of_a_spec_that_is_there() -> None:
    assert len({one.id for one in workloads.WORKLOADS}) == len(workloads.WORKLOADS)
    for one in workloads.WORKLOADS:
        spec = load(shipped(one.spec)).spec
        assert spec.kernels[one.kernel].kind in ("prefill", "decode"), one.id
        assert one.batch == len(one.qo_lens)
        assert workloads.cost(spec, one).flops > 0
    ids = {one.id for one in workloads.WORKLOADS}
    assert ids >= {
        "a1",
        "a2",
        "b",
        "c",
        "d",
        "f1",
        "f16",
        "e1",
        "e2",
        "e3",
        "e4",
        "g1",
        "g3",
        "g5",
        "h",
        "j1",
        "j2",
        "k",
    }


def test_the_floors_are_those_that_the_bars_are_stated_in() -> None:
    """Bytes at 4.44 TB/s and operations at 790 TFLOP/s, to the microsecond."""
    floors = {"a1": 121, "a2": 484, "b": 484, "c": 30, "d": 242, "e4": 137, "g1": 696, "g3": 2784, "g5": 345, "k": 2784}
    for name, us in floors.items():
        (one,) = workloads.find([name])
        cost = workloads.cost(load(shipped(one.spec)).spec, one)
        bound = max(cost.read_bytes / 4.44e12, cost.flops / 790e12) * 1e6
        assert bound == pytest.approx(us, rel=0.015), name


def test_a_ragged_batch_costs_what_its_requests_cost() -> None:
    (one,) = workloads.find(["r-prefill"])
    spec = load(shipped(one.spec)).spec
    each = [
        accounting.kernel_cost(
            spec.attention, spec.kernels["ragged"], spec.dtype, accounting.Workload(1, keys, queries)
        )
        for keys, queries in zip(one.seq_lens, one.qo_lens, strict=True)
    ]
    total = workloads.cost(spec, one)
    assert total.flops == sum(cost.flops for cost in each)
    assert total.bytes == sum(cost.bytes for cost in each)
    assert total.pairs == sum(cost.pairs for cost in each)


def test_lengths_are_spread_and_shuffled() -> None:
    lengths = workloads.spread_lengths(96, 1024, 8192)
    assert (min(lengths), max(lengths), len(lengths)) == (1024, 8192, 96)
    assert list(lengths) != sorted(lengths)
    assert lengths == workloads.spread_lengths(96, 1024, 8192)
    assert workloads.spread_lengths(1, 5, 9) == (9,)


def test_names_are_found_once_and_unknown_ones_are_all_told() -> None:
    assert [one.id for one in workloads.find(["a2", "a1", "a2"])] == ["a2", "a1"]
    assert {one.group for one in workloads.find(["models"])} == {"models"}
    with pytest.raises(InputError, match="called zz, yy; there are a1, a2"):
        workloads.find(["a1", "zz", "yy"])


def test_a_spec_of_the_users_own(tmp_path: Path) -> None:
    path = spec_file(tmp_path, GROUPED)
    loaded = load(path)
    everything = workloads.of_spec(loaded, path, None, (9, 5), None)
    assert {one.kernel: one.qo_lens for one in everything}["ragged"] == (9, 5)
    (one,) = workloads.of_spec(loaded, path, "paged", (9, 5), 3)
    assert (one.id, one.qo_lens) == ("layer.paged", (1, 1))
    with pytest.raises(InputError, match=r"--kernel nothing: .* has no such kernel to time; it has bhsd"):
        workloads.of_spec(loaded, path, "nothing", (9,), None)


# Runs, on the CPU.


def good(problem: Problem) -> Candidate:
    out = right(problem)
    return Candidate(lambda: out, problem.results, "a copy")


def wrong(problem: Problem) -> Candidate:
    out = right(problem)
    out += 1.0
    return Candidate(lambda: out, problem.results)


def absent(_: Problem) -> Candidate:
    raise ModuleNotFoundError("No module named 'absent'")


def picky(_: Problem) -> Candidate:
    raise UnsupportedError("takes heads of another width")


def broken(_: Problem) -> Candidate:
    raise SystemExit("a library that ends the process\nin two lines")


FAKES = (good, wrong, absent, picky, broken)


@pytest.fixture
def fake_peers(monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, ...]:
    loaders = {f"fakes:{loader.__name__}": loader for loader in FAKES}
    monkeypatch.setattr(Peer, "prepare", lambda peer, problem: loaders[peer.place](problem))
    return tuple(Peer(loader.__name__, loader.__name__, f"fakes:{loader.__name__}") for loader in FAKES)


def machine(clocks: dict[str, Any] | None = None, **changes: Any) -> Machine:
    def captured(call: Callable[[], Any]) -> Captured:
        result = call()
        out = result.clone() if isinstance(result, torch.Tensor) else result

        def replay() -> tuple[str, float]:
            if isinstance(out, torch.Tensor):
                out.copy_(call())
            return "", 100.0

        return Captured(replay, out, call)

    on = Machine(
        device=torch.device("cpu"),
        clocks=clocks or {"write": FakeClock()},
        captured=captured,
        read=lambda nbytes: lambda: nbytes,
        ceiling_calls=lambda: {name: lambda: None for name in ("read", "copy", "matmul")},
        raise_if_lost=lambda error: None,
        facts={"name": "a GPU of the test"},
        versions={"torch": "1", "triton": "2"},
    )
    return dataclasses.replace(on, **changes)


def small(folder: Path, *kernels: str) -> list[Workload]:
    path = spec_file(folder, GROUPED)
    return [workload(path, kernel) for kernel in kernels]


@pytest.mark.triton
def test_a_peer_that_fails_costs_its_own_cell(tmp_path: Path, fake_peers: Sequence[Peer]) -> None:
    told: list[str] = []
    found = run(small(tmp_path, "contiguous", "paged"), Settings(2, ("write",), fake_peers), machine(), told.append)
    assert [row.id for row in found.rows] == ["layer.contiguous", "layer.paged"]
    for row in found.rows:
        statuses = {name: cell.status for name, cell in row.cells.items()}
        assert statuses == {
            KGEN: "measured",
            "good": "measured",
            "wrong": "wrong",
            "absent": "missing",
            "picky": "unsupported",
            "broken": "failed",
            READ: "measured",
        }
        assert set(row.cells[KGEN].times) == {"write"}
        assert row.cells[KGEN].error is not None
        assert row.cells[KGEN].error < 1e-5
        assert row.cells["good"].note == "a copy"
        assert row.cells["wrong"].times == {}
        assert row.cells["broken"].reason == "SystemExit: a library that ends the process in two lines"
    assert [line for line in told if "absent" in line] == [
        "absent is left out: ModuleNotFoundError: No module named 'absent'"
    ]
    assert sum("broken: failed" in line for line in told) == 2
    assert all("\n" not in line for line in told)
    assert found.ceilings["write"].read_tb_s == pytest.approx((2 << 30) / 100e6)
    assert found.ceilings["write"].matmul_tflop_s == pytest.approx(2 * 8192**3 / 100e6)


def test_a_wrong_kernel_of_ours_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "_generated", lambda problem, _: wrong(problem))
    found = run(small(tmp_path, "contiguous"), Settings(2, ("write",), ()), machine(), lambda _: None)
    (row,) = found.rows
    assert row.cells[KGEN].status == "wrong"
    assert re.match(r"a sampled row is wrong by .* of its size, allowed is 0.0001", row.cells[KGEN].reason or "")
    assert row.timing(KGEN, "write") is None


@pytest.mark.triton
def test_what_the_timed_replays_wrote_is_checked_again(tmp_path: Path) -> None:
    """A graph that writes nothing leaves the NaN that its output is filled with before it is timed."""

    def captured(call: Callable[[], Any]) -> Captured:
        return Captured(lambda: ("", 100.0), call(), call)

    told: list[str] = []
    found = run(small(tmp_path, "contiguous"), Settings(1, ("write",), ()), machine(captured=captured), told.append)
    cell = found.rows[0].cells[KGEN]
    assert (cell.status, cell.error, cell.times) == ("wrong", None, {})
    assert cell.reason == "after the timed replays a sampled row is wrong by inf of its size, allowed is 0.0001"
    assert json.dumps(record.as_json(found), allow_nan=False)


@pytest.mark.triton
def test_a_workload_that_cannot_be_set_up_costs_its_own_row(tmp_path: Path) -> None:
    lengths = workload(spec_file(tmp_path, GROUPED), "bhsd", (9, 5), (9, 5))
    told: list[str] = []
    found = run([lengths, *small(tmp_path, "paged")], Settings(1, ("write",), ()), machine(), told.append)
    assert found.rows[0].cells[KGEN].status == "unsupported"
    assert found.rows[1].timing(KGEN, "write") is not None


@pytest.mark.triton
def test_both_flushes_are_kept_apart(tmp_path: Path) -> None:
    class Slow(FakeClock):
        def samples(self, replay: Callable[[], Any], count: int) -> list[float]:
            return [2 * us for us in super().samples(replay, count)]

    on = machine({"write": Slow(), "read": FakeClock()})
    found = run(small(tmp_path, "paged"), Settings(2, ("write", "read"), ()), on, lambda _: None)
    times = found.rows[0].cells[KGEN].times
    assert (times["write"].us, times["read"].us) == (200.0, 100.0)
    assert found.ceilings["write"].read_tb_s == pytest.approx(found.ceilings["read"].read_tb_s / 2)
    text = report.markdown(found)
    assert text.count("| layer.paged ") == 2


def test_a_time_budget_begins_no_more_and_says_what_is_left_out(tmp_path: Path) -> None:
    kept: list[Record] = []
    told: list[str] = []
    chosen = small(tmp_path, "contiguous", "paged")
    found = run(chosen, Settings(1, ("write",), (), seconds=0.0), machine(), told.append, kept.append)
    assert found.rows == ()
    assert list(found.left_out) == ["layer.contiguous", "layer.paged"]
    assert told == ["left out: layer.contiguous, layer.paged: the time budget of 0 s was spent"]
    assert kept[-1] == found


@pytest.mark.triton
def test_a_lost_gpu_ends_the_run_and_keeps_what_it_had(tmp_path: Path, fake_peers: Sequence[Peer]) -> None:
    def lost(error: BaseException) -> None:
        raise GpuLostError("the GPU is lost to this process: illegal access")

    kept: list[Record] = []
    broken = tuple(peer for peer in fake_peers if peer.name in ("good", "broken"))
    on = machine(raise_if_lost=lost)
    found = run(
        small(tmp_path, "contiguous", "paged"), Settings(1, ("write",), broken), on, lambda _: None, kept.append
    )
    assert len(found.rows) == 1
    assert found.left_out == {"layer.paged": "the GPU is lost to this process: illegal access"}
    assert kept[-1] == found


# Records, tables, plots.


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
    alone = kgen("bench", path, "--kernel", "paged", "--context", "9", "--no-peers", "--format", "json")
    assert set(json.loads(alone.stdout)["rows"][0]["cells"]) == {KGEN, READ}


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
    assert peer_table.chosen("all") == PEERS
    defaults = peer_table.chosen("default")
    assert "flashinfer" not in {peer.key for peer in defaults}
    assert peer_table.chosen("default,flashinfer") == PEERS
    assert {peer.place.partition(":")[0] for peer in PEERS} == {
        path.stem for path in (REPOSITORY / "kgen/bench/peers").glob("*.py") if path.stem not in ("__init__", "shapes")
    }


def test_a_shipped_spec_that_is_missing_is_a_fault_of_the_installation() -> None:
    with pytest.raises(KgenError, match=r"specs/no_such.yaml is missing"):
        shipped("specs/no_such.yaml")
