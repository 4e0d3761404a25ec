"""`kgen bench` without a GPU: statistics, the order of rounds, workloads, and what a failure costs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kgen.bench import gpu, record, report, timing, traffic, workloads
from kgen.bench import run as bench_run
from kgen.bench.gpu import Captured
from kgen.bench.peers import Peer
from kgen.bench.record import KGEN, READ, Record
from kgen.bench.run import Settings, run
from kgen.bench.timing import GpuLostError, Timing
from kgen.bench.workloads import Workload
from kgen.errors import InputError
from kgen.models import accounting
from kgen.resources import shipped
from tests.bench_support import GROUPED, LATENT, FakeClock, load, machine, spec_file, stand_ins, workload, wrong

# Statistics and turns.


def test_a_timing_is_the_median_of_the_rounds_and_the_quartiles_of_all_samples() -> None:
    found = timing.summary([[10.0, 30.0, 20.0], [40.0, 60.0, 50.0], [70.0, 90.0, 80.0]])
    assert found == Timing(us=50.0, q1=30.0, q3=70.0, least=20.0, most=80.0, samples=9)
    assert timing.summary([[7.0]]) == Timing(7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_an_outlier_moves_neither_median_nor_quartiles() -> None:
    quiet = timing.summary([[10.0] * 9] * 5)
    loud = timing.summary([[10.0] * 8 + [1e6]] * 5)
    assert (loud.us, loud.q1, loud.q3) == (quiet.us, quiet.q1, quiet.q3)


def neighbours(rows: list[list[int]]) -> Counter[tuple[int, int]]:
    return Counter(pair for row in rows for pair in itertools.pairwise(row))


@pytest.mark.parametrize("n", range(1, 13))
def test_each_candidate_follows_each_other_one_equally_often(n: int) -> None:
    square = n * (1 + n % 2)
    order = list(timing.turns(range(n), 2 * square))
    rows = [order[start : start + n] for start in range(0, len(order), n)]
    assert len(rows) == 2 * square
    assert all(sorted(row) == list(range(n)) for row in rows), "every key once a round"
    assert rows[:square] == rows[square:]
    every = itertools.permutations(range(n), 2)
    assert neighbours(rows[:square]) == dict.fromkeys(every, square // n)
    for place in range(n):
        assert Counter(row[place] for row in rows[:square]) == dict.fromkeys(range(n), square // n)


@pytest.mark.parametrize("n", range(3, 13))
def test_fewer_rounds_repeat_no_neighbours(n: int) -> None:
    rows = timing.williams(n)
    assert set(neighbours(rows[: n - 1]).values()) == {1}
    assert all(before[-1] != after[0] for before, after in itertools.pairwise([*rows, rows[0]]))


def test_no_candidates_take_no_turns() -> None:
    assert list(timing.turns((), 3)) == []


def test_a_round_takes_about_as_long_for_every_candidate() -> None:
    assert timing.repeats(500.0) == 50
    assert timing.repeats(5.0) == timing.MOST
    assert timing.repeats(1e5) == timing.FEWEST
    assert timing.repeats(0.0) == timing.MOST


def test_rounds_follow_the_turns_with_each_candidates_number_of_samples() -> None:
    clock = FakeClock()
    replays = {"slow": lambda: ("slow", 5000.0), "fast": lambda: ("fast", 500.0)}
    found = timing.interleaved(replays, clock, 3, failed=lambda *_: pytest.fail("none fails"))
    assert clock.order[:2] == [("slow", 3), ("fast", 3)]
    # Of a turn the first 5 ms are not counted: one sample of the slow one, ten of the fast one.
    rounds = [("slow", 6), ("fast", 60), ("fast", 60), ("slow", 6), ("slow", 6), ("fast", 60)]
    assert clock.order[2:] == rounds
    assert (found["slow"].us, found["fast"].us, found["fast"].samples) == (5000.0, 500.0, 150)


def test_the_beginning_of_a_turn_is_not_counted() -> None:
    class Cold(FakeClock):
        def samples(self, replay: Callable[[], Any], count: int) -> list[float]:
            return [1.0] * 5 + [1000.0] * (count - 5)

    found = timing.interleaved({"one": lambda: None}, Cold(), 2, failed=lambda *_: pytest.fail("none fails"))
    # The estimate is of cold samples: the most that may be.
    assert (found["one"].us, found["one"].q1, found["one"].samples) == (1000.0, 1000.0, 2 * timing.MOST)


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
    everything = workloads.of_spec(loaded, None, (9, 5), None)
    assert {one.kernel: one.qo_lens for one in everything}["ragged"] == (9, 5)
    (one,) = workloads.of_spec(loaded, "paged", (9, 5), 3)
    assert (one.id, one.qo_lens) == ("layer.paged", (1, 1))
    with pytest.raises(InputError, match=r"--kernel nothing: .* has no such kernel to time; it has bhsd"):
        workloads.of_spec(loaded, "nothing", (9,), None)


# Runs, on the CPU.


@pytest.fixture
def fake_peers(monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, ...]:
    return stand_ins(monkeypatch)


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


@pytest.mark.triton
def test_the_expanded_form_is_timed_beside_an_absorbed_one_that_is_not_generated(tmp_path: Path) -> None:
    path = spec_file(tmp_path, LATENT)
    (row,) = run([workload(path, "expanded")], Settings(1, ("write",), ()), machine(), lambda _: None).rows
    assert (row.layer, row.cells[KGEN].status) == ("MLA 16 h 32/16 causal", "measured")


@pytest.mark.triton
def test_chunks_of_a_paged_cache_are_timed(tmp_path: Path) -> None:
    (row,) = run(small(tmp_path, "ragged_paged"), Settings(1, ("write",), ()), machine(), lambda _: None).rows
    assert (row.shape, row.cells[KGEN].status) == ("B2 M3 L5-9", "measured")


def test_a_wrong_kernel_of_ours_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "_generated", lambda problem, _: wrong(problem))
    found = run(small(tmp_path, "contiguous"), Settings(2, ("write",), ()), machine(), lambda _: None)
    (row,) = found.rows
    assert row.cells[KGEN].status == "wrong"
    assert re.match(r"a sampled row is wrong by .* of its size, allowed is 0.0001", row.cells[KGEN].reason or "")
    assert row.timing(KGEN, "write") is None


@pytest.mark.triton
def test_a_spare_peer_is_timed_where_no_other_is(tmp_path: Path, fake_peers: Sequence[Peer]) -> None:
    named = {peer.name: peer for peer in fake_peers}
    spare = dataclasses.replace(named["good"], is_spare=True)
    other = dataclasses.replace(named["good"], name="other")
    for before, status in ((named["picky"], "measured"), (other, "skipped")):
        settings = Settings(1, ("write",), (before, spare))
        found = run(small(tmp_path, "contiguous"), settings, machine(), lambda _: None)
        assert found.rows[0].cells["good"].status == status


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


# The GPU's side, with stand-ins for CUDA's events and graphs.


class FakeCuda:
    """Notes what is enqueued, in its order; a graph's replay notes itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        cuda = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                cuda.order.append("event")

            def elapsed_time(self, other: Event) -> float:
                return 0.25

        class Graph:
            def replay(self) -> None:
                cuda.order.append("replay")

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: cuda.order.append("sync"))
        monkeypatch.setattr(gpu, "FLUSHES", {"write": 4096, "read": 4 * traffic.BLOCK})


