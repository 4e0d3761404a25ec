"""How many query-key pairs a mask leaves, in closed form.

Query row ``i`` of ``M`` against ``N`` keys sits at position ``i + N - M``, as everywhere in kgen; rows at negative
positions (``M > N``) see no key under a causal mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.errors import InputError
from kgen.spec.mask import (
    CausalMask,
    ChunkedMask,
    ExpressionMask,
    FullMask,
    PrefixLMMask,
    SlidingWindowMask,
    WindowMask,
)

if TYPE_CHECKING:
    from kgen.spec.mask import Mask


class UncountedMaskError(InputError):
    """What the mask hides depends on more than the spec says; the message tells on what."""


@dataclass(frozen=True)
class Visible:
    """What one head of one request sees: ``pairs`` of a query and a key, and ``keys`` that any query sees."""

    pairs: int
    keys: int


def visible(mask: Mask, queries: int, keys: int, *, ahead: bool = True) -> Visible:
    """What ``queries`` rows see of ``keys`` keys.

    ``ahead=False`` also hides the keys after a query's own position, whatever the mask says: the rule of decode,
    whose query tokens are causal among themselves.

    Raises:
        UncountedMaskError: the mask is ``prefix_lm`` or an expression.
    """
    match mask:
        case FullMask():
            return _banded(queries, keys, None, None if ahead else 0)
        case CausalMask():
            return _banded(queries, keys, None, 0)
        case SlidingWindowMask(size=size):
            return _banded(queries, keys, size - 1, 0)
        case WindowMask(left=left, right=right):
            limited = right if right >= 0 else None
            return _banded(queries, keys, left if left >= 0 else None, limited if ahead else 0)
        case ChunkedMask(size=size):
            return _chunked(queries, keys, size)
        case PrefixLMMask():
            raise UncountedMaskError("pairs depend on the length of each sequence's prefix, which is an input")
        case ExpressionMask():
            raise UncountedMaskError("pairs depend on an expression, which is not counted")


def _banded(queries: int, keys: int, left: int | None, right: int | None) -> Visible:
    """A query at position p sees keys p - left to p + right; ``None`` is no limit."""
    first = keys - queries
    # Of a row, the keys up to the right limit less those left of the left one.
    below_end = queries * keys if right is None else _clamped_sum(first + right + 1, keys + right + 1, keys)
    below_start = 0 if left is None else _clamped_sum(first - left, keys - left, keys)
    # The ranges of neighbouring rows touch, and the last row stands at the last key.
    start = 0 if left is None else max(0, first - left)
    return Visible(below_end - below_start, keys - start if queries else 0)


def _chunked(queries: int, keys: int, size: int) -> Visible:
    """A query at position p >= 0 sees ``p % size + 1`` keys: its chunk up to itself."""

    def up_to(position: int) -> int:
        chunks, rest = divmod(position, size)
        return chunks * _triangle(size) + _triangle(rest)

    first = max(0, keys - queries)
    return Visible(up_to(keys) - up_to(first), keys - first // size * size if queries else 0)


def _clamped_sum(start: int, stop: int, limit: int) -> int:
    """The sum over ``start <= x < stop`` of x clamped to ``0 .. limit``."""

    def below(x: int) -> int:
        if x <= 0:
            return 0
        whole = max(0, x - limit - 1)
        return _triangle(x - 1 - whole) + whole * limit

    return below(stop) - below(start)


def _triangle(n: int) -> int:
    """1 + 2 + ... + n."""
    return n * (n + 1) // 2
