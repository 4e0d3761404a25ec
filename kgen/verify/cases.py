"""Cases: the shapes, values, layouts and splits a kernel is tried on.

They follow from the spec and from the tile sizes of the module, so that every
edge of a tile, of a window and of a split is met. Each case says why it exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kgen.spec.cache import PagedCache
from kgen.spec.mask import SlidingWindowMask, WindowMask
from kgen.spec.model import DecodeKernel, GroupedAttention, PrefillKernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgen.spec.model import SpecFile


@dataclass(frozen=True)
class Tiles:
    """The tile sizes of one target: rows (queries or heads) and keys."""

    target: str
    rows: int
    keys: int


@dataclass(frozen=True)
class Case:
    """One call of a kernel.

    ``kv_len`` is N, the number of keys or the capacity of the cache.
    ``seq_lens`` are the keys of each request where they differ from N;
    ``qo_lens`` the queries of each in a prefill of padded or ragged sequences.
    ``num_splits`` and ``max_seq_len`` are for decode (``None`` leaves them out).
    ``tensors`` is the order of a prefill's axes. ``values`` and ``layout`` name
    the numbers and where they lie; ``target`` is the row of the launch table.
    With a ``page_size`` the cache is paged, and ``shares_pages`` says that requests
    have pages in common; pages further than ``reach`` keys before a query are
    free, ``None`` frees none.
    """

    name: str
    reason: str
    target: str
    batch: int
    q_len: int
    kv_len: int
    seq_lens: tuple[int, ...] | None = None
    num_splits: int | None = None
    max_seq_len: int | None = None
    values: str = "normal"
    layout: str = "dense"
    page_size: int | None = None
    reach: int | None = None
    shares_pages: bool = False
    every_program: bool = False  # the interpreter may run a sample of the others
    qo_lens: tuple[int, ...] | None = None
    tensors: str = "bhsd"  # or "bshd", "ragged"

    @property
    def is_decode(self) -> bool:
        """One query token a request, and no axis for it."""
        return self.seq_lens is not None and self.qo_lens is None

    @property
    def shape(self) -> str:
        """The sizes in a word: ``B2 M5 N9``, for decode ``B2 N9 [3,9]``, with lengths ``B2 M5 [3,5] N9 [3,9]``."""
        if self.seq_lens is None:
            return f"B{self.batch} M{self.q_len} N{self.kv_len}"
        if self.qo_lens is not None:
            return f"B{self.batch} M{self.q_len} {list(self.qo_lens)} N{self.kv_len} {list(self.seq_lens)}"
        splits = "" if self.num_splits is None else f" splits {self.num_splits}"
        return f"B{self.batch} N{self.kv_len} {list(self.seq_lens)}{splits}"


# Values that break softmaxes, and why; `values.py` makes them.
HOSTILE: Mapping[str, str] = {
    "below": "every visible logit lies below -1e4: a finite sentinel or a stored 0 maximum wins over them",
    "huge": "logits are +-2.5e5: products overflow where the maximum is not subtracted first",
    "fp16_range": "q and k are 256: a dot product of 8e6 does not fit float16",
    "dominant": "one key takes nearly all the weight",
    "equal": "all logits are equal: the output is the mean, the LSE the logarithm of a count",
    "denormal": "inputs near the smallest numbers of the dtype",
}
_LAYOUTS = ("odd", "offset", "k_strided", "v_transposed", "fused", "expanded")
_SPARSE = ("sparse_rows", "sparse_heads", "sparse_batch")
_EDGE = "the left edge of the window, off by one on either side; some keys outweigh all others"
_STRIDES = "addresses follow each tensor's own strides"
_OFFSETS = "offsets that do not fit 32 bits"


def window_reach(spec: SpecFile) -> int | None:
    """How many keys before its own position a query sees; ``None`` is no limit."""
    assert isinstance(spec.attention, GroupedAttention)
    mask = spec.attention.mask
    if isinstance(mask, SlidingWindowMask):
        return mask.size - 1
    if isinstance(mask, WindowMask) and mask.left >= 0:
        return mask.left
    return None


def interpreter_cases(spec: SpecFile, kernel: str, launch: tuple[Tiles, ...]) -> tuple[Case, ...]:
    """The cases for Triton's interpreter: small, and every edge. ``launch`` holds one row a target."""
    if _is_decode(spec, kernel):
        return _paged(spec, kernel, _decode(spec, launch), _page_edges(spec, kernel, launch[0]))
    made = (*_batched(spec, kernel, _prefill(spec, launch)), *_lengths(spec, kernel, launch[0]))
    return _paged(spec, kernel, made, _chunk_edges(spec, kernel, launch[0]))


