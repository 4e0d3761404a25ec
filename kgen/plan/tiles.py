"""Tile sizes: the first row of the tuned table that a target can hold.

The numbers are data (``tuned/*.json``): rows by family of targets, bits of the
dtype, size of the problem and, where it matters, windowed or not and few or many
addresses, each with tiles in order of preference as
``[BLOCK_M or BLOCK_H, BLOCK_N, num_warps, num_stages]``.
"""

from __future__ import annotations

import json
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


def candidates(
    target: str,
    template: str,
    *,
    rows: int,
    lanes_qk: int,
    lanes_v: int,
    dtype_bytes: int,
    is_windowed: bool,
    has_many_addresses: bool = False,
) -> tuple[Tile, ...]:
    """Tiles for a problem in order of preference, with their shared memory estimate, fitting or not.

    ``rows`` is the number of query rows worth tiling (decode: heads of a group,
    rounded up to a power of two); wider tiles are cut down to it. A row with
    ``lanes`` is for that pair of widths alone, of keys and of values. Pages, and a
    rotary part that is tensors of its own, are many addresses: they take registers.
    """
    lanes = max(lanes_qk, lanes_v)
    for row in _table()[template]:
        if row["family"] not in ("*", TARGET_INFO[target].family) or row["bits"] != 8 * dtype_bytes:
            continue
        if row.get("lanes", [lanes_qk, lanes_v]) != [lanes_qk, lanes_v]:
            continue
        if lanes_v > row.get("max_lanes_v", lanes_v):
            continue
        if lanes > row.get("max_lanes", lanes) or rows > row.get("max_rows", rows):
            continue
        if row.get("windowed", is_windowed) != is_windowed:
            continue
        if row.get("many_addresses", has_many_addresses) != has_many_addresses:
            continue
        return tuple(
            Tile(
                min(block_m, rows),
                block_n,
                num_warps,
                num_stages,
                shared_bytes(
                    target, min(block_m, rows), block_n, lanes_qk, lanes_v, dtype_bytes, num_stages, num_warps
                ),
            )
            for block_m, block_n, num_warps, num_stages in row["tiles"]
        )
    raise LookupError(f"no row of {_TABLE.name} covers {template}, {lanes} lanes, {rows} rows, {8 * dtype_bytes} bits")


def unaligned(template: str, target: str, *, rows: int, lanes_qk: int, lanes_v: int, dtype_bytes: int) -> Tile:
    """The tile for tensors whose rows do not start on 16 bytes, the same on every target.

    Loads of single elements need an address each, so the tile is small. It also
    stays below what ``wgmma`` takes (64 rows by 4 warps): with that many addresses
    the ptxas that comes with Triton 3.6 gets the shared-memory address of a second
    head-dimension block wrong on sm_90 (right with its optimisation off).
    ``rows`` is BLOCK_H of a decode kernel.
    """
    lanes = max(lanes_qk, lanes_v)
    row = next(row for row in _table()["unaligned"] if lanes <= row["max_lanes"])
    block_m, block_n, num_warps, num_stages = row["tile"]
    if template == "decode":
        block_m = rows
        num_warps = num_warps if rows < 64 else 2
    estimate = shared_bytes(target, block_m, block_n, lanes_qk, lanes_v, dtype_bytes, num_stages, num_warps)
    return Tile(block_m, block_n, num_warps, num_stages, estimate)
