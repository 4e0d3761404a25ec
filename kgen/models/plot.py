"""The plot of cache bytes against context, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.errors import InputError, MissingDependencyError
from kgen.models.accounting import Workload, cache_cost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from kgen.spec.model import SpecFile

FORMATS = (".png", ".svg")
_POINTS = 64
_SPAN = 256  # the plot begins at this part of the context

# The same file from the same input: no date, no release of matplotlib, no random ids.
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
_STYLE: dict[Any, Any] = {"svg.hashsalt": "kgen", "svg.fonttype": "none"}


@dataclass(frozen=True)
class Curve:
    """Cache bytes of a spec at each context; ``seen`` are those that the newest tokens see, where that is less."""

    name: str
    contexts: tuple[int, ...]
    held: tuple[int, ...]
    seen: tuple[int, ...] | None


def checked(path: Path) -> None:
    """Raise ``InputError`` for an ending that is not plotted, ``MissingDependencyError`` without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path}: the name ends in {path.suffix or 'nothing'}, expected .png or .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "--plot needs matplotlib, which is not installed: pip install 'kgen[plot]'"
        ) from error


def curve(spec: SpecFile, batch: int, context: int, layers: int) -> Curve:
    """The curve of ``layers`` layers of ``spec``, up to ``context`` keys."""
    first = max(1, context // _SPAN)
    ratio = context / first
    contexts = sorted({round(first * ratio ** (step / _POINTS)) for step in range(_POINTS + 1)})
    costs = [cache_cost(spec.attention, spec.dtype, Workload(batch, tokens, queries=1)) for tokens in contexts]
    held = tuple(layers * cost.held_bytes for cost in costs)
    seen = tuple(layers * cost.seen_bytes for cost in costs if cost.seen_bytes is not None)
    return Curve(spec.name, tuple(contexts), held, seen if len(seen) == len(held) and seen != held else None)


def figure(curves: Sequence[Curve], title: str) -> Figure:
    """Both axes logarithmic: a ratio of two caches is the same distance at every context."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    drawn = Figure(figsize=(8, 5), layout="constrained")
    axes = drawn.add_subplot()
    for curve in curves:
        (line,) = axes.plot(curve.contexts, curve.held, label=curve.name)
        if curve.seen is not None:
            label = f"{curve.name}, seen by the newest token"
            axes.plot(curve.contexts, curve.seen, linestyle="--", color=line.get_color(), label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:,.0f}"))
    axes.set_xlabel("context (tokens a request)")
    axes.set_ylabel("cache (bytes)")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return drawn


def save(drawn: Figure, path: Path) -> None:
    """Write a figure to ``path``; ``InputError`` where that cannot be written."""
    import matplotlib

    suffix = path.suffix.lower()
    try:
        with matplotlib.rc_context(_STYLE):
            drawn.savefig(path, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
    except OSError as error:
        raise InputError(f"--plot {path}: cannot be written: {error.strerror or error}") from None