@pytest.mark.parametrize("flush", ["write", "read"])
def test_a_sample_is_a_replay_between_events_after_a_flush(monkeypatch: pytest.MonkeyPatch, flush: str) -> None:
    cuda = FakeCuda(monkeypatch)
    monkeypatch.setattr(traffic, "read", lambda nbytes, device: lambda: cuda.order.append(f"read {nbytes}"))
    monkeypatch.setattr(torch.Tensor, "zero_", lambda x: cuda.order.append(f"write {x.nbytes}"))
    clock = gpu.GpuClock(flush, torch.device("cpu"))
    captured = gpu.captured(lambda: cuda.order.append("call"))
    assert cuda.order == [*["call"] * gpu.WARM_UP, "sync", "call"]
    cuda.order.clear()
    assert clock.samples(captured.replay, 2) == [250.0, 250.0]
    flushed = {"write": "write 4096", "read": f"read {4 * traffic.BLOCK}"}[flush]
    assert cuda.order == ["replay", *[flushed, "event", "replay", "event"] * 2, "sync"]


def test_a_fault_that_outlives_its_call_is_a_lost_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)

    def fails() -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")

    clock = gpu.GpuClock("write", torch.device("cpu"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        clock.samples(fails, 1)
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(GpuLostError, match=r"lost to this process: RuntimeError: CUDA error: an illegal .* was enc"):
        clock.samples(fails, 1)
    assert cuda.order == ["sync"]


@pytest.mark.triton
def test_the_bare_read_reads_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=1))
    call = traffic.read(4 * traffic.BLOCK * 11 + 5, torch.device("cpu"))
    count = 11 * traffic.BLOCK
    assert int(call().sum()) == count * (count - 1) // 2
    moved = traffic.copy(64, torch.device("cpu"))()
    assert moved.nbytes == 32


def test_the_record_tells_the_releases_that_are_installed() -> None:
    versions = gpu.versions()
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert set(versions) <= {"python", "cudnn", "cuda", *gpu.DISTRIBUTIONS}
