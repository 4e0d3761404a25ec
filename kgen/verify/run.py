"""Generated kernels against the reference: every case, in clean and in poisoned memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from kgen.errors import MissingDependencyError
from kgen.project import project
from kgen.spec import views
from kgen.spec.model import MergeStatesKernel
from kgen.verify import interpreter, merge_trial, values
from kgen.verify.call import Outcome, run
from kgen.verify.cases import Case, Tiles, device_cases, interpreter_cases, window_reach
from kgen.verify.compare import Comparison, Expected, compare, expect
from kgen.verify.merge_cases import MergeCase, merge_cases
from kgen.verify.modules import check_fresh, load_package, sm90_tiles, tiles
from kgen.verify.poison import CLEAN, HUGE, INF, NAN, Poison, mixed, same_bits

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from kgen.spec.loader import LoadedSpec
    from kgen.spec.model import SpecFile

# Key tiles that a case may take in the interpreter, about 3 ms each.
_TILE_BUDGET = 64


@dataclass(frozen=True)
class Result:
    """What one case of one kernel showed. ``message`` is ``None`` where all is well."""

    spec: str
    kernel: str
    case: Case | MergeCase
    max_error: float
    max_limit: float
    frobenius_error: float
    frobenius_limit: float
    lse_error: float
    lse_limit: float
    poison_ok: bool
    seconds: float
    message: str | None

    @property
    def passed(self) -> bool:
        """Whether the case found nothing wrong."""
        return self.message is None

    @property
    def worst_ratio(self) -> float:
        """The largest of the errors, each as a part of its limit."""
        pairs = (
            (self.max_error, self.max_limit),
            (self.frobenius_error, self.frobenius_limit),
            (self.lse_error, self.lse_limit),
        )
        return max((error / limit for error, limit in pairs), key=_rank)


# Called after each case with its result, the number of cases done and of all cases.
Progress = Callable[[Result, int, int], None]


def verify(
    specs: Sequence[LoadedSpec], root: Path, *, device: str = "cpu", progress: Progress | None = None
) -> tuple[Result, ...]:
    """Verify the generated kernels of ``specs`` below ``root``.

    ``device="cpu"`` runs small cases in Triton's interpreter, ``"cuda"`` the
    same and full shapes on the GPU.

    Raises ``InputError`` where files are missing or stale, and
    ``MissingDependencyError`` without Triton or, for ``cuda``, without a GPU.
    """
    where = _device(device)
    check_fresh(specs, root)
    work = []
    for loaded in specs:
        modules = load_package(root / loaded.spec.name)
        for kernel in loaded.spec.kernels:
            work += [
                (loaded.spec, kernel, modules[kernel], case)
                for case in cases(loaded.spec, kernel, modules[kernel], where)
            ]
    with _one_thread() if where.type == "cpu" else nullcontext():
        return _results(work, where, progress)


def unrun_forms(specs: Sequence[LoadedSpec], device: str) -> tuple[str, ...]:
    """Generated modules that ``verify`` on ``device`` leaves out: forms for sm_90, except on such a GPU."""
    if device != "cpu" and torch.cuda.get_device_capability(device)[0] == 9:
        return ()
    modules = [path.removesuffix(".py").replace("/", ".") for path in project(specs)]
    return tuple(module for module in modules if module.endswith("_sm90"))


@contextmanager
def _one_thread() -> Iterator[None]:
    """The interpreter's tensors are so small that threads of PyTorch cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _results(
    work: Sequence[tuple[SpecFile, str, ModuleType, Case | MergeCase]], device: torch.device, progress: Progress | None
) -> tuple[Result, ...]:
    """Run the cases one after the other."""
    results = []
    for number, (spec, kernel, module, case) in enumerate(work):
        result = check_case(spec, kernel, module, case, device, number)
        lost = not result.passed and _is_lost(device)
        if lost:
            result = replace(result, message=f"{result.message}; the GPU is lost, the cases after this one did not run")
        results.append(result)
        if progress is not None:
            progress(result, number + 1, len(work))
        if lost:
            break
    return tuple(results)


