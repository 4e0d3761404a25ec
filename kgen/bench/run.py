"""A run: every workload is built, checked and timed beside its peers; what fails costs its own cell."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kgen import __version__
from kgen.bench import ceilings, check, gpu, inputs, traffic, workloads
from kgen.bench.inputs import UnsupportedError
from kgen.bench.kernels import Kernels, NotGeneratedError
from kgen.bench.peers import PEERS, Candidate
from kgen.bench.record import KGEN, READ, Ceilings, Cell, Record, Row
from kgen.bench.timing import ORDER, WARM_UP_MS, GpuLostError, interleaved
from kgen.models.visibility import UncountedMaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kgen.bench.check import Expected
    from kgen.bench.gpu import Captured
    from kgen.bench.inputs import Problem
    from kgen.bench.peers import Peer
    from kgen.bench.timing import Clock, Timing
    from kgen.bench.workloads import Workload
    from kgen.models.accounting import KernelCost
    from kgen.spec.model import SpecFile

    Replay = Callable[[], object]
    Told = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to measure. ``seconds`` is the time after which no workload is begun; ``None`` is no limit."""

    rounds: int
    flushes: tuple[str, ...]
    peers: tuple[Peer, ...]
    seconds: float | None = None


@dataclass(frozen=True)
class Machine:
    """What of the GPU a run uses, so that a test can stand in for it."""

    device: torch.device
    clocks: Mapping[str, Clock[Replay]]
    captured: Callable[[Callable[[], object]], Captured]
    read: Callable[[int], Callable[[], object]]
    ceiling_calls: Callable[[], Mapping[str, Callable[[], object]]]
    raise_if_lost: Callable[[BaseException], None]
    facts: Mapping[str, object]
    versions: Mapping[str, str]


def machine(flushes: Sequence[str]) -> Machine:
    """The GPU of this process. Raises ``MissingDependencyError`` where there is none."""
    device = gpu.require()
    return Machine(
        device=device,
        clocks={flush: gpu.GpuClock(flush, device) for flush in flushes},
        captured=gpu.captured,
        read=lambda nbytes: traffic.read(nbytes, device),
        ceiling_calls=lambda: ceilings.calls(device),
        raise_if_lost=gpu.raise_if_lost,
        facts=gpu.facts(device),
        versions=gpu.versions(),
    )


def run(
    chosen: Sequence[Workload],
    settings: Settings,
    on: Machine,
    told: Told,
    kept: Callable[[Record], None] = lambda _: None,
) -> Record:
    """Measure workloads in their order.

    ``told`` gets a line as things happen; ``kept`` the record so far after every workload, so that a run that is
    cut off leaves what it had.
    """
    start = time.monotonic()
    record = Record(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        kgen=__version__,
        device=on.facts,
        versions=on.versions,
        rounds=settings.rounds,
        flushes=settings.flushes,
        baselines=tuple(peer.name for peer in PEERS if peer.is_baseline),
        ceilings={},
        rows=(),
        order=ORDER,
        warm_up_ms=WARM_UP_MS,
    )
    bench = _Bench(settings, on, told)
    try:
        record = replace(record, ceilings=bench.ceilings())
    except GpuLostError as error:
        return replace(record, left_out={one.id: str(error) for one in chosen})
    with tempfile.TemporaryDirectory(prefix="kgen-bench-") as folder:
        kernels = Kernels(Path(folder))
        for number, workload in enumerate(chosen):
            spent = time.monotonic() - start
            if settings.seconds is not None and spent >= settings.seconds:
                why = f"the time budget of {settings.seconds:g} s was spent"
                record = replace(record, left_out={one.id: why for one in chosen[number:]})
                break
            row, lost = bench.row(workload, kernels)
            record = replace(record, rows=(*record.rows, row))
            told(_line(record, row, time.monotonic() - start - spent))
            kept(record)
            if lost is not None:
                record = replace(record, left_out={one.id: lost for one in chosen[number + 1 :]})
                break
    if record.left_out:
        told(f"left out: {', '.join(record.left_out)}: {next(iter(record.left_out.values()))}")
    kept(record)
    return record


