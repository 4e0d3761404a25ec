"""How candidates are timed: rounds that interleave them, samples with the cache flushed, medians and quartiles."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Replay = TypeVar("Replay", contravariant=True)
Key = TypeVar("Key")

ROUND_MS = 25.0  # of samples that one candidate takes in a round
WARM_UP_MS = 5.0  # of samples before them that are not counted: the clock frequency is still the last candidate's
ORDER = "Williams design"  # of the candidates in a round, as a record names it
FEWEST, MOST = 3, 60  # samples of a round


class Clock(Protocol[Replay]):
    """What times one candidate: on a GPU by events around replays of a graph."""

    def samples(self, replay: Replay, count: int) -> list[float]:
        """Microseconds of ``count`` replays, the L2 cache flushed before each."""


@dataclass(frozen=True)
class Timing:
    """Microseconds: the median of the rounds' medians, the quartiles of all samples, and the rounds' extremes.

    ``q1`` and ``q3`` are ``None`` in records that were made without them.
    """

    us: float
    q1: float | None
    q3: float | None
    least: float
    most: float
    samples: int | None


class GpuLostError(Exception):
    """A fault ended this process's use of the GPU: nothing more can be measured in it."""


def summary(rounds: Sequence[Sequence[float]]) -> Timing:
    """The timing of a candidate from the samples of its rounds, of which there is at least one."""
    medians = [statistics.median(samples) for samples in rounds]
    everything = sorted(sample for samples in rounds for sample in samples)
    q1, _, q3 = statistics.quantiles(everything, n=4, method="inclusive") if len(everything) > 1 else everything * 3
    return Timing(statistics.median(medians), q1, q3, min(medians), max(medians), len(everything))


def turns(keys: Sequence[Key], rounds: int) -> Iterator[Key]:
    """Every key once a round, in the rows of a Williams design, which is begun again where there are more rounds.

    What ran before a candidate leaves it the clock frequency and temperature; over the rows of the design each
    candidate follows each other one equally often within a round.
    """
    rows = williams(len(keys))
    for number in range(rounds):
        yield from (keys[place] for place in rows[number % len(rows)])


def williams(n: int) -> list[list[int]]:
    """The rows of a row-complete Latin square of ``n`` treatments: n rows for even n, 2n for odd n.

    E. J. Williams, 1949, "Experimental designs balanced for the estimation of residual effects of treatments". A row
    is the zigzag 0, n - 1, 1, n - 2, ... plus a constant. For even n its steps are all of 1 .. n - 1. For odd n they
    are the even ones, twice, so that every second row is reversed. Each ordered pair stands side by side once for
    even n and twice for odd n; in the first n - 1 rows no pair does so twice. From three treatments on no row begins
    with what the one before it ended with.
    """
    zigzag = [(-(place + 1) // 2) % n if place % 2 else place // 2 for place in range(n)]
    if n % 2 == 0:
        return [[(place + row) % n for place in zigzag] for row in range(max(1, n))]
    rows = []
    for row in range(n):
        rows.append([(place + row) % n for place in zigzag])
        rows.append([(place + row + 2) % n for place in reversed(zigzag)])
    return rows


def repeats(estimate_us: float, ms: float = ROUND_MS, fewest: int = FEWEST) -> int:
    """Samples of a call of about ``estimate_us`` that take about ``ms``."""
    return max(fewest, min(MOST, round(ms * 1e3 / max(estimate_us, 1.0))))


def interleaved(
    replays: Mapping[Key, Replay],
    clock: Clock[Replay],
    rounds: int,
    failed: Callable[[Key, Exception], None],
) -> dict[Key, Timing]:
    """Time every candidate in ``rounds`` rounds; one that raises is told to ``failed`` and left out.

    A turn begins with about ``WARM_UP_MS`` of samples that are not counted. Raises ``GpuLostError`` as ``clock`` does.
    """
    counts: dict[Key, tuple[int, int]] = {}  # samples of a turn that warm up, and that are counted
    taken: dict[Key, list[list[float]]] = {}

    def attempt(key: Key, count: int) -> list[float] | None:
        try:
            return clock.samples(replays[key], count)
        except GpuLostError:
            raise
        except Exception as error:  # a peer may fail in any way, and costs its own figure alone
            taken.pop(key, None)
            failed(key, error)
            return None

    for key in replays:
        first = attempt(key, FEWEST)
        if first is not None:
            estimate = statistics.median(first)
            counts[key], taken[key] = (repeats(estimate, WARM_UP_MS, fewest=1), repeats(estimate)), []
    for key in turns(tuple(counts), rounds):
        if key in taken and (samples := attempt(key, sum(counts[key]))) is not None:
            taken[key].append(samples[counts[key][0] :])
    return {key: summary(samples) for key, samples in taken.items()}
