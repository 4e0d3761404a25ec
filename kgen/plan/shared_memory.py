"""A conservative estimate of the shared memory a program takes, before anything is compiled."""

from __future__ import annotations


def shared_bytes(
    target: str,
    template: str,
    block_m: int,
    block_n: int,
    lanes_qk: int,
    lanes_v: int,
    dtype_bytes: int,
    num_stages: int,
    num_warps: int,
) -> int:
    """Bytes for the pipelined K and V tiles, the query tile, and the scratch of layout conversions."""
    pipelined = max(1, num_stages) * block_n * (lanes_qk + lanes_v) * dtype_bytes
    query = block_m * lanes_qk * dtype_bytes
    conversions = block_m * block_n * dtype_bytes + 4 * block_m * num_warps
    return pipelined + query + conversions + 1024