def _is_lost(device: torch.device) -> bool:
    """Whether a fault has ended this process's use of the GPU: every later call would fail for it."""
    if device.type == "cpu":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _device(name: str) -> torch.device:
    """The device to run on, once it is known to work."""
    device = torch.device(name)
    if device.type == "cpu":
        interpreter.require()
    elif not torch.cuda.is_available():
        raise MissingDependencyError(f"--device {name} needs a GPU, and PyTorch sees none here")
    return device


def cases(
    spec: SpecFile, kernel: str, module: ModuleType, device: torch.device
) -> tuple[Case, ...] | tuple[MergeCase, ...]:
    """The cases of a kernel on a device."""
    if isinstance(spec.kernels[kernel], MergeStatesKernel):
        # Every target has the same row.
        target, row = next(iter(module._LAUNCH.items()))
        return merge_cases(spec, kernel, row["BLOCK_R"], target, large=device.type != "cpu")
    spec = views.seen_by(spec, kernel)
    if device.type == "cpu":
        return interpreter_cases(spec, kernel, tiles(module))
    return device_cases(spec, kernel, _own_tiles(module, device))


def _own_tiles(module: ModuleType, device: torch.device) -> Tiles:
    """The tile of this GPU: of the form for it, else the launch table's row by name, the first where it has none."""
    major, minor = torch.cuda.get_device_capability(device)
    if major == 9 and (form := sm90_tiles(module)) is not None:
        return form
    launch = tiles(module)
    return next((row for row in launch if row.target == f"sm_{major}{minor}"), launch[0])


@dataclass(frozen=True)
class _Trial:
    """What a case comes to: the right answer, a call in poisoned memory, and what repeats on a GPU differ in."""

    expected: Expected
    run: Callable[[Poison], Outcome]
    replays: Callable[[Outcome], list[str]]


def _trial(spec: SpecFile, kernel: str, module: ModuleType, case: Case | MergeCase, device: torch.device) -> _Trial:
    if isinstance(case, MergeCase):
        parts = merge_trial.make(spec, kernel, case, device)
        return _Trial(
            merge_trial.expect(spec, parts),
            partial(merge_trial.run, module, case, parts),
            partial(merge_trial.replays, module, case, parts),
        )
    inputs = values.make(spec, kernel, case, device)
    seq_lens, qo_lens = (
        None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device=device)
        for lengths in (case.seq_lens, case.qo_lens)
    )
    seen = views.seen_by(spec, kernel)
    sample = _sample(seen, module, case) if device.type == "cpu" else None
    return _Trial(
        expect(seen, **vars(inputs), seq_lens=seq_lens, qo_lens=qo_lens),
        partial(run, module, case, inputs, sample=sample),
        partial(_attention_replays, module, case, inputs),
    )


def _attention_replays(module: ModuleType, case: Case, inputs: values.Inputs, first: Outcome) -> list[str]:
    from kgen.verify.device import replays

    return replays(module, case, inputs, first)


def check_case(
    spec: SpecFile, kernel: str, module: ModuleType, case: Case | MergeCase, device: torch.device, number: int = 0
) -> Result:
    """Run one case: clean memory against the reference, then poisoned memory against clean.

    ``number`` only chooses which poison comes first in the interpreter.
    """
    start = time.perf_counter()
    trial = _trial(spec, kernel, module, case, device)
    expected = trial.expected
    clean = trial.run(CLEAN)
    problems, comparison = _judge(clean, expected)
    poison_ok = clean.out is not None
    if clean.out is not None:
        poisons = (mixed(number),) if device.type == "cpu" else (NAN, INF, HUGE)
        for poison in poisons:
            found = _differences(clean, trial.run(poison), poison)
            poison_ok &= not found
            problems += found
        if device.type != "cpu":
            try:
                problems += trial.replays(clean)
            except Exception as error:  # as in call.run: a finding about the kernel
                problems.append(f"a repeated call raised {type(error).__name__}: {error}")
    return Result(
        spec=spec.name,
        kernel=kernel,
        case=case,
        max_error=comparison.max_error,
        max_limit=expected.max_limit,
        frobenius_error=comparison.frobenius_error,
        frobenius_limit=expected.frobenius_limit,
        lse_error=comparison.lse_error,
        lse_limit=expected.lse_limit,
        poison_ok=poison_ok,
        seconds=time.perf_counter() - start,
        message="; ".join(dict.fromkeys(problems)) or None,
    )


