"""The plan of a kernel that merges -> the names its template reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.render.words import argument_list, pretty, wrapped

if TYPE_CHECKING:
    from kgen.plan.model import MergePlan


@dataclass(frozen=True)
class Layout:
    """A layout of parts in words: axes of out and of lse, the sizes that are runtime values, and where they stand.

    ``h`` is the axis of heads; the last axis of out, of values, is left out.
    """

    out: str
    lse: str
    sizes: tuple[str, ...]
    lse_row: str  # of a row, in a dense lse
    origin: str


_LSE_OF_PREFILL = "(batch * {heads} + head) * M + token"
LAYOUTS = {
    "bhd": Layout("bh", "bh", ("B",), "rows", "what decode returns for some of each request's keys"),
    "bhsd": Layout("bhm", "bhm", ("B", "M"), "rows", "what prefill returns for some of each row's keys"),
    "bshd": Layout(
        "bmh",
        "bhm",
        ("B", "M"),
        _LSE_OF_PREFILL,
        "what prefill returns, tokens before heads, for some of each row's keys",
    ),
    "ragged": Layout(
        "th", "ht", ("T",), "head * T + token", "what prefill of packed requests returns for some of each row's keys"
    ),
}
_INDEX = {"b": "batch", "h": "head", "m": "token", "t": "token"}
_SIZE = {"b": "B", "m": "M", "t": "T"}


def _shape(axes: str, heads: int, *, quoted: bool = False) -> str:
    """Sizes of axes as docstrings and checks write them."""
    return ", ".join(str(heads) if a == "h" else f'"{_SIZE[a]}"' if quoted else _SIZE[a] for a in axes)


def _strides(tensor: str, axes: str, whole: int) -> str:
    """The strides of a tensor in the order of ``axes``, which are indices of its ``whole`` axes."""
    places = [int(a) for a in axes]
    if len(places) > 1 and places == list(range(len(places))):
        return f"*{tensor}.stride()" + ("" if len(places) == whole else f"[:{len(places)}]")
    return ", ".join(f"{tensor}.stride({place})" for place in places)


def merge_context(plan: MergePlan) -> dict[str, object]:
    """Names of ``kernels/merge_states.py.j2``."""
    layout, heads = LAYOUTS[plan.layout], plan.num_qo_heads
    # A single head has no stride: its index is 0.
    out_axes, lse_axes = (tuple(a for a in axes if a != "h" or heads > 1) for axes in (layout.out, layout.lse))

    def names(tensor: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"stride_{tensor}{axis}" for axis in axes)

    def values(tensor: str, axes: str, used: tuple[str, ...], *, stacked: bool, is_out: bool) -> str:
        first = ("0",) if stacked else ()
        places = "".join((*first, *(str(axes.index(axis) + stacked) for axis in used)))
        return _strides(tensor, places, len(axes) + stacked + is_out)

    pair_strides = (*names("x", out_axes), *names("y", out_axes), *names("o", out_axes))
    pair_strides += (*names("lx", lse_axes), *names("ly", lse_axes))
    stack_strides = (*names("x", ("p", *out_axes)), *names("o", out_axes), *names("lx", ("p", *lse_axes)))
    out_shape, lse_shape = f"{_shape(layout.out, heads)}, {plan.head_dim_v}", _shape(layout.lse, heads)
    d_ok = " & d_ok[None, :]" if plan.lanes > plan.head_dim_v else ""
    options = {target: f'{{"BLOCK_R": {tile.block_r}, "num_warps": {tile.num_warps}}}' for target, tile in plan.launch}
    counted = "".join(a for a in layout.out if a != "h") + "h" * (heads > 1)
    return {
        "function": "merge_states",
        "leader": "outs",
        "title": f"{plan.spec_name}: {plan.kernel}",
        "problem": _problem(plan),
        "origin": f"A part is {layout.origin}; no key may be in two parts.",
        "laws": [wrapped(law) for law in _laws(plan)],
        "spec": pretty(plan.spec),
        "dtype": plan.dtype,
        "tl_dtype": f"tl.{plan.dtype}",
        "torch_dtype": f"torch.{plan.dtype}",
        "num_qo_heads": heads,
        "head_dim_v": plan.head_dim_v,
        "lanes": plan.lanes,
        "layout": plan.layout,
        "stride_unit": plan.stride_unit,
        "launch": list(options.items()),
        "num_stages": plan.launch[0][1].num_stages,
        "out_axes": [(axis, _INDEX[axis]) for axis in out_axes],
        "lse_axes": [(axis, _INDEX[axis]) for axis in lse_axes],
        "out_shape": out_shape,
        "lse_shape": lse_shape,
        "out_shape_wanted": f"{_shape(layout.out, heads, quoted=True)}, {plan.head_dim_v}",
        "lse_row": layout.lse_row.format(heads=heads) if heads > 1 else "rows",
        "tile_ok": f"row_ok[:, None]{d_ok}",
        "sizes": layout.sizes,
        "sizes_unpacked": ", ".join("_" if axis == "h" else _SIZE[axis] for axis in layout.out) + ", _",
        "row_count": " * ".join(str(heads) if a == "h" else _SIZE[a] for a in counted),
        "most_rows": plan.most_rows,
        "pair_strides": pair_strides,
        "pair_arguments": argument_list((*pair_strides, *layout.sizes)),
        "pair_stride_values": ", ".join(
            values(tensor, layout.out, out_axes, stacked=False, is_out=True) for tensor in ("x", "y", "out")
        ),
        "pair_lse_stride_values": ", ".join(
            values(tensor, layout.lse, lse_axes, stacked=False, is_out=False) for tensor in ("x_lse", "y_lse")
        ),
        "stack_strides": stack_strides,
        "stack_arguments": argument_list((*stack_strides, *layout.sizes, "P")),
        "stack_stride_values": ", ".join(
            (
                values("x", layout.out, out_axes, stacked=True, is_out=True),
                values("out", layout.out, out_axes, stacked=False, is_out=True),
            )
        ),
        "stack_lse_stride_values": values("x_lse", layout.lse, lse_axes, stacked=True, is_out=False),
    }


def _problem(plan: MergePlan) -> str:
    heads = f"{plan.num_qo_heads} head{'s' if plan.num_qo_heads > 1 else ''}"
    form = f" (the {plan.form} form)" if plan.form else ""
    return f"Attention over a set of keys from attention over its parts: {heads}, values {plan.head_dim_v} wide{form}."


def _laws(plan: MergePlan) -> list[str]:
    """The laws of merging, a sentence or two each."""
    found = [
        "exp(lse) is the sum of the parts' exp(lse), and a part weighs exp(its lse - lse): weights, sums and "
        "accumulators are float32.",
        "A row takes nothing from a part in which its lse is -inf, whatever its out holds there, NaN included; -inf in "
        "every part gives out = 0 and lse = -inf.",
        f"Parts may be merged in any order and grouping, within rounding: each call rounds out to {plan.dtype}.",
        "A row is merged on its own: its bits do not depend on the batch, and repeats are bitwise equal.",
        "The launch depends on shapes only, so that a CUDA graph serves any values.",
    ]
    if plan.layout == "ragged":
        found.insert(2, "All T rows are merged, also those that no request owns.")
    return found
