"""``bench``: kernels timed beside their peers and the ceilings of the GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.cost import MOST
from kgen.cli.generate import FormatOption
from kgen.cli.guard import guarded
from kgen.cli.output import Format
from kgen.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.bench.compare import Change
    from kgen.bench.peers import Peer
    from kgen.bench.record import Record
    from kgen.bench.workloads import Workload


class Flush(StrEnum):
    """How L2 is emptied before each replay: a write leaves it full of dirty lines, a read of clean ones."""

    WRITE = "write"
    READ = "read"
    BOTH = "both"


@guarded
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID|SPEC]...",
            help="Workloads by id or group (--list), or spec files of your own; default the group core.",
            show_default=False,
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the workloads and the peers, and measure nothing.")
    ] = False,
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Of your spec: only this kernel.", show_default=False)
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, max=MOST, help="Of your spec: requests; default 1.", show_default=False),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", min=1, max=MOST, help="Of your spec: keys a request; default 8192.", show_default=False
        ),
    ] = None,
    least_context: Annotated[
        int | None,
        typer.Option(
            "--least-context",
            min=1,
            max=MOST,
            help="Of your spec: spread the requests' keys from here to --context.",
            show_default=False,
        ),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            "--queries",
            min=1,
            max=MOST,
            help="Of your spec: query tokens a request of prefill; default its keys.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            min=1,
            max=1000,
            help="Rounds that interleave the candidates; 12 are balanced for 2, 3, 4 and 6.",
        ),
    ] = 12,
    flush: Annotated[
        Flush, typer.Option("--flush", help="Empty L2 before each replay by writing 256 MB, or by reading 512 MB.")
    ] = Flush.WRITE,
    peers: Annotated[
        str, typer.Option("--peers", help="Peers by key, comma separated; default and all stand for several.")
    ] = "default",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Time kgen's kernels alone.")] = False,
    time_budget: Annotated[
        float | None,
        typer.Option("--time-budget", min=1.0, help="Begin no workload after so many seconds.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the record (JSON), and beside it a table (Markdown) and plots.", show_default=False
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Report this record and measure nothing; needs no GPU.", show_default=False),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", help="Compare with this record; exit code 1 if a workload is slower.", show_default=False
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="The part of its old time that a workload may be slower.")
    ] = 0.05,
    format: FormatOption = Format.TEXT,
) -> int:
    """Time the kernels on this GPU, beside their peers and the ceilings of the machine.

    Every candidate is checked first, against sampled rows in float64. Exit code 1 if a kernel of kgen is wrong or, with
    --compare, slower.
    """
    from kgen.bench import record as records

    if list_:
        return _list(format)
    old = None if compare is None else records.read(compare)
    if source is not None:
        if names:
            raise InputError("--from reports a record as it is; it takes no workloads")
        record = records.read(source)
    else:
        yours = (kernel, batch, context, least_context, queries)
        chosen = _workloads(names or ["core"], *yours)
        record = _measured(chosen, rounds, flush, None if no_peers else peers, time_budget, out)
    if out is not None:
        _write_beside(record, out)
    changes = _changes(old, record)
    if format is Format.JSON:
        output.data({**records.as_json(record), **({} if old is None else {"changes": _as_json(changes, tolerance)})})
    else:
        _print(record, changes, tolerance)
    is_wrong = any(row.cells[records.KGEN].status in ("wrong", "failed") for row in record.rows)
    return 1 if is_wrong or any(change.is_slower(tolerance) for change in changes) else 0


def _workloads(
    names: Sequence[str],
    kernel: str | None,
    batch: int | None,
    context: int | None,
    least_context: int | None,
    queries: int | None,
) -> tuple[Workload, ...]:
    """What the arguments name, each once, in their order."""
    from kgen.bench import workloads
    from kgen.spec.loader import load_specs

    paths = [name for name in names if _is_path(name)]
    given = {"--kernel": kernel, "--batch": batch, "--context": context}
    given |= {"--least-context": least_context, "--queries": queries}
    options = [option for option, value in given.items() if value is not None]
    if options and not paths:
        raise InputError(f"{', '.join(options)}: for a spec of your own; the ids have lengths of their own")
    most = 8192 if context is None else context
    if least_context is not None and least_context > most:
        raise InputError(f"--least-context {least_context} is above --context {most}")
    requests = 1 if batch is None else batch
    lengths = workloads.spread_lengths(requests, most if least_context is None else least_context, most)
    found: dict[str, Workload] = {}
    for name in names:
        if name in paths:
            specs = load_specs([Path(name)], ungenerated="allowed")
            chosen = tuple(one for loaded in specs for one in workloads.of_spec(loaded, kernel, lengths, queries))
        else:
            chosen = workloads.find([name])
        found |= {workload.id: workload for workload in chosen}
    return tuple(found.values())


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def _measured(
    chosen: Sequence[Workload],
    rounds: int,
    flush: Flush,
    peers: str | None,
    time_budget: float | None,
    out: Path | None,
) -> Record:
    from kgen.bench import peers as peer_table
    from kgen.bench import record as records

    wanted = () if peers is None else peer_table.chosen(peers)
    from kgen.bench.run import Settings, machine, run

    flushes = ("write", "read") if flush is Flush.BOTH else (flush.value,)
    return run(
        chosen,
        Settings(rounds, flushes, wanted, time_budget),
        machine(flushes),
        told=output.note,
        kept=lambda record: records.write(record, out) if out is not None else None,
    )


def _write_beside(record: Record, out: Path) -> None:
    """The record again as a table, and as plots where matplotlib is installed."""
    from kgen.bench import plots, report
    from kgen.bench import record as records

    records.write(record, out)
    table = out.with_suffix(".md")
    try:
        table.write_text(report.markdown(record) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{table} cannot be written: {error.strerror or error}") from None
    written = [out, table]
    if plots.is_available():
        try:
            written += plots.draw(record, out)
        except Exception as error:  # whatever matplotlib raises: what was measured is told all the same
            output.warning(f"no plots: {type(error).__name__}: {error}")
    else:
        output.note("no plots: matplotlib is not installed (pip install 'kgen[plot]')")
    output.note(f"wrote {', '.join(path.as_posix() for path in written)}")


def _changes(old: Record | None, new: Record) -> tuple[Change, ...]:
    from kgen.bench.compare import changes

    return () if old is None else changes(old, new)


def _as_json(changes: Sequence[Change], tolerance: float) -> list[dict[str, object]]:
    from dataclasses import asdict

    return [
        {
            **asdict(change),
            "ratio": change.ratio,
            "peer_ratio": change.peer_ratio,
            "slower": change.is_slower(tolerance),
        }
        for change in changes
    ]


def _print(record: Record, changes: Sequence[Change], tolerance: float) -> None:
    from kgen.bench import report

    output.line(report.markdown(record))
    if not changes:
        return
    output.line("")
    rows = []
    for change in changes:
        peer = "-" if change.peer_ratio is None else f"{change.peer_ratio:.3f}"
        verdict = "SLOWER" if change.is_slower(tolerance) else ""
        times = (f"{change.old_us:.1f}", f"{change.new_us:.1f}", f"{change.ratio:.3f}")
        rows.append((change.id, change.flush, *times, peer, verdict))
    output.table(("WORKLOAD", "FLUSH", "OLD US", "NEW US", "NEW / OLD", "BEST PEER, NEW / OLD", ""), rows)
    slower = sum(change.is_slower(tolerance) for change in changes)
    output.line(f"{slower} of {len(changes)} slower by more than {tolerance:.0%}")


def _list(format: Format) -> int:
    from kgen.bench.peers import PEERS
    from kgen.bench.workloads import WORKLOADS, layer_in_words
    from kgen.resources import shipped
    from kgen.spec.loader import load_specs

    paths = {one.spec: shipped(one.spec) for one in WORKLOADS}
    specs = {name: load_specs([path], ungenerated="allowed")[0].spec for name, path in paths.items()}
    layers = {
        one.id: layer_in_words(specs[one.spec].attention, specs[one.spec].kernels[one.kernel].kind) for one in WORKLOADS
    }
    if format is Format.JSON:
        output.data(
            {
                "workloads": [
                    {
                        "id": one.id,
                        "group": one.group,
                        "spec": one.spec,
                        "kernel": one.kernel,
                        "layer": layers[one.id],
                        "lengths": one.shape,
                    }
                    for one in WORKLOADS
                ],
                "peers": [
                    {"key": peer.key, "name": peer.name, "default": peer.is_default, "baseline": peer.is_baseline}
                    for peer in PEERS
                ],
            }
        )
        return 0
    output.table(
        ("ID", "GROUP", "SPEC", "KERNEL", "LAYER", "LENGTHS"),
        [(one.id, one.group, one.spec, one.kernel, layers[one.id], one.shape) for one in WORKLOADS],
    )
    output.line("")
    output.table(("PEER", "NAME", "TIMED"), [(peer.key, peer.name, _timed(peer)) for peer in PEERS])
    return 0


def _timed(peer: Peer) -> str:
    """When a peer is timed."""
    if peer.is_baseline:
        return "by default, as a baseline"
    if peer.is_spare:
        return "by default where no other peer is: it compiles for seconds"
    return "by default" if peer.is_default else "when it is named: it compiles for minutes"
