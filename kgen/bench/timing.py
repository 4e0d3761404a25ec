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
    """Every key once a round. Each round begins one further, so that none always follows the same one."""
    for number in range(rounds):
        start = number % len(keys) if keys else 0
        yield from (*keys[start:], *keys[:start])


def repeats(estimate_us: float) -> int:
    """Samples of a round for a call of about ``estimate_us``."""
    return max(FEWEST, min(MOST, round(ROUND_MS * 1e3 / max(estimate_us, 1.0))))


def interleaved(
    replays: Mapping[Key, Replay],
    clock: Clock[Replay],
    rounds: int,
    failed: Callable[[Key, Exception], None],
) -> dict[Key, Timing]:
    """Time every candidate in ``rounds`` rounds; one that raises is told to ``failed`` and left out.

    Raises ``GpuLostError`` as ``clock`` does.
    """
    counts: dict[Key, int] = {}
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
            counts[key], taken[key] = repeats(statistics.median(first)), []
    for key in turns(tuple(counts), rounds):
        if key in taken and (samples := attempt(key, counts[key])) is not None:
            taken[key].append(samples)
    return {key: summary(samples) for key, samples in taken.items()}
