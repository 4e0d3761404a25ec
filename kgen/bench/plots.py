"""Two plots of a record, with matplotlib (the extra ``plot``): a roofline, and bars of the peers by workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.bench.record import KGEN
from kgen.bench.report import names
from kgen.models.plot import save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kgen.bench.record import Record, Row

KINDS = {"decode": "o", "prefill": "s"}


def is_available() -> bool:
    """Whether matplotlib is installed."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def draw(record: Record, path: Path) -> tuple[Path, ...]:
    """Write the plots beside ``path``, the record's JSON; only those that have something to show."""
    written = []
    for name, figure in (("roofline", roofline(record)), ("bars", bars(record))):
        if figure is not None:
            target = path.with_name(f"{path.stem}_{name}.svg")
            save(figure, target)
            written.append(target)
    return tuple(written)


def roofline(record: Record) -> Figure | None:
    """TFLOP/s against operations a byte, both logarithmic, under the measured ceilings; ``None`` without any.

    The long names of models' and users' workloads, which have a point in them, would hide each other.
    """
    flush = record.flushes[0]
    ceilings = record.ceilings.get(flush)
    points = [
        (row.kind, row.id, row.work.flops / row.work.bytes, row.work.flops / timing.us / 1e6)
        for row in record.rows
        if row.work is not None and (timing := row.timing(KGEN, flush)) is not None
    ]
    if ceilings is None or ceilings.read_tb_s is None or ceilings.matmul_tflop_s is None or not points:
        return None
    figure, axes = _figure(9, 6)
    ridge = ceilings.matmul_tflop_s / ceilings.read_tb_s
    intensities = [ridge, *(intensity for _, _, intensity, _ in points)]
    low, high = min(intensities) / 2, max(intensities) * 2
    roof = [(x, min(x * ceilings.read_tb_s, ceilings.matmul_tflop_s)) for x in sorted((low, ridge, high))]
    label = f"{ceilings.read_tb_s:.2f} TB/s and {ceilings.matmul_tflop_s:.0f} TFLOP/s, measured"
    axes.plot(*zip(*roof, strict=True), color="black", label=label)
    for kind, marker in KINDS.items():
        own = [(x, y) for its_kind, _, x, y in points if its_kind == kind]
        if own:
            axes.scatter(*zip(*own, strict=True), marker=marker, label=f"kgen, {kind}")
    for _, name, x, y in (point for point in points if "." not in point[1]):
        axes.annotate(name, (x, y), xytext=(4, -9), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(_title(record))
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(loc="lower right")
    return figure


def bars(record: Record) -> Figure | None:
    """For each workload every candidate's time over kgen's, as bars from 1; ``None`` where there is no candidate."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    flush = record.flushes[0]
    columns = names(record, flush)
    shown: list[tuple[Row, list[tuple[str, float]]]] = []
    for row in record.rows:
        ours = row.timing(KGEN, flush)
        if ours is not None:
            timings = [(name, row.timing(name, flush)) for name in columns]
            shown.append((row, [(name, timing.us / ours.us) for name, timing in timings if timing is not None]))
    shown = [(row, ratios) for row, ratios in shown if ratios]
    if not shown:
        return None
    lines: list[tuple[float, str, float]] = []
    ticks: list[tuple[float, str]] = []
    place = 0.0
    for row, ratios in shown:
        ticks.append((place + (len(ratios) - 1) / 2, f"{row.id}\n{row.layer}, {row.shape}"))
        lines += [(place + index, name, ratio) for index, (name, ratio) in enumerate(ratios)]
        place += max(len(ratios), 2) + 0.8
    figure, axes = _figure(9, 1.6 + 0.13 * place)
    for name in columns:
        own = [(y, ratio) for y, its_name, ratio in lines if its_name == name]
        hatch = "//" if name in record.baselines else None
        axes.barh([y for y, _ in own], [ratio - 1 for _, ratio in own], left=1, height=0.9, label=name, hatch=hatch)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10, 20]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.set_xlabel("time over kgen's: left of the line faster than kgen, right of it slower")
    axes.set_title(_title(record))
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _title(record: Record) -> str:
    return f"{record.device_name}, {record.date}, L2 flushed by a {record.flushes[0]}"


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()
