"""A record as Markdown and as aligned text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.bench.record import KGEN, READ
from kgen.models.accounting import floor as least

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgen.bench.record import Ceilings, Record, Row
    from kgen.bench.timing import Timing
    from kgen.models.accounting import Floor

NOTHING = "—"
FLUSH_IN_WORDS = {
    "write": "L2 flushed by writing 256 MB before each",
    "read": "L2 flushed by reading 512 MB before each",
}


def markdown(record: Record) -> str:
    """What was measured where and how, a table for each flush, and why cells are empty."""
    parts = [_head(record)]
    for flush in record.flushes:
        title = [f"With {FLUSH_IN_WORDS[flush].replace('before each', 'before each replay')}:"]
        parts += title if len(record.flushes) > 1 else []
        parts.append(table(record, flush))
    notes = _notes(record)
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts)


def table(record: Record, flush: str) -> str:
    """A row a workload (Markdown)."""
    header, rows = columns(record, flush)
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def columns(record: Record, flush: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells: times in microseconds, ours with its quartiles and its part of the floor."""
    peers = names(record, flush)
    header = ["workload", "layer", "lengths", "kgen", "rate", "of the floor", "bare read", *peers, "best peer / kgen"]
    return header, [_cells(record, row, flush, peers) for row in record.rows]


def names(record: Record, flush: str) -> list[str]:
    """Peers and baselines with a figure anywhere, in the order of the cells."""
    return list(
        dict.fromkeys(
            name
            for row in record.rows
            for name, cell in row.cells.items()
            if name not in (KGEN, READ) and flush in cell.times
        )
    )


def floor(row: Row, ceilings: Ceilings | None) -> Floor | None:
    """The least time at the measured ceilings, and whether bytes or operations set it."""
    if row.work is None or ceilings is None or ceilings.read_tb_s is None or ceilings.matmul_tflop_s is None:
        return None
    return least(row.work, tflop_s=ceilings.matmul_tflop_s, memory_tb_s=ceilings.read_tb_s)


def rate(row: Row, timing: Timing, bound: Floor | None) -> str:
    """Bytes a second where they set the floor, else operations; without a floor bytes of decode."""
    if row.work is None:
        return NOTHING
    if row.kind == "decode" if bound is None else bound.bound == "memory":
        return f"{row.work.bytes / timing.us / 1e6:.2f} TB/s"
    return f"{row.work.flops / timing.us / 1e6:.0f} TFLOP/s"


def _head(record: Record) -> str:
    versions = record.versions
    tools = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton") if name in versions)
    flushes = "; ".join(FLUSH_IN_WORDS[flush] for flush in record.flushes)
    ceilings = [
        f"{_ceilings(record.ceilings[flush])} ({flush})" for flush in record.flushes if flush in record.ceilings
    ]
    if len(ceilings) == 1:
        ceilings = [ceilings[0].rpartition(" (")[0]]
    measured = f" Measured in the same run: {'; '.join(ceilings)}." if ceilings else ""
    has_quartiles = any(timing.q1 is not None for timing in _timings(record))
    quartiles = "; beside ours the quartiles of its samples" if has_quartiles else ""
    driver = f", driver {record.device['driver']}" if record.device.get("driver") else ""
    return (
        f"{record.device_name}{driver}, {record.date}, {tools}. Microseconds: medians of {record.rounds} interleaved "
        f"rounds of CUDA graph replays, {flushes}{quartiles}.{measured} *Of the floor* is the least time at these "
        "ceilings over ours; *bare read* reads the same bytes and computes nothing. "
        f"{NOTHING} is a peer that does not state the layer{', or is explained below' if _notes(record) else ''}."
    )


def _ceilings(ceilings: Ceilings) -> str:
    parts = []
    if ceilings.read_tb_s is not None:
        parts.append(f"a read of 2 GiB at {ceilings.read_tb_s:.2f} TB/s")
    if ceilings.copy_tb_s is not None:
        parts.append(f"a copy at {ceilings.copy_tb_s:.2f} TB/s")
    if ceilings.matmul_tflop_s is not None:
        parts.append(f"an 8192³ bfloat16 matrix product at {ceilings.matmul_tflop_s:.0f} TFLOP/s")
    return ", ".join(parts)


def _cells(record: Record, row: Row, flush: str, peers: Sequence[str]) -> list[str]:
    ours, ceilings = row.timing(KGEN, flush), record.ceilings.get(flush)
    best, bound = record.best_peer(row, flush), floor(row, ceilings)
    name = row.id if row.id.startswith(row.spec_name) else f"{row.id}: {row.spec_name} {row.kernel}"
    return [
        name,
        row.layer,
        row.shape,
        _with_quartiles(ours),
        NOTHING if ours is None else rate(row, ours, bound),
        NOTHING if ours is None or bound is None else f"{1e6 * bound.seconds / ours.us:.0%}",
        _us(row.timing(READ, flush)),
        *(_us(row.timing(peer, flush)) + ("*" if _note(row, peer, flush) else "") for peer in peers),
        NOTHING if ours is None or best is None else f"{best[1].us / ours.us:.2f}",
    ]


def _us(timing: Timing | None) -> str:
    return NOTHING if timing is None else f"{timing.us:.1f}"


def _with_quartiles(timing: Timing | None) -> str:
    if timing is None or timing.q1 is None or timing.q3 is None:
        return _us(timing)
    return f"{timing.us:.1f} ({timing.q1:.1f} to {timing.q3:.1f})"


def _note(row: Row, name: str, flush: str) -> str | None:
    cell = row.cells.get(name)
    return None if cell is None or flush not in cell.times else cell.note


def _timings(record: Record) -> Iterable[Timing]:
    return (timing for row in record.rows for cell in row.cells.values() for timing in cell.times.values())


def _notes(record: Record) -> list[str]:
    """What a reader of the table must know: marked cells, peers that did not load, failures, what was left out."""
    notes = []
    given: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for row in record.rows:
        for name, cell in row.cells.items():
            if cell.note and cell.times:
                given.setdefault(f"{name} got {cell.note}", []).append(row.id)
            if cell.status == "missing":
                lost[f"{name} did not load: {cell.reason}"] = []
            elif cell.status in ("failed", "wrong") or (cell.status == "not generated"):
                lost.setdefault(f"{name} {cell.status}: {cell.reason}", []).append(row.id)
            elif name == KGEN and cell.status == "unsupported":
                lost.setdefault(f"{name}: {cell.reason}", []).append(row.id)
    if given:
        notes.append("\\* " + "; ".join(f"{what} ({', '.join(ids)})" for what, ids in given.items()) + ".")
    notes += [f"{what}{f' ({chr(44).join(ids)})' if ids else ''}." for what, ids in lost.items()]
    by_reason: dict[str, list[str]] = {}
    for name, why in record.left_out.items():
        by_reason.setdefault(why, []).append(name)
    notes += [f"Not measured: {', '.join(ids)}: {why}." for why, ids in by_reason.items()]
    return notes
