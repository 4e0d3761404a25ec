"""How a head dimension is cut into power-of-two blocks.

``tl.arange`` needs powers of two and ``tl.dot`` at least 16 columns. A dimension
is one block, padded with masked lanes, or two (72 = 64 + 8 in 16 lanes,
192 = 128 + 64) where that leaves fewer lanes idle.
"""

from __future__ import annotations

from kgen.plan.model import Block

MIN_BLOCK = 16


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def blocks_of(head_dim: int) -> tuple[Block, ...]:
    """One block or two, whichever computes fewer lanes; one where they tie."""
    whole = max(MIN_BLOCK, next_power_of_2(head_dim))
    low = whole // 2
    high = max(MIN_BLOCK, next_power_of_2(head_dim - low)) if head_dim > low else 0
    if low >= MIN_BLOCK and high > 0 and low + high < whole:
        return Block(0, low, low), Block(low, high, head_dim - low)
    return (Block(0, whole, head_dim),)


def lanes(blocks: tuple[Block, ...]) -> int:
    """Lanes computed for a row, idle ones included."""
    return sum(block.width for block in blocks)
