"""The plan of a kernel that merges -> the names its template reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.render.words import argument_list, pretty, wrapped

if TYPE_CHECKING:
    from kgen.plan.model import MergePlan


@dataclass(frozen=True)
class Layout:
    """A layout of parts: the axes of out but for the last, those of lse, and the sizes that are runtime values.

    Axes are b (requests), h (heads), m (tokens of a request) and t (tokens of all requests).
    """

    out: str
    lse: str
    sizes: tuple[str, ...]
    lse_row: str  # where a row of out stands in a dense lse
    origin: str  # what a part is


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


def _strides(tensor: str, axes: str, used: str) -> str:
    """The strides of those axes of a tensor that are ``used``, as a launcher passes them."""
    places = [axes.index(axis) for axis in used]
    if len(places) == 1 or places != list(range(len(places))):
        return ", ".join(f"{tensor}.stride({place})" for place in places)
    return f"*{tensor}.stride()" + ("" if len(places) == len(axes) else f"[:{len(places)}]")


def _stride_names(tensor: str, used: str) -> tuple[str, ...]:
    return tuple(f"stride_{tensor}{axis}" for axis in used)


def _strides_of_parts(layout: Layout, out: str, lse: str) -> dict[str, object]:
    """Names and values of the strides of both kernels; ``out`` and ``lse`` are the axes that have one."""
    pair = (*_stride_names("x", out), *_stride_names("y", out), *_stride_names("o", out))
    pair += (*_stride_names("lx", lse), *_stride_names("ly", lse))
    stack = (*_stride_names("x", f"p{out}"), *_stride_names("o", out), *_stride_names("lx", f"p{lse}"))
    result = _strides("out", f"{layout.out}d", out)
    return {
        "pair_strides": pair,
        "pair_arguments": argument_list((*pair, *layout.sizes)),
        "pair_stride_values": ", ".join((*(_strides(tensor, f"{layout.out}d", out) for tensor in "xy"), result)),
        "pair_lse_stride_values": ", ".join(_strides(f"{tensor}_lse", layout.lse, lse) for tensor in "xy"),
        "stack_strides": stack,
        "stack_arguments": argument_list((*stack, *layout.sizes, "P")),
        "stack_stride_values": f"{_strides('x', f'p{layout.out}d', f'p{out}')}, {result}",
        "stack_lse_stride_values": _strides("x_lse", f"p{layout.lse}", f"p{lse}"),
    }


def merge_context(plan: MergePlan) -> dict[str, object]:
    """Names of ``kernels/merge_states.py.j2``."""
    layout, heads, width = LAYOUTS[plan.layout], plan.num_qo_heads, plan.head_dim_v
    # A single head has no stride: its index is 0.
    out_axes, lse_axes = (axes if heads > 1 else axes.replace("h", "") for axes in (layout.out, layout.lse))
    return _strides_of_parts(layout, out_axes, lse_axes) | {
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
        "head_dim_v": width,
        "lanes": plan.lanes,
        "layout": plan.layout,
        "stride_unit": plan.stride_unit,
        "launch": [
            (target, f'{{"BLOCK_R": {tile.block_r}, "num_warps": {tile.num_warps}}}') for target, tile in plan.launch
        ],
        "num_stages": plan.launch[0][1].num_stages,
        "has_pdl": False,
        "out_axes": [(axis, _INDEX[axis]) for axis in out_axes],
        "lse_axes": [(axis, _INDEX[axis]) for axis in lse_axes],
        "out_shape": f"{_shape(layout.out, heads)}, {width}",
        "lse_shape": _shape(layout.lse, heads),
        "out_shape_wanted": f"{_shape(layout.out, heads, quoted=True)}, {width}",
        "lse_row": layout.lse_row.format(heads=heads) if heads > 1 else "rows",
        "tile_ok": "row_ok[:, None]" + (" & d_ok[None, :]" if plan.lanes > width else ""),
        "sizes": layout.sizes,
        "sizes_unpacked": ", ".join("_" if axis == "h" else _SIZE[axis] for axis in layout.out) + ", _",
        "row_count": " * ".join((*layout.sizes, *([str(heads)] if heads > 1 else []))),
        "most_rows": plan.most_rows,
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
