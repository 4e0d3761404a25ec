"""The plan of one generated kernel: frozen facts and choices, nothing of Pydantic.

``lower`` makes plans, ``render`` turns them into source; nothing else decides.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A power-of-two slice of a head dimension: columns ``start .. start + valid`` in ``width`` lanes."""

    start: int
    width: int
    valid: int

    @property
    def is_padded(self) -> bool:
        """Some lanes lie past the head dimension and must be masked."""
        return self.valid < self.width


@dataclass(frozen=True)
class Window:
    """Keys a query at position ``p`` sees: ``p - left`` to ``p + right``; ``None`` is no limit."""

    left: int | None
    right: int | None


@dataclass(frozen=True)
class Tile:
    """A row of the launch table.

    ``block_m`` counts query rows (prefill: query tokens, decode: query heads of
    one KV group), ``block_n`` keys. ``shared_bytes`` is the conservative
    estimate of shared memory a program takes, ``spill_bytes`` what a thread
    may spill: more than 0 for a tile that was the fastest all the same.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    shared_bytes: int
    spill_bytes: int = 0


@dataclass(frozen=True)
class RowTile:
    """A row of the launch table of a kernel that merges: ``block_r`` rows of the output a program."""

    block_r: int
    num_warps: int
    num_stages: int
    shared_bytes: int
    spill_bytes: int = 0


@dataclass(frozen=True)
class PrefillPlan:
    """How the tensors of a prefill kernel hold a batch."""

    layout: str  # order of the axes: "bhsd" | "bshd" | "ragged", tokens of all requests in one axis, then heads
    lengths: str  # where the lengths of a request stand: "shapes" | "seq_lens" | "indptr" | "chunks"
    address: str  # of keys and values: "contiguous" | "paged" | "paged_tile", as of DecodePlan
    page_size: int | None  # tokens in a page; None is no paged cache
    nope_rope: tuple[int, int] | None  # the expanded form: widths of the two parts of a query and of a key


@dataclass(frozen=True)
class HopperPlan:
    """The form of a prefill kernel for sm_90: one warp loads by TMA, warpgroups compute."""

    groups: int  # warpgroups that compute, 64 query rows each
    keys: int  # of a tile
    locate: str  # "rows" | "page" | "pages" | "tokens": parts/sm90_load_keys_<locate>; a page of tiles, a tile of pages
    v_width: int  # columns of values and outputs in shared memory: TMA fills those past the head, stores none
    stages: int  # tiles of keys, and as many of values, in shared memory
    registers: int  # of a thread that computes
    load_warps: int
    load_registers: int  # of a thread of the warps that load
    max_registers: int  # of every thread at the start
    has_out_buffer: bool  # outputs have shared memory of their own; else they leave through that of the queries
    shared_bytes: int
    spill_bytes: int  # that a thread may spill
    releases: tuple[tuple[int, int], tuple[int, int]]  # of Triton, first and last, that compile what it is written in

    @property
    def releases_in_words(self) -> str:
        """As modules and their warnings say it."""
        return " to ".join(f"{major}.{minor}" for major, minor in self.releases)

    @property
    def rows(self) -> int:
        """Query rows of a tile of work."""
        return 64 * self.groups


@dataclass(frozen=True)
class DecodePlan:
    """How a decode kernel cuts its work and merges the parts."""

    address: str  # "contiguous" | "paged" | "paged_tile": parts/address_<address> and parts/locate_<address>
    page_size: int | None  # tokens in a page; None is a contiguous cache
    has_fixed_slots: bool  # a tile is whole pages: a row of it has the same slot of its page in every tile
    num_splits: int | None  # fixed number of splits; None is the balanced schedule
    head_tiles: int  # tiles of query heads that cover a group
    tiles: str  # "apart" | "masked": whole tiles apart from the last, or one loop over all
    walk: str  # "units" | "tasks": how a program of the balanced schedule loops over its share
    programs_per_sm: int  # of the balanced schedule
    batch_chunk: int  # requests whose lengths are read at a time to find a program's share
    merge_chunk: int  # parts merged at a time
    merge_warps: int
    pdl_targets: tuple[str, ...]  # where the merge is launched before the parts have ended, and waits for them


@dataclass(frozen=True, kw_only=True)
class ModulePlan:
    """What the plans of all kernels state: where a module comes from, and how it is launched."""

    spec_name: str
    spec_path: str  # as written in the header: "specs/llama3_8b.yaml"
    spec_digest: str
    spec: dict[str, object]  # the resolved spec as plain data, the module's SPEC
    kernel: str  # name of the module
    template: str  # "prefill" | "decode" | "merge_states": templates/kernels/<template>.py.j2
    dtype: str  # "float16" | "bfloat16" | "float32"
    num_qo_heads: int
    head_dim_v: int
    stride_unit: int  # elements in 16 bytes: rows at multiples of it load at full width
    launch: tuple[tuple[str, Tile | RowTile], ...]  # by target, in the order of spec.targets
    reasons: tuple[tuple[str, str], ...]  # (choice, why), for `kgen explain`

    def tile(self, target: str, *, is_aligned: bool, form: str = "portable") -> Tile | RowTile | HopperPlan:
        """What ``form`` is launched with on ``target``, for rows that start on 16 bytes or for others."""
        return dict(self.launch)[target]


@dataclass(frozen=True, kw_only=True)
class MergePlan(ModulePlan):
    """Everything the renderer needs to write a module that merges partial results."""

    launch: tuple[tuple[str, RowTile], ...]
    layout: str  # of a part: "bhd" | "bhsd" | "bshd" | "ragged"
    form: str | None  # of a latent layer, whose outputs are merged: "absorbed" | "expanded"
    lanes: int  # power of two that holds a row of head_dim_v
    most_rows: int  # of a part; rows are counted in 32 bits


@dataclass(frozen=True, kw_only=True)
class KernelPlan(ModulePlan):
    """Everything the renderer needs to write a module that computes attention."""

    launch: tuple[tuple[str, Tile], ...]
    allow_tf32: bool
    num_kv_heads: int
    head_dim_qk: int
    head_dim_pe: int | None  # width of the separate rotary block of queries and keys
    values_are_keys: bool  # the absorbed form: one latent a token is key and value
    qk_blocks: tuple[Block, ...]
    pe_blocks: tuple[Block, ...]
    v_blocks: tuple[Block, ...]
    sm_scale: float
    mask: str  # kind of the mask, for the words of the docstring
    window: Window
    section_bytes: int  # prefill: keys and values that heads in flight should share in L2
    kv_bytes_per_token: int  # of one KV head: a key, its rotary block and a value
    prefill: PrefillPlan | None  # what only prefill decides
    decode: DecodePlan | None  # what only decode decides
    hopper: HopperPlan | None  # a second module for sm_90, where it has such a form
    unaligned: Tile  # on every target, for tensors whose rows do not start on 16 bytes

    def tile(self, target: str, *, is_aligned: bool, form: str = "portable") -> Tile | HopperPlan:
        """As of any module; one small tile serves the other rows on every target."""
        if form == "sm_90":
            assert self.hopper is not None
            return self.hopper
        return dict(self.launch)[target] if is_aligned else self.unaligned

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.num_kv_heads
