"""Plan -> the names that ``kernels/prefill.py.j2`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.render.hopper import run_arguments
from kgen.render.names import common, key_axes, page_axes, tensors
from kgen.render.words import (
    LENGTHS,
    argument_list,
    call_in_words,
    expanded_in_words,
    filled,
    heads_in_words,
    mask_in_words,
    rotary_in_words,
    signature,
    tuple_of,
)

if TYPE_CHECKING:
    from kgen.plan.model import KernelPlan, Window
    from kgen.render.names import NamedTensor
    from kgen.render.words import Lengths

# Axes of queries and of keys in each layout, the last one left out.
_AXES = {"bhsd": ("bhm", "bhn"), "bshd": ("bmh", "bnh"), "ragged": ("mh", "nh")}
# How long a request is taken to be, of a packed batch and of a paged cache: only the device knows its length.
_SECTIONS = ("at the mean length of a request", "where a request fills its row of the table")


def _bounds(window: Window) -> str:
    if window.left is None:
        return "full" if window.right is None else "right"
    return "left" if window.right is None else "both"


def _shape(tensor: NamedTensor, axes: str, unknown: str = "") -> str:
    """The shape of a tensor as docstrings write it, from its axes; the sizes of ``unknown`` ones in quotes."""
    names = {"b": "B", "m": "M", "n": "N"} if "b" in axes else {"m": "Tq", "n": "Tk"}
    sizes = [str(tensor.heads) if a == "h" else f'"{names[a]}"' if a in unknown else names[a] for a in axes]
    return ", ".join((*sizes, str(tensor.dim)))


def _shapes(plan: KernelPlan, queries: tuple[NamedTensor, ...], keys: tuple[NamedTensor, ...]) -> dict[str, object]:
    """Shapes as docstrings and checks write them."""
    assert plan.prefill is not None
    of_queries, of_keys = _AXES[plan.prefill.layout]
    names = {"b": "B", "m": "M", "n": "N"} if "b" in of_queries else {"m": "Tq", "n": "Tk"}
    shapes = {tensor.name: _shape(tensor, of_queries) for tensor in queries}
    if plan.prefill.page_size is None:
        shapes |= {tensor.name: _shape(tensor, of_keys) for tensor in keys}
    else:
        shapes |= {t.name: f"pages, {plan.prefill.page_size}, {plan.num_kv_heads}, {t.dim}" for t in keys}
    listed = [f"{tensor.argument} [{shapes[tensor.name]}]," for tensor in (*queries, *keys)]
    end = [f"all {plan.dtype} on one device, give"] if plan.prefill.page_size is None else []
    *sizes, _ = _shape(queries[0], of_queries).split(", ")
    lse = [size for size, axis in zip(sizes, of_queries, strict=True) if axis == "b"]
    return {
        "shapes": shapes,
        "tensors_in_words": filled([*listed, *end], 4),
        "out_shape": ", ".join((*sizes, str(plan.head_dim_v))),
        "q_shape_wanted": _shape(queries[0], of_queries, "bm"),
        "k_shape_wanted": _shape(keys[0], of_keys, "n"),
        "q_sizes": ", ".join("_" if axis == "h" else names[axis] for axis in of_queries) + ", _",
        "key_axis": of_keys.index("n"),
        "lse_shape": ", ".join((*lse, str(plan.num_qo_heads), names["m"])),
    }


def _launch(
    plan: KernelPlan, words: Lengths, queries: tuple[NamedTensor, ...], keys: tuple[NamedTensor, ...]
) -> dict[str, object]:
    """Strides, and what the kernel is launched with."""
    assert plan.prefill is not None
    axes, _ = _AXES[plan.prefill.layout]
    is_paged = plan.prefill.page_size is not None
    inputs = (*queries, *keys)
    strides = [name for tensor in inputs for name in tensor.strides] + [f"stride_o{axis}" for axis in axes]
    wide = [tensor.stride(axis) for tensor in inputs for axis in tensor.axes if axis in "mnp"] + ["stride_om"]
    arguments = [tensor.argument for tensor in inputs]
    values = [tensor.values for tensor in inputs] + [f"*out.stride()[:{len(axes)}]"]
    indices = [name.removesuffix("_ptr") for name in words.index_pointers]
    passed = [*arguments, "out", "lse", *indices, "*(stride // unit for stride in strides)"]
    passed += ["block_table.stride(0)"] * is_paged
    passed += [*words.sizes, "heads_per_section", "STRIDE_UNIT=unit", "**options"]
    return {
        "strides": (*strides, *["stride_tb"] * is_paged),
        "wide_strides": wide,
        "stride_values": tuple_of(values),
        "loaded_by_rows": ", ".join(arguments),
        "passed": filled([f"{item}," for item in passed], 16),
        "keys_in_words": _SECTIONS[is_paged],
        "keys_of_request": f"block_table.shape[1] * {plan.prefill.page_size * plan.kv_bytes_per_token}"
        if plan.prefill.page_size is not None
        else f"Tk * {plan.kv_bytes_per_token} // B",
    }


def prefill_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``kernels/prefill.py.j2``."""
    prefill = plan.prefill
    assert prefill is not None
    words = LENGTHS[prefill.lengths]
    of_queries, of_keys = _AXES[prefill.layout]
    is_paged = prefill.page_size is not None
    if prefill.page_size is None:
        queries, keys = tensors(plan, of_queries, key_axes(plan, of_keys))
    else:
        queries, keys = tensors(plan, of_queries, page_axes(plan, prefill.page_size), "_cache")
    launch = _launch(plan, words, queries, keys)
    names = launch["strides"]
    assert isinstance(names, tuple)
    parameters = [*(t.argument for t in (*queries, *keys)), "*", *words.keywords, "out=None", "return_lse=False"]
    problem = f"{words.problem}{heads_in_words(plan)};\n{mask_in_words(plan)}."
    batch = "ragged" if prefill.layout == "ragged" else "dense"
    return (
        common(plan, prefill.address)
        | _shapes(plan, queries, keys)
        | launch
        | {
            "problem": problem + rotary_in_words(plan) + expanded_in_words(prefill),
            "call_in_words": call_in_words(parameters),
            "signature": signature(parameters),
            "has_sm90": plan.hopper is not None,
            "sm90_arguments": run_arguments(plan),
            "releases_in_words": plan.hopper.releases_in_words if plan.hopper is not None else "",
            "kernel": plan.kernel,
            "query_tensors": queries,
            "key_tensors": keys,
            "input_pointers": tuple(f"{tensor.name}_ptr" for tensor in (*queries, *keys)),
            "runtime_arguments": argument_list((*names, *words.sizes, "heads_per_section")),
            "cache": "paged" if is_paged else "contiguous",
            "address": "paged" if is_paged else batch,
            "launcher": batch,
            "locate": prefill.address if is_paged else "rows",
            "page_size": prefill.page_size,
            "needs_capacity": False,
            "first_key": "0" if plan.window.left is None else "lo",
            "lengths": prefill.lengths,
            "store": "indptr" if prefill.layout == "ragged" else prefill.lengths,
            "row_count": words.row_count,
            "key_count": words.key_count,
            "shift": words.shift,
            "row_position": words.row_position,
            "first_row_end": words.first_row_end,
            "most_rows": words.most_rows,
            "index_pointers": words.index_pointers,
            "index_arguments": ", ".join(f'"{name}"' for name in words.index_pointers),
            "sizes": words.sizes,
            "bounds": _bounds(plan.window),
            "longest_last": plan.window.right is not None and plan.window.left is None,
            "kv_head": "head" if plan.group_size == 1 else "kv_head",
            "section_bytes": plan.section_bytes,
            "section_mib": plan.section_bytes >> 20,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
        }
    )
