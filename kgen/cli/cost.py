"""``cost``: what layers cost in memory, arithmetic and traffic, without running anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.generate import FormatOption, Specs, named_or_all
from kgen.cli.guard import guarded
from kgen.cli.output import Format
from kgen.errors import InputError

if TYPE_CHECKING:
    from kgen.models.accounting import CacheCost, Floor, KernelCost, Workload
    from kgen.models.devices import Device
    from kgen.spec.loader import LoadedSpec

MOST = 2**31 - 1  # of a length or a count: lengths are int32 in every kernel


@dataclass(frozen=True)
class Rates:
    """What bounds a time: a device of the table, and rates that the user measured in place of its own."""

    device: Device
    bandwidth_tb_s: float | None
    tflop_s: float | None

    @property
    def memory_tb_s(self) -> float:
        """10^12 bytes a second."""
        return self.device.memory_tb_s if self.bandwidth_tb_s is None else self.bandwidth_tb_s

    def peak(self, loaded: LoadedSpec) -> float:
        """10^12 operations a second for the products of a spec."""
        if self.tflop_s is not None:
            return self.tflop_s
        return self.device.peak(loaded.spec.dtype, allow_tf32=loaded.spec.allow_tf32)


@dataclass(frozen=True)
class KernelRow:
    """A kernel's cost and floor, or why its pairs are not counted."""

    name: str
    kind: str
    cost: KernelCost | None
    floor: Floor | None
    uncounted: str | None


@dataclass(frozen=True)
class Row:
    """A spec's figures, and what of it kgen does not generate yet."""

    loaded: LoadedSpec
    cache: CacheCost
    kernels: tuple[KernelRow, ...]
    peak_tflop_s: float
    not_generated: tuple[str, ...]


@guarded
def cost(
    specs: Specs = None,
    context: Annotated[int, typer.Option("--context", min=1, max=MOST, help="Keys a request.")] = 8192,
    batch: Annotated[int, typer.Option("--batch", min=1, max=MOST, help="Requests.")] = 1,
    queries: Annotated[
        int | None,
        typer.Option(
            "--queries",
            min=1,
            max=MOST,
            help="Query tokens a request of prefill and backward; default the context.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, max=MOST, help="Layers of the model, for its cache.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="The GPU whose datasheet sets the floor.")] = "h200",
    bandwidth_tb_s: Annotated[
        float | None,
        typer.Option("--bandwidth-tb-s", help="A measured bandwidth in place of it.", show_default=False),
    ] = None,
    tflop_s: Annotated[
        float | None,
        typer.Option("--tflop-s", help="A measured rate of products in place of it.", show_default=False),
    ] = None,
    format: FormatOption = Format.TEXT,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Also plot cache bytes against context, to a .png or .svg.", show_default=False),
    ] = None,
) -> int:
    """Count what layers cost: cache, operations, bytes, and the least time on a device.

    Reads specs alone, also of what is not generated yet. Floors follow from datasheets, or from the rates you give.
    """
    from kgen.models import devices
    from kgen.models.accounting import Workload
    from kgen.spec.loader import load_specs

    rates = Rates(
        devices.device(device), _positive("--bandwidth-tb-s", bandwidth_tb_s), _positive("--tflop-s", tflop_s)
    )
    workload = Workload(batch, context, context if queries is None else queries)
    if plot is not None:
        from kgen.models.plot import checked

        checked(plot)
    rows = [_row(loaded, workload, rates) for loaded in load_specs(named_or_all(specs), ungenerated="allowed")]
    if plot is not None:
        _draw(rows, workload, layers, plot)
    for row in rows:
        if row.not_generated:
            output.note(f"{row.loaded.display}: not generated yet: {', '.join(row.not_generated)}")
    if format is Format.JSON:
        output.data(_as_json(rows, workload, rates, layers))
    else:
        _print(rows, workload, rates, layers)
    return 0


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise InputError(f"{option} {value:g}: expected a number above 0")
    return value


def _row(loaded: LoadedSpec, workload: Workload, rates: Rates) -> Row:
    from kgen.models.accounting import cache_cost, floor, kernel_cost
    from kgen.models.visibility import UncountedMaskError
    from kgen.plan.features import unmet

    spec = loaded.spec
    peak = rates.peak(loaded)
    kernels = []
    for name, kernel in sorted(spec.kernels.items()):
        try:
            cost = kernel_cost(spec.attention, kernel, spec.dtype, workload)
            least = floor(cost, tflop_s=peak, memory_tb_s=rates.memory_tb_s)
            kernels.append(KernelRow(name, kernel.kind, cost, least, None))
        except UncountedMaskError as error:
            kernels.append(KernelRow(name, kernel.kind, None, None, str(error)))
    cache = cache_cost(spec.attention, spec.dtype, workload)
    return Row(loaded, cache, tuple(kernels), peak, unmet(spec))


def _draw(rows: Sequence[Row], workload: Workload, layers: int | None, path: Path) -> None:
    from kgen.models.plot import curve, figure, save

    title = f"Cache of {_layers(layers)}, batch {workload.batch:,}"
    curves = [curve(row.loaded.spec, workload.batch, workload.context, layers or 1) for row in rows]
    save(figure(curves, title), path)
    output.note(f"wrote {path.as_posix()}")


def _layers(layers: int | None) -> str:
    return "one layer" if layers in (None, 1) else f"{layers:,} layers"


def _compared(rows: Sequence[Row]) -> list[tuple[Row, float | None]]:
    """Largest cache a token first, each with how many times the next one it takes."""
    ordered = sorted(rows, key=lambda row: -row.cache.bytes_per_token)
    following = [*ordered[1:], None]
    return [
        (row, row.cache.bytes_per_token / other.cache.bytes_per_token if other is not None else None)
        for row, other in zip(ordered, following, strict=True)
    ]