def _is_decode(spec: SpecFile, kernel: str) -> bool:
    return isinstance(spec.kernels[kernel], DecodeKernel)


def page_size(spec: SpecFile, kernel: str) -> int | None:
    """Tokens in a page of the cache of an attention kernel; ``None`` is no paged cache."""
    plan = spec.kernels[kernel]
    assert isinstance(plan, PrefillKernel | DecodeKernel)
    return plan.kv.page_size if isinstance(plan.kv, PagedCache) else None


def _paged(spec: SpecFile, kernel: str, cases: Iterable[Case], edges: Iterable[Case] = ()) -> tuple[Case, ...]:
    """The cases of a kernel as they are, or in pages and with those of the edges of pages."""
    size = page_size(spec, kernel)
    if size is None:
        return tuple(cases)
    # An expanded cache would be one page.
    both = (case for case in (*cases, *edges) if case.layout != "expanded")
    return tuple(replace(case, page_size=size, reach=window_reach(spec)) for case in both)


def _chunk_edges(spec: SpecFile, kernel: str, tiles: Tiles) -> Iterator[Case]:
    """Chunks of a paged cache."""
    size = page_size(spec, kernel) or 1
    rows, t = tiles.rows, tiles.keys

    def case(name: str, reason: str, queries: tuple[int, ...], lengths: tuple[int, ...], **more: Any) -> Case:
        sizes = {"q_len": max(queries), "kv_len": max(lengths) + 1, "qo_lens": queries, "seq_lens": lengths}
        fixed = {"target": tiles.target, "batch": len(queries), "tensors": "ragged", "every_program": True}
        return Case(name, reason, **{**fixed, **sizes, "values": "beacons", **more})

    near = min(size, 4 * t)
    edges = tuple(n for n in (near - 1, near, near + 1) if n > 0)
    yield case("page edges", "a last page that lacks one token, is full, and holds one", (3,) * len(edges), edges)
    yield case("full table", "no entry behind the last page, and no tile ahead of the last", (1, 3), (1, t), kv_len=t)
    yield case("pages and tiles", "pages and tiles that end in different places", (5, 2), (2 * t + 2, t + near % t))
    yield case("late chunk", "many tiles of whole keys before the diagonal", (rows + 2,), (rows + 3 * t + 5,))
    reason = "requests without queries or keys at both ends and between, whose pages are not looked at"
    yield case("nothing to do", reason, (0, 2, 0, 4, 3, 0), (t + 3, 0, 0, t + 9, 5, size + 1))
    yield case("more queries than keys", "rows that see nothing where the mask is causal", (5, rows + 3, 1), (3, 2, 0))
    if 1 < size <= 256:
        yield case("far rows of a page", _OFFSETS, (3, 1), (size, size - 1), layout="sparse_rows")
    reason = "requests with a common prefix"
    yield case("shared pages", reason, (4, 1, 6), (2 * t + 5, t + 3, 2 * t + 5), shares_pages=True)


