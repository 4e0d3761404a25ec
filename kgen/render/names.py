"""The names that templates give to blocks, tensors and strides, and what every attention kernel has of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.render.words import laws, pretty, wrapped

if TYPE_CHECKING:
    from kgen.plan.model import Block, KernelPlan, Tile

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class NamedBlock:
    """A block of a head dimension with the names it has in the kernel."""

    suffix: str
    start: int
    width: int
    valid: int
    is_padded: bool
    offs: str
    ok: str


@dataclass(frozen=True)
class ScoredBlock(NamedBlock):
    """A block of queries and keys whose product is part of the scores.

    ``part`` is "" or, of a rotary block that is tensors of its own, "_pe"; ``key`` is "k" or, of a latent that is
    key and value, "kv". The block is ``q{suffix}``, ``{key}{suffix}`` and ``{key}_ptrs{suffix}``, its tensors
    ``q{part}`` and ``{key}{part}``.
    """

    part: str
    key: str
    q_row: str  # stride between the rows of q{part}
    k_row: str
    k_tile: str  # the way from k_ptrs{suffix} to a tile


def named(blocks: tuple[Block, ...], stem: str, part: str = "") -> tuple[NamedBlock, ...]:
    sides = ("_lo", "_hi") if len(blocks) == 2 else ("",) * len(blocks)
    return tuple(
        NamedBlock(part + s, b.start, b.width, b.valid, b.is_padded, f"offs_{stem}{s}", f"{stem}_ok{s}")
        for s, b in zip(sides, blocks, strict=True)
    )


def _stride(tensor: str, axis: str) -> str:
    """The name of a stride argument: ``stride_kn``, of a rotary block ``stride_kpe_n``."""
    return f"stride_{tensor}{axis}" if len(tensor) == 1 else f"stride_{tensor.replace('_', '')}_{axis}"


def _tile(address: str, tensor: str) -> str:
    """The way from the pointers of ``tensor`` to a tile: along its rows, or to the rows that pages say."""
    return {"paged": f"{tensor}_rows[:, None]", "paged_tile": f"{tensor}_row"}.get(
        address, f"start_n * {_stride(tensor, 'n')}"
    )


def _content(plan: KernelPlan) -> str:
    """The name of the keys without their rotary part; a latent is the value too."""
    return "kv" if plan.values_are_keys else "k"


def _scored(plan: KernelPlan, address: str) -> tuple[ScoredBlock, ...]:
    """The blocks whose products add up to the scores, the rotary ones last."""
    parts = (("", _content(plan), named(plan.qk_blocks, "d")), ("_pe", "k", named(plan.pe_blocks, "pe", "_pe")))
    return tuple(
        ScoredBlock(
            **vars(block),
            part=part,
            key=key,
            q_row=_stride(f"q{part}", "m"),
            k_row=_stride(f"{key}{part}", "n"),
            k_tile=_tile(address, f"{key}{part}"),
        )
        for part, key, blocks in parts
        for block in blocks
    )


@dataclass(frozen=True)
class NamedTensor:
    """A tensor of a call: ``name`` in the kernel (``k_pe``), ``argument`` of the function (``k_pe_cache`` where paged).

    ``axes`` are those with a stride argument, and ``cut`` the slice of the tensor's strides that are theirs.
    ``heads`` is ``None`` where the tensor has no axis for them.
    """

    name: str
    argument: str
    heads: int | None
    dim: int
    axes: str
    cut: str

    @property
    def record(self) -> str:
        """The sizes of one token: its heads, where there is an axis for them, and their width."""
        return str(self.dim) if self.heads is None else f"{self.heads}, {self.dim}"

    def stride(self, axis: str) -> str:
        """The name of the stride argument of an axis."""
        return _stride(self.name, axis)

    @property
    def strides(self) -> tuple[str, ...]:
        """The names of its stride arguments."""
        return tuple(self.stride(axis) for axis in self.axes)

    @property
    def values(self) -> str:
        """The strides themselves, as the launcher passes them."""
        return f"*{self.argument}.stride(){self.cut}"


def key_axes(plan: KernelPlan, axes: str) -> tuple[str, str]:
    """Of the axes of keys, those with a stride argument, and the slice of the strides that are theirs.

    A single KV head has no stride between heads, and the latent of a token no axis for them.
    """
    if plan.values_are_keys:
        axes = axes.replace("h", "")
        return axes, f"[:{len(axes)}]"
    if plan.num_kv_heads > 1:
        return axes, f"[:{len(axes)}]"
    cut = {"bhn": "[::2]", "bnh": "[:2]", "nh": "[:1]", "pnh": "[:2]", "ph": "[:1]"}[axes]
    return axes.replace("h", ""), cut


def page_axes(plan: KernelPlan, page_size: int) -> tuple[str, str]:
    """The same for a paged cache; a page of one token has no stride inside."""
    if page_size > 1:
        return key_axes(plan, "pnh")
    if plan.values_are_keys:
        return "p", "[:1]"
    return ("ph", "[::2]") if plan.num_kv_heads > 1 else ("p", "[:1]")


def tensors(
    plan: KernelPlan, queries: str, keys: tuple[str, str], cache: str = ""
) -> tuple[tuple[NamedTensor, ...], tuple[NamedTensor, ...]]:
    """The tensors of queries and those of keys and values, in the order of the call.

    ``queries`` are axes, ``keys`` axes and the slice of their strides; ``cache`` ends the names of arguments that
    are pages.
    """
    dims = (("", plan.head_dim_qk), ("_pe", plan.head_dim_pe))
    parts = [(part, dim) for part, dim in dims if dim is not None]
    if plan.values_are_keys:
        heads, of_keys = None, [("kv", plan.head_dim_qk)] + [(f"k{part}", dim) for part, dim in parts[1:]]
    else:
        heads, of_keys = plan.num_kv_heads, [(f"k{part}", dim) for part, dim in parts] + [("v", plan.head_dim_v)]
    return (
        tuple(
            NamedTensor(f"q{part}", f"q{part}", plan.num_qo_heads, dim, queries, f"[:{len(queries)}]")
            for part, dim in parts
        ),
        tuple(NamedTensor(name, name + cache, heads, dim, *keys) for name, dim in of_keys),
    )


def _dot_options(plan: KernelPlan) -> str:
    if plan.dtype != "float32":
        return ""
    return ', input_precision="tf32"' if plan.allow_tf32 else ', input_precision="ieee"'


def _options(plan: KernelPlan, tile: Tile, target: str | None = None) -> str:
    rows = "BLOCK_M" if plan.template == "prefill" else "BLOCK_H"
    pairs = [(rows, tile.block_m), ("BLOCK_N", tile.block_n)]
    pairs += [("num_warps", tile.num_warps), ("num_stages", tile.num_stages)]
    if plan.decode is not None and plan.decode.pdl_targets:
        pairs.append(("USE_PDL", target in plan.decode.pdl_targets))
    return "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"


def common(plan: KernelPlan, address: str) -> dict[str, object]:
    """Names that every kernel has. ``address`` is "paged", "paged_tile", or another word: rows at equal strides."""
    scored = _scored(plan, address)
    same = plan.qk_blocks == plan.v_blocks
    v = named(plan.qk_blocks, "d") if same else named(plan.v_blocks, "dv")
    return {
        "function": "attention",
        "leader": "q",
        "title": f"{plan.spec_name}: {plan.kernel}",
        "problem": "",
        "laws": [wrapped(law) for law in laws(plan)],
        "spec": pretty(plan.spec),
        "dtype": plan.dtype,
        "tl_dtype": f"tl.{plan.dtype}",
        "torch_dtype": f"torch.{plan.dtype}",
        "p_dtype": "" if plan.dtype == "float32" else f"tl.{plan.dtype}",
        "dot_options": _dot_options(plan),
        "scale_log2": repr(plan.sm_scale * LOG2_E),
        "num_qo_heads": plan.num_qo_heads,
        "num_kv_heads": plan.num_kv_heads,
        "group_size": plan.group_size,
        "scored": scored,
        "v_blocks": v,
        "loaded_values": () if plan.values_are_keys else v,
        "values": "kv" if plan.values_are_keys else "v",
        "v_tile": _tile(address, "v"),
        "row": "" if address == "paged" else "offs_n",
        "columns_used": scored if same else scored + v,
        "window": plan.window,
        "stride_unit": plan.stride_unit,
        "has_pdl": plan.decode is not None and bool(plan.decode.pdl_targets),
        "unaligned": _options(plan, plan.unaligned),
        "launch": [(target, _options(plan, tile, target)) for target, tile in plan.launch],
    }