def _as_json(rows: Sequence[Row], workload: Workload, rates: Rates, layers: int | None) -> dict[str, object]:
    return {
        "device": {
            "key": rates.device.key,
            "name": rates.device.name,
            "source": rates.device.source,
            "memory_tb_s": rates.memory_tb_s,
            "measured": {"bandwidth_tb_s": rates.bandwidth_tb_s, "tflop_s": rates.tflop_s},
        },
        "workload": asdict(workload),
        "layers": layers,
        "specs": [_spec_as_json(row, layers) for row in rows],
        "comparison": [
            {"spec": row.loaded.spec.name, "bytes_per_token": row.cache.bytes_per_token, "times_the_next": ratio}
            for row, ratio in _compared(rows)
        ],
    }


def _spec_as_json(row: Row, layers: int | None) -> dict[str, object]:
    cache: dict[str, object] = asdict(row.cache)
    if layers is not None:
        cache["model"] = {
            "bytes_per_token": layers * row.cache.bytes_per_token,
            "held_bytes": layers * row.cache.held_bytes,
        }
    return {
        "spec": row.loaded.spec.name,
        "path": row.loaded.display,
        "kind": row.loaded.spec.attention.kind,
        "dtype": row.loaded.spec.dtype,
        "peak_tflop_s": row.peak_tflop_s,
        "cache": cache,
        "kernels": [_kernel_as_json(kernel) for kernel in row.kernels],
        "not_generated": list(row.not_generated),
    }


def _kernel_as_json(row: KernelRow) -> dict[str, object]:
    named: dict[str, object] = {"kernel": row.name, "kind": row.kind}
    if row.cost is None or row.floor is None:
        return {**named, "uncounted": row.uncounted}
    return {
        **named,
        **asdict(row.cost),
        "bytes": row.cost.bytes,
        "intensity": row.cost.intensity,
        "floor_seconds": row.floor.seconds,
        "bound": row.floor.bound,
    }


def _print(rows: Sequence[Row], workload: Workload, rates: Rates, layers: int | None) -> None:
    memory = "measured" if rates.bandwidth_tb_s is not None else "datasheet"
    compute = "measured" if rates.tflop_s is not None else "datasheet"
    peaks = {row.loaded.spec.dtype + (" as tf32" * row.loaded.spec.allow_tf32): row.peak_tflop_s for row in rows}
    rates_of = ", ".join(f"{peak:g} TFLOP/s in {dtype}" for dtype, peak in peaks.items())
    output.line(f"{rates.device.name}: {rates.memory_tb_s:g} TB/s ({memory}), {rates_of} ({compute})")
    output.line(
        f"batch {workload.batch:,}, context {workload.context:,}, "
        f"{workload.queries:,} query tokens in prefill and backward"
    )
    output.line("")
    _print_caches(rows, layers)
    output.line("")
    _print_kernels(rows)


def _print_caches(rows: Sequence[Row], layers: int | None) -> None:
    many = layers is not None
    header = ["SPEC", "KIND", "ELEMENTS A TOKEN", "BYTES A TOKEN", "CACHE OF A LAYER", "SEEN BY A TOKEN"]
    header += [f"{_layers(layers).upper()}, A TOKEN", f"{_layers(layers).upper()}"] if many else []
    header += ["TIMES THE NEXT"]
    table = []
    for row, ratio in _compared(rows):
        cache = row.cache
        cells = [row.loaded.spec.name, row.loaded.spec.attention.kind]
        cells += [f"{cache.elements_per_token:,}", f"{cache.bytes_per_token:,}", quantity(cache.held_bytes, "B")]
        cells += ["-" if cache.seen_bytes is None else quantity(cache.seen_bytes, "B")]
        if layers is not None:
            cells += [quantity(layers * cache.bytes_per_token, "B"), quantity(layers * cache.held_bytes, "B")]
        table.append([*cells, "-" if ratio is None else f"{ratio:.2f}"])
    output.table(header, table)


def _print_kernels(rows: Sequence[Row]) -> None:
    header = ("SPEC", "KERNEL", "PAIRS A HEAD", "OPERATIONS", "BYTES", "OPERATIONS A BYTE", "FLOOR", "BOUND BY")
    table = []
    for row in rows:
        for kernel in row.kernels:
            named = (row.loaded.spec.name, kernel.name)
            if kernel.cost is None or kernel.floor is None:
                table.append((*named, *("-",) * 5, f"not counted: {kernel.uncounted}"))
                continue
            cost = kernel.cost
            figures = (f"{cost.pairs:,}", quantity(cost.flops, "FLOP"), quantity(cost.bytes, "B"))
            floor = (quantity(kernel.floor.seconds, "s"), kernel.floor.bound)
            table.append((*named, *figures, f"{cost.intensity:,.1f}", *floor))
    output.table(header, table)


_PREFIXES: Mapping[int, str] = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


def quantity(value: float, unit: str) -> str:
    """Four digits and a decimal prefix: ``524.3 MB``; u is micro."""
    # The exponent of the rounded value, so that 999.96 becomes 1.000 k.
    exponent = int(f"{value:.3e}".partition("e")[2])
    power = min(max(exponent // 3 * 3, min(_PREFIXES)), max(_PREFIXES))
    digits = max(0, 3 - (exponent - power))
    shown = f"{value:.0f}" if power == 0 and isinstance(value, int) else f"{value / 10.0**power:.{digits}f}"
    return f"{shown} {_PREFIXES[power]}{unit}"
