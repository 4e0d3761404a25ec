"""`kgen bench` on the GPU: a small layer in every layout, beside the peers that are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgen.bench import gpu, run, timing
from kgen.bench.peers import chosen as chosen_peers
from kgen.bench.record import KGEN, READ
from tests.bench_support import GROUPED, LENGTHS, spec_file, workload

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
TORCHS = ("cuDNN", "FA2", "FlexAttention")


def test_a_small_run_times_what_it_checked(tmp_path: Path) -> None:
    path = spec_file(tmp_path, GROUPED.replace("head_dim_qk: 16", "head_dim_qk: 64"), dtype="bfloat16")
    chosen = [
        workload(path, kernel, (512, 512), (512, 512) if kernel in ("bhsd", "bshd") else (1, 1))
        for kernel in ("bhsd", "bshd", "contiguous", "paged")
    ]
    chosen += [workload(path, kernel, (300, 200), (300, 200)) for kernel in ("padded", "ragged")]
    told: list[str] = []
    flushes = ("write", "read")
    peers = chosen_peers("default,flex")
    found = run.run(chosen, run.Settings(2, flushes, peers), run.machine(flushes), told.append)
    assert set(LENGTHS) >= {one.kernel for one in chosen}
    assert len(found.rows) == len(chosen)
    for row in found.rows:
        assert row.cells[KGEN].status == "measured", (row.id, row.cells[KGEN].reason)
        assert set(row.cells[KGEN].times) == set(flushes)
        assert not [name for name, cell in row.cells.items() if cell.status == "wrong"], row.id
    for row in found.rows[2:4]:
        assert READ in row.cells
        assert row.cells["head a program"].times
    assert set(found.rows[0].cells) >= set(TORCHS)
    assert all(found.rows[0].cells[name].times for name in TORCHS), [found.rows[0].cells[name] for name in TORCHS]
    for ceilings in found.ceilings.values():
        assert ceilings.read_tb_s is not None
        assert ceilings.matmul_tflop_s is not None


def test_the_clock_sees_that_twice_the_bytes_take_about_twice_as_long() -> None:
    device = gpu.require()
    clock = gpu.GpuClock("write", device)
    once, twice = (gpu.captured(run.traffic.read(nbytes, device)) for nbytes in (1 << 29, 1 << 30))
    replays = {"once": once.replay, "twice": twice.replay}
    found = timing.interleaved(replays, clock, 3, lambda name, error: pytest.fail(str(error)))
    assert 1.6 < found["twice"].us / found["once"].us < 2.4
