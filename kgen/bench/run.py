"""A run: every workload is built, checked and timed beside its peers; what fails costs its own cell."""

from __future__ import annotations

import contextlib
import functools
import gc
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
from kgen.bench.timing import GpuLostError, interleaved
from kgen.models.visibility import UncountedMaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kgen.bench.check import Expected
    from kgen.bench.inputs import Problem
    from kgen.bench.peers import Peer
    from kgen.bench.timing import Clock, Timing
    from kgen.bench.workloads import Workload
    from kgen.models.accounting import KernelCost
    from kgen.spec.model import SpecFile

    Replay = Callable[[], None]
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
    captured: Callable[[Callable[[], object]], Replay]
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


class _Bench:
    """What the workloads of a run share."""

    def __init__(self, settings: Settings, on: Machine, told: Told) -> None:
        self._settings, self._on, self._told = settings, on, told
        self._missing: dict[str, str] = {}  # peers that did not load, told once and not tried again

    def ceilings(self) -> dict[str, Ceilings]:
        """The ceilings under each flush."""
        calls = self._on.ceiling_calls()
        replays: dict[str, Replay] = {}
        for name, call in calls.items():
            with self._telling(f"ceiling {name}"):
                replays[name] = self._on.captured(call)
        timings = self._timed(replays, lambda name, error: self._told(f"ceiling {name}: {gpu.one_line(error)}"))
        found = {flush: ceilings.of_timings(times) for flush, times in timings.items()}
        del calls, replays
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
        expected = check.expect(problem)
        replays: dict[str, Replay] = {}
        self._prepare(KGEN, lambda: _generated(problem, kernels), expected, problem, cells, replays)
        for peer in self._settings.peers:
            if peer.name in self._missing:
                cells[peer.name] = Cell("missing", self._missing[peer.name])
            else:
                self._prepare(peer.name, functools.partial(peer.prepare, problem), expected, problem, cells, replays)
        work = _work(spec, workload)
        if problem.is_decode and work is not None:
            with self._telling(f"{workload.id}: {READ}"):
                replays[READ] = self._on.captured(self._on.read(work.read_bytes))
                cells[READ] = Cell("measured")

        def failed(name: str, error: Exception) -> None:
            cells[name] = replace(self._failure(error), note=cells[name].note, error=cells[name].error)

        for flush, timings in self._timed(replays, failed).items():
            for name, timing in timings.items():
                cells[name] = replace(cells[name], times={**cells[name].times, flush: timing})

    def _prepare(
        self,
        name: str,
        load: Callable[[], Candidate],
        expected: tuple[Expected, ...],
        problem: Problem,
        cells: dict[str, Cell],
        replays: dict[str, Replay],
    ) -> None:
        """Load a candidate, check a call of it, and capture it; or say in its cell why not."""
        try:
            candidate = load()
            out = candidate.call()
            error = check.worst_error(expected, lambda request: candidate.rows(out, request))
            limit = check.tolerance(problem.spec)
            if not error <= limit:
                reason = f"a sampled row is wrong by {error:.1e} of its size, allowed is {limit:g}"
                cells[name] = Cell("wrong", reason, candidate.note, error)
                return
            replays[name] = self._on.captured(candidate.call)
            cells[name] = Cell("measured", note=candidate.note, error=error)
        except NotGeneratedError as error:
            cells[name] = Cell("not generated", str(error))
        except UnsupportedError as error:
            cells[name] = Cell("unsupported", str(error))
        except ImportError as error:
            self._missing[name] = gpu.one_line(error)
            self._told(f"{name} is left out: {self._missing[name]}")
            cells[name] = Cell("missing", self._missing[name])
        except (Exception, SystemExit) as error:  # a peer may fail in any way
            cells[name] = self._failure(error)

    def _failure(self, error: BaseException) -> Cell:
        """The cell of what failed. Raises ``GpuLostError`` where that took the GPU with it."""
        self._on.raise_if_lost(error)
        return Cell("failed", gpu.one_line(error))

    def _timed(
        self, replays: Mapping[str, Replay], failed: Callable[[str, Exception], None]
    ) -> dict[str, dict[str, Timing]]:
        """Timings under each flush; a candidate that fails under one is not tried under the next."""
        found: dict[str, dict[str, Timing]] = {}
        going = dict(replays)

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
