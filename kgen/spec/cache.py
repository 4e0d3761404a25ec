"""KV caches: where the keys and values of a request lie."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kgen.spec.base import SpecModel


class ContiguousCache(SpecModel):
    """One dense ``[B, Hkv, N, D]`` tensor each for keys and values."""

    kind: Literal["contiguous"]


class PagedCache(SpecModel):
    """Pages of ``page_size`` tokens, found through a ``block_table``."""

    kind: Literal["paged"]
    page_size: int = Field(ge=1, le=2**20, description="Tokens in a page.")


KVCache = Annotated[ContiguousCache | PagedCache, Field(discriminator="kind")]
