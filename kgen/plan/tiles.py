"""Tile sizes: the first row of the tuned table that a target can hold.

The numbers are data (``tuned/*.json``): rows by family of targets, bits of the
dtype, size of the problem and, where it matters, windowed or not and few or many
addresses, each with tiles in order of preference as
``[BLOCK_M or BLOCK_H, BLOCK_N, num_warps, num_stages]``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kgen.plan.model import Tile
from kgen.plan.shared_memory import shared_bytes
from kgen.plan.targets import TARGET_INFO

_TABLE = Path(__file__).parent / "tuned" / "portable.json"


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


@dataclass(frozen=True)
class Widths:
    """What a token takes: lanes of a scored key, rotary part included, and of a value, and bytes of an element."""

    qk: int
    v: int
    dtype_bytes: int
    values_are_keys: bool = False  # one tile is both


def _tile(
    target: str, widths: Widths, block_m: int, block_n: int, num_warps: int, num_stages: int, spill_bytes: int = 0
) -> Tile:
    estimate = shared_bytes(
        target,
        block_m,
        block_n,
        widths.qk,
        widths.v,
        widths.dtype_bytes,
        num_stages,
        num_warps,
        values_are_keys=widths.values_are_keys,
    )
    return Tile(block_m, block_n, num_warps, num_stages, estimate, spill_bytes)


def candidates(
    target: str, table: str, widths: Widths, *, rows: int, is_windowed: bool, has_many_addresses: bool = False
) -> tuple[Tile, ...]:
    """Tiles for a problem in order of preference, with their shared memory estimate, fitting or not.

    ``rows`` is the number of query rows worth tiling (decode: heads of a group,
    rounded up to a power of two); wider tiles are cut down to it. A row with
    ``lanes`` is for that pair of widths alone, of keys and of values. Pages, and a
    rotary part that is tensors of its own, are many addresses: they take registers.
    ``spills`` are the bytes that a thread spills at most with tiles that were the fastest all the same.
    """
    lanes = max(widths.qk, widths.v)
    for row in _table()[table]:
        if row["family"] not in ("*", TARGET_INFO[target].family) or row["bits"] != 8 * widths.dtype_bytes:
            continue
        if row.get("lanes", [widths.qk, widths.v]) != [widths.qk, widths.v]:
            continue
        if widths.v > row.get("max_lanes_v", widths.v):
            continue
        if lanes > row.get("max_lanes", lanes) or rows > row.get("max_rows", rows):
            continue
        if row.get("windowed", is_windowed) != is_windowed:
            continue
        if row.get("many_addresses", has_many_addresses) != has_many_addresses:
            continue
        return tuple(
            _tile(target, widths, min(block_m, rows), block_n, num_warps, num_stages, row.get("spills", 0))
            for block_m, block_n, num_warps, num_stages in row["tiles"]
        )
    bits = 8 * widths.dtype_bytes
    raise LookupError(f"no row of {_TABLE.name} covers {table}, {lanes} lanes, {rows} rows, {bits} bits")


def unaligned(table: str, target: str, widths: Widths, *, rows: int) -> tuple[Tile, ...]:
    """Tiles for tensors whose rows do not start on 16 bytes in order of preference, fitting or not.

    The list is the same for every target, but for the estimates of shared memory.
    Loads of single elements need an address each, so the tile is small. It also
    stays below what ``wgmma`` takes (64 rows by 4 warps): with that many addresses
    the ptxas that comes with Triton 3.6 gets the shared-memory address of a second
    head-dimension block wrong on sm_90 (right with its optimisation off).
    ``rows`` is BLOCK_H of a decode kernel; the accumulators of the absorbed form are
    so wide that it takes fewer.
    """
    lanes = max(widths.qk, widths.v)
    row = next(row for row in _table()["unaligned"] if lanes <= row["max_lanes"] and row.get("table", table) == table)
    tiles = []
    for block_m, block_n, num_warps, num_stages in row["tiles"]:
        if table == "decode":
            block_m = rows
        elif table == "absorbed":
            block_m = min(rows, block_m)
        warps = 2 if table != "prefill" and block_m >= 64 else num_warps
        tiles.append(_tile(target, widths, block_m, block_n, warps, num_stages))
    return tuple(tiles)