def _page_edges(spec: SpecFile, kernel: str, tiles: Tiles) -> Iterator[Case]:
    """Decode of the edges of pages."""
    assert isinstance(spec.attention, GroupedAttention)
    size = page_size(spec, kernel) or 1
    t = tiles.keys

    def case(name: str, reason: str, *lengths: int, spare: int = 0, **more: Any) -> Case:
        fixed = {"target": tiles.target, "batch": len(lengths), "q_len": 1, "kv_len": max(lengths) + spare}
        return Case(name, reason, **{**fixed, "seq_lens": lengths, "values": "beacons", **more})

    edges = [n for n in (size - 1, size, size + 1) if n > 0]
    # One length on the far side of the edge says most, where three would take long.
    edges = edges if size * spec.attention.num_kv_heads <= 1024 else edges[-1:]
    yield case("page edges", "a last page that lacks one token, is full, and holds one", *edges, spare=2 * size)
    yield case("full table", "no entry behind the last page, and no tile ahead of the last", 1, 2 * t)
    if 1 < size <= 256:
        yield case("layout sparse_rows, whole pages", _OFFSETS, size, size - 1, num_splits=1, layout="sparse_rows")
    yield case("pages and tiles", "pages and tiles that end in different places", 2 * t + 2, t + size % t, spare=t)
    yield case("shared pages", "requests with a common prefix", 2 * t + 5, t + 3, 2 * t + 5, spare=1, shares_pages=True)
    yield case(
        "shared pages, more splits than pages",
        "splits that own no page",
        t + 3,
        t + 1,
        num_splits=2 + -(-(t + 3) // size) if size > t // 4 else 9,
        shares_pages=True,
    )


def _batched(spec: SpecFile, kernel: str, made: Iterable[Case]) -> Iterator[Case]:
    """Cases of a dense prefill, for one whose batches may be padded or packed: all requests of one length."""
    prefill = spec.kernels[kernel]
    assert isinstance(prefill, PrefillKernel)
    for case in made:
        case = replace(case, tensors=prefill.layout)
        if prefill.layout == "ragged":
            # There is no axis of the batch, but one of pages.
            if case.layout != "sparse_batch" or isinstance(prefill.kv, PagedCache):
                yield replace(case, qo_lens=(case.q_len,) * case.batch, seq_lens=(case.kv_len,) * case.batch)
        elif prefill.padded:
            # As many queries as keys, and some padding behind them; not where the last row must be far away.
            length = case.kv_len if case.q_len else 0
            size = length + (0 if case.layout in _SPARSE else 3) * (case.q_len > 0)
            lengths = (length,) * case.batch
            yield replace(case, q_len=size, kv_len=size, qo_lens=lengths, seq_lens=lengths)
        else:
            yield case


def _lengths(spec: SpecFile, kernel: str, tiles: Tiles) -> Iterator[Case]:
    """Requests of unlike lengths, for kernels that take such."""
    prefill = spec.kernels[kernel]
    assert isinstance(prefill, PrefillKernel)
    rows, keys = tiles.rows, tiles.keys

    def case(
        name: str, reason: str, queries: Sequence[int], seq_lens: Sequence[int] | None = None, **more: Any
    ) -> Case:
        known = tuple(queries), tuple(queries if seq_lens is None else seq_lens)
        spare = 0 if prefill.layout == "ragged" else 2
        sizes = {"q_len": max(known[0], default=0) + spare, "kv_len": max(known[1], default=0) + spare}
        fixed = {"target": tiles.target, "batch": len(queries), "tensors": prefill.layout, "every_program": True}
        return Case(name, reason, **{**fixed, **sizes, "qo_lens": known[0], "seq_lens": known[1], **more})

    if prefill.layout != "ragged" and not prefill.padded:
        return
    reason = "0, 1 and a tile more or less in one batch, nothing at both ends and in the middle"
    yield case("lengths", reason, (0, keys + 1, 1, 0, keys - 1, 0), values="beacons")
    yield case("lengths over row tiles", "a request ends inside a tile of rows, or before it", (rows + 1, 3, rows))
    yield case("all empty", "no request has a token", (0, 0), q_len=5, kv_len=5)
    yield case("lengths odd", "the caller's own out, rows of no request at its end", (5, 0, 17), layout="odd")
    if prefill.padded:
        yield case("much padding", "whole tiles of rows that hold padding alone", (3, 0, 1), q_len=2 * rows + 5)
        return
    reason = "queries at the end of more keys; keys without queries, queries without keys"
    yield case("prefixes", reason, (3, 0, 5, 2), (keys + 3, 7, 0, 2), values="beacons")
    yield case("far rows", _OFFSETS, (9,), layout="sparse_rows")
    yield case("far request", _OFFSETS, (5, 5, 1), layout="sparse_rows")
    yield case("loose max_qo_len", "the host's bound is above every length", (3, 7), q_len=rows + 9)


def _prefill(spec: SpecFile, launch: tuple[Tiles, ...]) -> Iterator[Case]:
    tiles = launch[0]
    rows, keys = tiles.rows, tiles.keys
    reach = window_reach(spec)

    def case(name: str, reason: str, b: int, m: int, n: int, **more: Any) -> Case:
        return Case(name, reason, **{"target": tiles.target, "batch": b, "q_len": m, "kv_len": n, **more})

    yield case(
        "every head", "each head finds its own q and out, and its group's k and v", 1, 3, keys + 1, every_program=True
    )
    yield case("no keys", "O is 0 and LSE -inf, and both are written", 2, 3, 0)
    yield case("no queries", "an empty grid is not launched", 2, 0, 5)
    yield case("no batch", "an empty grid is not launched", 0, 3, 5)
    yield case("one token", "the smallest problem", 1, 1, 1)
    yield case("tile - 1", "a last tile short by one, on both sides; more queries than keys", 1, rows - 1, keys - 1)
    yield case("tile", "whole tiles alone", 1, rows, keys)
    yield case("tile + 1", "a last tile of one row and one key", 1, rows + 1, keys + 1)
    yield case("square", "the diagonal crosses tiles", 1, 2 * keys + 3, 2 * keys + 3)
    yield case("chunk", "fewer queries than keys: the chunk is the end of the sequence", 2, 17, 2 * keys + 5)
    yield case("M > N", "rows before the first key see none where the mask is causal", 1, rows + 9, 7)
    yield case("odd batch", "batch strides", 3, 5, 19)
    yield case("one query", "a prefill of one token at the end of many keys", 2, 1, 3 * keys + 1)
    if reach is not None:
        edge = reach + 1  # keys a query sees, with its own
        for n in (edge - 1, edge, edge + 1):
            yield case(f"window {n - edge:+d}", _EDGE, 1, min(n, 3), n, values="beacons")
        yield case("window over tiles", _EDGE, 1, rows + 3, edge + rows + 5, values="beacons")
    for values, reason in HOSTILE.items():
        yield case(f"values {values}", reason, 1, rows // 2 + 3, 2 * keys + 3, values=values)
    # The window of the first row starts in the middle of a tile, which the last rows do not see at all.
    first = 2 * keys if reach is None else reach + keys // 2 + 1
    reason = "a first visited tile that shows a row nothing, then only logits below -1e4"
    yield case("late rows", reason, 1, rows, rows + first, values="below")
    reason = "single keys at the diagonal and at tile edges outweigh all others"
    yield case("beacons", reason, 1, keys + 9, 2 * keys + 9, values="beacons")
    for layout in _LAYOUTS:
        yield case(f"layout {layout}", _STRIDES, 2, 19, keys + 3, layout=layout)
    for layout in _SPARSE:
        yield case(f"layout {layout}", _OFFSETS, 3, 5, 5, layout=layout)
    for other in _distinct(launch)[1:]:
        m, n = other.rows + 1, 2 * other.keys + 1
        yield case(f"tiles of {other.target}", "every row of the launch table is right", 1, m, n, target=other.target)


def _decode(spec: SpecFile, launch: tuple[Tiles, ...]) -> Iterator[Case]:
    assert isinstance(spec.attention, GroupedAttention)
    tiles = launch[0]
    t = tiles.keys
    reach = window_reach(spec)

    def case(name: str, reason: str, *lengths: int, splits: int | None = None, spare: int = 3, **more: Any) -> Case:
        fixed = {"target": tiles.target, "batch": len(lengths), "q_len": 1, "kv_len": max(lengths, default=0) + spare}
        return Case(name, reason, **{**fixed, "seq_lens": lengths, "num_splits": splits, **more})

    yield case("lengths", "0, 1 and a tile more or less in one batch", 0, 1, t - 1, t, t + 1, 3 * t + 2)
    yield case("short before long", "a share whose last request is unlike its first", 1, 9 * t + 2)
    yield case("lengths, 1 split", "no merge", t + 1, 0, splits=1)
    yield case("lengths, 2 splits", "a last split shorter than a tile", t + 1, 2 * t, splits=2)
    yield case("lengths, 3 splits", "splits that own no tile", 3 * t + 5, 0, splits=3)
    yield case("lengths, 7 splits", "more splits than tiles", t + 1, splits=7)
    if spec.attention.num_kv_heads <= 8:  # the programs of more heads would take long
        reason = "a merge of more than 32 parts, the first 32 all empty"
        yield case("lengths, 33 splits", reason, 11, splits=33, values="below")
    yield case("all empty", "no request has a key", 0, 0)
    yield case("all empty, 3 splits", "every split of every request is empty", 0, splits=3)
    yield case("no batch", "an empty grid is not launched")
    yield case("no cache", "a cache of no capacity", 0, spare=0)
    yield case("full cache", "no spare rows behind the last key", 2 * t, spare=0)
    yield case("max_seq_len", "the host's bound is below the capacity", t + 3, 2, spare=4 * t, max_seq_len=t + 7)
    if reach is not None:
        edge = reach + 1
        # One length on the far side of the edge says most, where three would take long.
        edges = (edge - 1, edge, edge + 1) if edge * spec.attention.num_kv_heads <= 16384 else (edge + 1,)
        yield case("window", _EDGE, *edges, values="beacons")
        yield case(
            "window, 3 splits", "splits of a window that starts inside a tile", edge + 9, splits=3, values="beacons"
        )
    for values, reason in HOSTILE.items():
        yield case(f"values {values}", reason, t + 5, splits=2, values=values)
    yield case("beacons", "single keys at the edges of tiles outweigh all others", 2 * t + 2, values="beacons")
    for layout in _LAYOUTS:
        yield case(f"layout {layout}", _STRIDES, 7, 3, layout=layout)
    yield case("layout odd, 2 splits", "a merge writes with the strides of out", t + 2, 5, splits=2, layout="odd")
    for layout in _SPARSE:
        yield case(f"layout {layout}", _OFFSETS, 7, 6, 5, spare=0, splits=1, layout=layout)
    yield case("layout sparse_batch, 2 splits", _OFFSETS, t + 1, 1, 1, splits=2, layout="sparse_batch")
    for other in _distinct(launch)[1:]:
        reason = "every row of the launch table is right"
        yield case(f"tiles of {other.target}", reason, 2 * other.keys + 1, target=other.target)


def _distinct(launch: tuple[Tiles, ...]) -> tuple[Tiles, ...]:
    """One row for each pair of tile sizes, the first target of each."""
    seen: dict[tuple[int, int], Tiles] = {}
    for tiles in launch:
        seen.setdefault((tiles.rows, tiles.keys), tiles)
    return tuple(seen.values())


def device_cases(spec: SpecFile, kernel: str, tiles: Tiles) -> tuple[Case, ...]:
    """The cases for a GPU with this row of the launch table: the interpreter's, and full shapes."""
    small = interpreter_cases(spec, kernel, (tiles,))
    if not _is_decode(spec, kernel):
        return (*small, *_paged(spec, kernel, _batched(spec, kernel, _long_prefill(spec, tiles))))
    return (*small, *_paged(spec, kernel, _long_decode(spec, tiles)))


def _long_prefill(spec: SpecFile, tiles: Tiles) -> Iterator[Case]:
    reach = window_reach(spec)
    past = 4096 if reach is None else reach + 1
    for name, reason, b, m, n, values in (
        ("long", "many tiles of rows and keys", 1, 4096, 4096, "normal"),
        ("long odd", "lengths of no tile", 3, 1021, 1021, "normal"),
        ("long chunk", "a chunk at the end of a long sequence", 1, 512, 8192, "normal"),
        ("long odd chunk", "a chunk that starts inside a tile", 2, 300, 5003, "normal"),
        ("long M > N", "many rows without keys where the mask is causal", 2, 1500, 700, "normal"),
        ("past the window", "rows that see no first key", 1, 1024, past + 1500, "normal"),
        ("long beacons", "edges of windows and diagonals over many tiles", 1, 2048, past + 2048, "beacons"),
        ("long below", "logits below -1e4 over many tiles", 1, 1024, 3000, "below"),
    ):
        yield Case(name, reason, tiles.target, b, m, n, values=values)


def _long_decode(spec: SpecFile, tiles: Tiles) -> Iterator[Case]:
    past = (window_reach(spec) or 4095) + 1
    ragged = tuple((i * 977) % 4001 for i in range(64))
    for name, reason, lengths, splits, values in (
        ("long", "one long request", (16384,), None, "normal"),
        ("long, 13 splits", "splits of unequal numbers of tiles", (16001, 5), 13, "normal"),
        ("64 requests", "a ragged batch", ragged, None, "normal"),
        ("64 requests, 3 splits", "a ragged batch in equal ranges", ragged, 3, "normal"),
        ("one long of many", "work of very unequal size", (12000, *([17] * 31)), None, "normal"),
        (
            "long beacons",
            "edges of tiles, splits and windows",
            (past - 1, past, past + 1, past + 3000),
            None,
            "beacons",
        ),
        ("long below", "logits below -1e4 over many splits", (7000, 3001), 5, "below"),
    ):
        yield Case(name, reason, tiles.target, len(lengths), 1, max(lengths) + 64, lengths, splits, values=values)