@dataclass(frozen=True)
class _Ready:
    """A candidate that was right, and its graph."""

    candidate: Candidate
    captured: Captured

    @property
    def out(self) -> torch.Tensor:
        """What a replay writes."""
        assert isinstance(self.captured.out, torch.Tensor)
        return self.captured.out

    def rows(self, request: int) -> torch.Tensor:
        """``[Hq, M, Dv]`` of a request, of the last replay."""
        return self.candidate.rows(self.out, request)


class _Bench:
    """What the workloads of a run share."""

    def __init__(self, settings: Settings, on: Machine, told: Told) -> None:
        self._settings, self._on, self._told = settings, on, told
        self._missing: dict[str, str] = {}  # peers that did not load, told once and not tried again

    def ceilings(self) -> dict[str, Ceilings]:
        """The ceilings under each flush."""
        calls = self._on.ceiling_calls()
        ready: dict[str, Captured] = {}
        for name, call in calls.items():
            with self._telling(f"ceiling {name}"):
                ready[name] = self._on.captured(call)
        timings = self._timed(ready, lambda name, error: self._told(f"ceiling {name}: {gpu.one_line(error)}"))
        found = {flush: ceilings.of_timings(times) for flush, times in timings.items()}
        del calls, ready
        _free()
        return found

    def row(self, workload: Workload, kernels: Kernels) -> tuple[Row, str | None]:
        """A workload's row, and why the GPU is lost where it is."""
        loaded = kernels.spec(workload)
        spec = loaded.spec
        cells: dict[str, Cell] = {}
        lost = None
        try:
            self._fill(workload, kernels, cells)
        except GpuLostError as error:
            lost = str(error)
            cells.setdefault(KGEN, Cell("failed", lost))
        except Exception as error:  # a workload that cannot be set up costs its own row
            cells.setdefault(KGEN, self._failure(error))
        _free()
        row = Row(
            id=workload.id,
            group=workload.group,
            spec=workload.spec,
            kernel=workload.kernel,
            kind=spec.kernels[workload.kernel].kind,
            layer=workloads.layer_in_words(spec.attention, spec.kernels[workload.kernel].kind),
            shape=workload.shape,
            dtype=spec.dtype,
            batch=workload.batch,
            queries=workload.queries,
            context=workload.context,
            tokens=sum(workload.seq_lens),
            work=_work(spec, workload),
            cells=cells,
        )
        for name, cell in cells.items():
            if cell.status in ("not generated", "failed", "wrong"):
                self._told(f"{workload.id}: {name}: {cell.status}: {cell.reason}")
        return row, lost

    def _fill(self, workload: Workload, kernels: Kernels, cells: dict[str, Cell]) -> None:
        spec = kernels.spec(workload).spec
        try:
            problem = inputs.make(spec, workload, self._on.device)
        except UnsupportedError as error:
            cells[KGEN] = Cell("unsupported", str(error))
            return
        expected, limit = check.expect(problem), check.tolerance(spec)
        ready: dict[str, _Ready] = {}
        generated = functools.partial(_generated, problem, kernels)
        cells[KGEN] = self._prepare(KGEN, generated, expected, limit, ready)
        for peer in self._settings.peers:
            if peer.is_spare and ready.keys() - {KGEN}:
                cells[peer.name] = Cell("skipped", "by default it is timed where no other peer is")
                continue
            load = functools.partial(peer.prepare, problem)
            cells[peer.name] = self._prepare(peer.name, load, expected, limit, ready)
        captured = {name: one.captured for name, one in ready.items()}
        work = _work(spec, workload)
        if problem.is_decode and work is not None:
            with self._telling(f"{workload.id}: {READ}"):
                captured[READ] = self._on.captured(self._on.read(work.read_bytes))
                cells[READ] = Cell("measured")

        def failed(name: str, error: Exception) -> None:
            cells[name] = self._failure(error)
            ready.pop(name, None)

        for flush, timings in self._timed(captured, failed).items():
            for name, timing in timings.items():
                cells[name] = replace(cells[name], times={**cells[name].times, flush: timing})
        for name, one in ready.items():
            replayed = check.worst_error(expected, one.rows)
            if not replayed <= limit:
                cells[name] = _wrong(replayed, limit, cells[name].note, "after the timed replays ")

    def _prepare(
        self,
        name: str,
        load: Callable[[], Candidate],
        expected: tuple[Expected, ...],
        limit: float,
        ready: dict[str, _Ready],
    ) -> Cell:
        """Load a candidate, check a call of it, and capture it into ``ready``; the cell says how far that went."""
        if name in self._missing:
            return Cell("missing", self._missing[name])
        try:
            candidate = load()
            out = candidate.call()
            error = check.worst_error(expected, lambda request: candidate.rows(out, request))
            if not error <= limit:
                return _wrong(error, limit, candidate.note)
            one = _Ready(candidate, self._on.captured(candidate.call))
            # The replays that are timed must write it again: it is checked once more after them.
            one.out.fill_(float("nan"))
            ready[name] = one
            return Cell("measured", note=candidate.note, error=error)
        except NotGeneratedError as error:
            return Cell("not generated", str(error))
        except UnsupportedError as error:
            return Cell("unsupported", str(error))
        except ImportError as error:
            self._missing[name] = gpu.one_line(error)
            self._told(f"{name} is left out: {self._missing[name]}")
            return Cell("missing", self._missing[name])
        except (Exception, SystemExit) as error:  # a peer may fail in any way
            return self._failure(error)

    def _failure(self, error: BaseException) -> Cell:
        """The cell of what failed. Raises ``GpuLostError`` where that took the GPU with it."""
        self._on.raise_if_lost(error)
        return Cell("failed", gpu.one_line(error))

    def _timed(
        self, captured: Mapping[str, Captured], failed: Callable[[str, Exception], None]
    ) -> dict[str, dict[str, Timing]]:
        """Timings under each flush; a candidate that fails under one is not tried under the next."""
        found: dict[str, dict[str, Timing]] = {}
        going = {name: one.replay for name, one in captured.items()}

        def drop(name: str, error: Exception) -> None:
            going.pop(name)
            failed(name, error)

        for flush, clock in self._on.clocks.items():
            found[flush] = interleaved(dict(going), clock, self._settings.rounds, drop)
        return found

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Go on without ``what`` where it fails, and tell why."""
        try:
            yield
        except GpuLostError:
            raise
        except Exception as error:
            self._on.raise_if_lost(error)
            self._told(f"{what}: {gpu.one_line(error)}")


def _wrong(error: float, limit: float, note: str | None, when: str = "") -> Cell:
    reason = f"{when}a sampled row is wrong by {error:.1e} of its size, allowed is {limit:g}"
    return Cell("wrong", reason, note, error if math.isfinite(error) else None)


def _generated(problem: Problem, kernels: Kernels) -> Candidate:
    """kgen's own candidate: the contract's call, its output filled with NaN beforehand."""
    module = kernels.module(problem.workload)
    out, arguments, keywords = problem.new_out(), problem.arguments, problem.keywords

    def call() -> torch.Tensor:
        result: torch.Tensor = module.attention(*arguments, **keywords, out=out)
        return result

    return Candidate(call, problem.results)


def _work(spec: SpecFile, workload: Workload) -> KernelCost | None:
    """What a call must do, where the spec tells."""
    try:
        return workloads.cost(spec, workload)
    except UncountedMaskError:
        return None


def _free() -> None:
    """Give the tensors of the last workload back, also those in graphs that refer to themselves."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _line(record: Record, row: Row, seconds: float) -> str:
    """A row in a line, while the run goes on."""
    flush = record.flushes[0]
    times = [f"{name} {timing.us:.1f}" for name in row.cells if (timing := row.timing(name, flush)) is not None]
    return f"{row.id:12} {row.shape:18} us: {', '.join(times) or 'nothing was measured'}  [{seconds:.1f} s]"