def _sample(spec: SpecFile, module: ModuleType, case: Case) -> interpreter.Sample | None:
    """How many programs of a prefill the interpreter runs: all, or as the tiles of one allow.

    Decode cases run whole: a merge reads what other programs wrote.
    """
    if case.every_program or case.is_decode:
        return None
    launch = next(row for row in tiles(module) if row.target == case.target)
    reach = window_reach(spec)
    keys = case.kv_len if reach is None else min(case.kv_len, reach + launch.rows)
    programs = max(3, min(5, _TILE_BUDGET // max(1, -(-keys // launch.keys))))
    return interpreter.Sample(programs, seed=case.q_len * 1000 + case.kv_len)


def _judge(outcome: Outcome, expected: Expected) -> tuple[list[str], Comparison]:
    """What is wrong with a call in clean memory, and its errors."""
    problems = list(outcome.problems)
    if outcome.out is None or outcome.lse is None:
        return problems, Comparison(torch.nan, torch.nan, torch.nan, None)
    shape = tuple(expected.out.shape)
    if tuple(outcome.out.shape) != shape or tuple(outcome.lse.shape) != shape[:-1]:
        problems.append(
            f"out and lse have shapes {tuple(outcome.out.shape)} and {tuple(outcome.lse.shape)}, want {shape}"
        )
        return problems, Comparison(torch.nan, torch.nan, torch.nan, None)
    comparison = compare(expected, outcome.out, outcome.lse, rows=outcome.rows)
    if comparison.message is not None:
        problems.append(comparison.message)
    return problems, comparison


def _differences(clean: Outcome, poisoned: Outcome, poison: Poison) -> list[str]:
    """What a call in poisoned memory did otherwise than one in clean memory."""
    label = f"undefined memory full of {poison.name}"
    problems = [f"{label}: {problem}" for problem in poisoned.problems]
    if clean.out is None or clean.lse is None or poisoned.out is None or poisoned.lse is None:
        return problems
    for name, a, b in (("out", clean.out, poisoned.out), ("lse", clean.lse, poisoned.lse)):
        if clean.rows is not None and poisoned.rows is not None:
            if not torch.equal(clean.rows, poisoned.rows):
                problems.append(f"{label} changes which rows are written")
                break
            a, b = a[clean.rows], b[clean.rows]
        if not same_bits(a, b):
            problems.append(f"{label} changes {name}")
    return problems


@dataclass(frozen=True)
class Summary:
    """One line of the table of errors: a kernel over all its cases."""

    spec: str
    kernel: str
    cases: int
    passed: int
    worst: Result  # the case nearest to its limit, or furthest past it
    worst_lse: Result  # the same for the LSE alone
    poison_ok: bool
    seconds: float


def table_rows(results: Sequence[Result]) -> tuple[Summary, ...]:
    """Results summed up by kernel, in their order. The failed cases are in the results themselves."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.spec, result.kernel), []).append(result)
    return tuple(
        Summary(
            spec=spec,
            kernel=kernel,
            cases=len(group),
            passed=sum(result.passed for result in group),
            worst=max(group, key=lambda result: _rank(result.worst_ratio)),
            worst_lse=max(group, key=lambda result: _rank(result.lse_error / result.lse_limit)),
            poison_ok=all(result.poison_ok for result in group),
            seconds=sum(result.seconds for result in group),
        )
        for (spec, kernel), group in groups.items()
    )


def _rank(ratio: float) -> float:
    """NaN is worse than any number."""
    return math.inf if math.isnan(ratio) else ratio
