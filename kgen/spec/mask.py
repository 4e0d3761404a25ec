"""Masks: which keys a query may see.

Positions are absolute: query row ``i`` of ``M`` against ``N`` keys sits at
``i + N - M`` (bottom-right alignment).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kgen.spec.base import SpecModel

# Tokens; twice as many still fit the kernels' 32-bit positions.
MAX_REACH = 2**30


class FullMask(SpecModel):
    """Every query sees every key."""

    kind: Literal["full"]


class CausalMask(SpecModel):
    """A query sees the keys up to and including its own position."""

    kind: Literal["causal"]


class SlidingWindowMask(SpecModel):
    """Causal, and only the last ``size`` keys, the query's own included (Hugging Face's meaning)."""

    kind: Literal["sliding_window"]
    size: int = Field(ge=1, le=MAX_REACH, description="Keys a query sees, its own position included.")


class WindowMask(SpecModel):
    """Keys from ``left`` before to ``right`` after the query's position (FlashAttention's meaning)."""

    kind: Literal["window"]
    left: int = Field(ge=-1, le=MAX_REACH, description="Keys before the query's position; -1 is no limit.")
    right: int = Field(ge=-1, le=MAX_REACH, description="Keys after the query's position; -1 is no limit.")


class ChunkedMask(SpecModel):
    """Causal inside consecutive chunks of ``size`` keys."""

    kind: Literal["chunked"]
    size: int = Field(ge=1, le=MAX_REACH, description="Keys in a chunk.")


class PrefixLMMask(SpecModel):
    """Causal, but the prefix of each sequence is seen by all of its queries."""

    kind: Literal["prefix_lm"]


class ExpressionMask(SpecModel):
    """A predicate over ``q_pos`` and ``kv_pos`` in the expression language."""

    kind: Literal["expression"]
    visible: str = Field(min_length=1, max_length=1000, description="True where the query sees the key.")


Mask = Annotated[
    FullMask | CausalMask | SlidingWindowMask | WindowMask | ChunkedMask | PrefixLMMask | ExpressionMask,
    Field(discriminator="kind"),
]
