"""Plan -> the names a kernel template reads.

Everything here is wording: names of blocks, dtypes as Triton and torch spell
them, sentences of the docstring. No choice is made.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.plan.blocks import next_power_of_2

if TYPE_CHECKING:
    from kgen.plan.model import Block, DecodePlan, KernelPlan, Tile, Window

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


def _named(blocks: tuple[Block, ...], stem: str) -> tuple[NamedBlock, ...]:
    suffixes = ("",) if len(blocks) == 1 else ("_lo", "_hi")
    return tuple(
        NamedBlock(s, b.start, b.width, b.valid, b.is_padded, f"offs_{stem}{s}", f"{stem}_ok{s}")
        for s, b in zip(suffixes, blocks, strict=True)
    )


def _bounds(window: Window) -> str:
    if window.left is None:
        return "full" if window.right is None else "right"
    return "left" if window.right is None else "both"


def _dot_options(plan: KernelPlan) -> str:
    if plan.dtype != "float32":
        return ""
    return ', input_precision="tf32"' if plan.allow_tf32 else ', input_precision="ieee"'


def _heads_in_words(plan: KernelPlan) -> str:
    q, kv = plan.num_qo_heads, plan.num_kv_heads
    if q == kv:
        return f"{q} heads, each with keys and values of its own (MHA)"
    if kv == 1:
        return f"{q} query heads share one KV head (MQA)"
    return f"{q} query heads share {kv} KV heads, {plan.group_size} each (GQA)"


def _mask_in_words(plan: KernelPlan) -> str:
    left, right = plan.window.left, plan.window.right
    if plan.mask == "full":
        return "every query sees every key"
    if plan.mask == "causal":
        return "a query sees the keys up to its own position"
    if plan.mask == "sliding_window":
        assert left is not None
        return f"a query sees the last {left + 1} keys up to its own position, its own included"
    before = "all keys before it" if left is None else f"{left} keys before it"
    after = "all keys after it" if right is None else f"{right} keys after it"
    return f"a query sees its own position, {before} and {after}"


@dataclass(frozen=True)
class _Lengths:
    """How a prefill kernel names the lengths of a request, and what its docstring says of them."""

    problem: str  # opens the sentence about heads and mask
    position: str  # the law of a row's position
    laws: tuple[str, ...]
    row_count: str
    key_count: str
    shift: str  # from the number of a row to its position
    row_position: str
    first_row_end: str  # where the keys end that the block's first row sees, with nothing to its right
    most_rows: str  # of any request, for the grid
    index_pointers: tuple[str, ...]
    sizes: tuple[str, ...]


_LENGTHS = {
    "shapes": _Lengths(
        problem="Attention of M query tokens against N keys: ",
        position="Query row i of M sits at position i + N - M of N keys (bottom-right aligned)",
        laws=(),
        row_count="M",
        key_count="N",
        shift=" + N - M",
        row_position="i + N - M (bottom-right aligned)",
        first_row_end="first_pos + 1",
        most_rows="M",
        index_pointers=(),
        sizes=("B", "M", "N"),
    ),
    "seq_lens": _Lengths(
        problem="Attention of a padded batch, in which request b has seq_lens[b] queries and as many keys:\n",
        position="Query row i of a request sits at position i of its keys",
        laws=(
            "Queries and keys at seq_lens[b] and beyond are padding: they are never read, their rows of out are 0 and "
            "of lse -inf.",
            "The launch depends on shapes only, so that a CUDA graph serves any seq_lens.",
        ),
        row_count="length",
        key_count="length",
        shift="",
        row_position="i",
        first_row_end="tl.minimum(first_pos + 1, length)",
        most_rows="M",
        index_pointers=("seq_lens_ptr",),
        sizes=("B", "M"),
    ),
    "indptr": _Lengths(
        problem="Attention of packed requests, each with its own number of queries and of keys:\n",
        position="Query row i of a request with qo_len queries and kv_len keys sits at position i + kv_len - qo_len "
        "(bottom-right aligned)",
        laws=(
            "Rows of q that no request owns, such as those past qo_indptr[B], are not read, and their rows of out and "
            "lse are not written.",
            "The launch depends on shapes and max_qo_len only, so that a CUDA graph serves any lengths within it.",
        ),
        row_count="qo_len",
        key_count="kv_len",
        shift=" + kv_len - qo_len",
        row_position="i + kv_len - qo_len (bottom-right aligned)",
        first_row_end="first_pos + 1",
        most_rows="max_qo_len",
        index_pointers=("qo_indptr_ptr", "kv_indptr_ptr"),
        sizes=("B", "Tq", "max_qo_len"),
    ),
}


def _laws(plan: KernelPlan) -> list[str]:
    precision = {"float32": "products in IEEE float32", "tf32": "products in TF32, as the spec allows"}
    laws = [
        f"scores are q . k * {plan.sm_scale!r}; scores, softmax and accumulators are float32"
        + (
            f", {precision['tf32' if plan.allow_tf32 else 'float32']}."
            if plan.dtype == "float32"
            else f"; P is cast to {plan.dtype} for P . V."
        )
    ]
    if plan.prefill is not None:
        words = _LENGTHS[plan.prefill.lengths]
        if plan.mask != "full":
            laws.append(f"{words.position}; {_mask_in_words(plan)}.")
        laws.append("A row that sees no key gives out = 0 and lse = -inf.")
        laws += words.laws
    else:
        laws.append("The query sits at position seq_lens[b] - 1; " + _mask_in_words(plan) + ".")
        laws.append(
            "A request without keys gives out = 0 and lse = -inf; keys at seq_lens[b] and beyond are never read."
        )
        if plan.decode is not None and plan.decode.page_size is not None:
            behind = "behind the last key" if plan.window.left is None else "behind the last key and before the window"
            laws.append(f"Entries of block_table {behind} may hold anything: they are never read.")
        laws.append(
            "num_splits = n cuts every request into n equal ranges of tiles: its bits do not depend on its batch."
        )
        assert plan.decode is not None
        if plan.decode.num_splits is None:
            laws.append(
                "By default the tiles of the whole batch are dealt out equally to the GPU's programs, from seq_lens on "
                "the device: repeats are bitwise equal, but the cuts, and so the rounding, depend on the batch and on "
                "the number of multiprocessors."
            )
        laws.append("The launch depends on shapes and max_seq_len only, so that a CUDA graph serves any seq_lens.")
    return laws


def _options(plan: KernelPlan, tile: Tile) -> str:
    rows = "BLOCK_M" if plan.template == "prefill" else "BLOCK_H"
    pairs = [(rows, tile.block_m), ("BLOCK_N", tile.block_n)]
    pairs += [("num_warps", tile.num_warps), ("num_stages", tile.num_stages)]
    return "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"


def _literal(value: object) -> str:
    """``value`` as Python source, strings in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}": {_literal(v)}' for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return repr(value)


def _pretty(value: object, indent: int = 0) -> str:
    """``_literal``, broken over lines where it would pass the line length."""
    text = _literal(value)
    pad = " " * (indent + 4)
    if not isinstance(value, dict) or (len(text) + indent <= 90 and indent):
        return text
    lines = [f'{pad}"{key}": {_pretty(item, indent + 4)},' for key, item in value.items()]
    return "\n".join(["{", *lines, " " * indent + "}"])


def _wrapped(law: str) -> str:
    return "\n".join(textwrap.wrap(law, 110, subsequent_indent="  ", break_on_hyphens=False))


def _common(plan: KernelPlan) -> dict[str, object]:
    same = plan.qk_blocks == plan.v_blocks
    qk = _named(plan.qk_blocks, "d")
    v = qk if same else _named(plan.v_blocks, "dv")
    return {
        "title": f"{plan.spec_name}: {plan.kernel}",
        "problem": "",
        "laws": [_wrapped(law) for law in _laws(plan)],
        "spec": _pretty(plan.spec),
        "dtype": plan.dtype,
        "tl_dtype": f"tl.{plan.dtype}",
        "torch_dtype": f"torch.{plan.dtype}",
        "p_dtype": "" if plan.dtype == "float32" else f"tl.{plan.dtype}",
        "dot_options": _dot_options(plan),
        "scale_log2": repr(plan.sm_scale * LOG2_E),
        "num_qo_heads": plan.num_qo_heads,
        "num_kv_heads": plan.num_kv_heads,
        "group_size": plan.group_size,
        "qk_blocks": qk,
        "v_blocks": v,
        "k_tile": "start_n * stride_kn",
        "v_tile": "start_n * stride_vn",
        "columns_used": qk if same else qk + v,
        "window": plan.window,
        "stride_unit": plan.stride_unit,
        "unaligned": _options(plan, plan.unaligned),
        "launch": [(target, _options(plan, tile)) for target, tile in plan.launch],
    }


def _strides(plan: KernelPlan, q: str, kv: str, out: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Stride arguments by the axes of q, k and v, out; the single KV head of MQA has no stride."""
    kv_slice = f"[:{len(kv)}]"
    if plan.num_kv_heads == 1:
        kv_slice = {"bhn": "[::2]", "bnh": "[:2]", "nh": "[:1]"}[kv]
        kv = kv.replace("h", "")
    inputs = tuple(f"stride_{tensor}{axis}" for tensor, axes in (("q", q), ("k", kv), ("v", kv)) for axis in axes)
    names = inputs + tuple(f"stride_o{axis}" for axis in out)
    values = f"*q.stride()[:{len(q)}], *k.stride(){kv_slice}, *v.stride(){kv_slice}, *out.stride()[:{len(out)}]"
    return {"strides": names, "stride_values": values}, inputs


def _argument_list(names: tuple[str, ...]) -> str:
    """Quoted names, wrapped for the ``do_not_specialize`` of a decorator."""
    text = ", ".join(f'"{name}"' for name in names) + ","
    return textwrap.fill(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 8, break_long_words=False)


# Axes of queries and of keys in each layout, the last one left out.
_PREFILL_AXES = {"bhsd": ("bhm", "bhn"), "bshd": ("bmh", "bnh"), "ragged": ("mh", "nh")}


def _shapes(plan: KernelPlan, queries: str, keys: str) -> dict[str, object]:
    """Shapes as docstrings and checks write them, from the axes; the last dimension comes behind."""
    names = {"b": "B", "m": "M", "n": "N"} if "b" in queries else {"m": "Tq", "n": "Tk"}

    def shape(axes: str, heads: int, dim: int, unknown: str = "") -> str:
        sizes = [str(heads) if a == "h" else f'"{names[a]}"' if a in unknown else names[a] for a in axes]
        return ", ".join((*sizes, str(dim)))

    return {
        "q_shape": shape(queries, plan.num_qo_heads, plan.head_dim_qk),
        "k_shape": shape(keys, plan.num_kv_heads, plan.head_dim_qk),
        "v_shape": shape(keys, plan.num_kv_heads, plan.head_dim_v),
        "out_shape": shape(queries, plan.num_qo_heads, plan.head_dim_v),
        "q_shape_wanted": shape(queries, plan.num_qo_heads, plan.head_dim_qk, "bm"),
        "k_shape_wanted": shape(keys, plan.num_kv_heads, plan.head_dim_qk, "n"),
        "q_sizes": ", ".join("_" if axis == "h" else names[axis] for axis in queries) + ", _",
        "key_axis": keys.index("n"),
        "lse_shape": shape(queries.replace("h", "").replace("m", "hm"), plan.num_qo_heads, 0).removesuffix(", 0"),
    }


def prefill_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``kernels/prefill.py.j2``."""
    prefill = plan.prefill
    assert prefill is not None
    words = _LENGTHS[prefill.lengths]
    queries, keys = _PREFILL_AXES[prefill.layout]
    strides, _ = _strides(plan, queries, keys, queries)
    names = strides["strides"]
    assert isinstance(names, tuple)
    return (
        _common(plan)
        | strides
        | _shapes(plan, queries, keys)
        | {
            "problem": f"{words.problem}{_heads_in_words(plan)};\n{_mask_in_words(plan)}.",
            "runtime_arguments": _argument_list((*names, *words.sizes, "heads_per_section")),
            "address": "ragged" if prefill.layout == "ragged" else "dense",
            "lengths": prefill.lengths,
            "row_count": words.row_count,
            "key_count": words.key_count,
            "shift": words.shift,
            "row_position": words.row_position,
            "first_row_end": words.first_row_end,
            "most_rows": words.most_rows,
            "index_pointers": words.index_pointers,
            "index_parameters": "seq_lens, " if prefill.lengths == "seq_lens" else "",
            "index_values": "".join(f"{name.removesuffix('_ptr')}, " for name in words.index_pointers),
            "sizes": words.sizes,
            "size_values": ", ".join(words.sizes),
            "bounds": _bounds(plan.window),
            "longest_last": plan.window.right is not None and plan.window.left is None,
            "kv_head": "head" if plan.group_size == 1 else "kv_head",
            "section_bytes": plan.section_bytes,
            "section_mib": plan.section_bytes >> 20,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
        }
    )


def _tile_of_heads(plan: KernelPlan, block_h: int) -> str:
    if plan.group_size == 1:
        return f"A KV head serves one query head, in a tile of {block_h} rows, the least that tl.dot takes."
    return "Every tile of K and V is loaded once for all the heads."


def _contiguous_cache(plan: KernelPlan) -> dict[str, object]:
    """What decode kernels over a dense cache call it and its strides."""
    strides, inputs = _strides(plan, "bh", "bhn", "bh")
    return strides | {
        "cache": "contiguous",
        "inputs": "q, k, v",
        "loaded_by_rows": "q, k, v",
        "input_pointers": ("q_ptr", "k_ptr", "v_ptr"),
        "index_pointers": '"seq_lens_ptr"',
        "input_strides": inputs,
        "strides_passed": "*strides",
        "wide_strides": ("stride_kn", "stride_vn"),
        "rows_are_strided": True,
    }


def _paged_cache(plan: KernelPlan, decode: DecodePlan) -> dict[str, object]:
    """The same for a paged cache; a page of one token has no stride inside, a single KV head none between heads."""
    axes = "p" + "n" * (decode.page_size != 1) + "h" * (plan.num_kv_heads > 1)
    cache_slice = {"pnh": "[:3]", "pn": "[:2]", "ph": "[::2]", "p": "[:1]"}[axes]
    row_axes = axes.removesuffix("h")
    keys, values = (tuple(f"stride_{tensor}{axis}" for axis in axes) for tensor in "kv")
    inputs = ("stride_qb", "stride_qh", *keys, *values)
    is_tile_in_page = decode.address == "paged_tile"
    return {
        "cache": "paged",
        "inputs": "q, k_cache, v_cache, block_table",
        "loaded_by_rows": "q, k_cache, v_cache",
        "input_pointers": ("q_ptr", "k_ptr", "v_ptr", "block_table_ptr"),
        "index_pointers": '"block_table_ptr", "seq_lens_ptr"',
        "strides": (*inputs, "stride_ob", "stride_oh", "stride_tb"),
        "input_strides": (*inputs, "stride_tb"),
        "stride_values": f"*q.stride()[:2], *k_cache.stride(){cache_slice}, *v_cache.stride(){cache_slice}, "
        "*out.stride()[:2]",
        "strides_passed": "*strides, block_table.stride(0)",
        "wide_strides": tuple(f"stride_{tensor}{axis}" for tensor in "kv" for axis in row_axes),
        "rows_are_strided": is_tile_in_page,
        "k_tile": "k_row" if is_tile_in_page else "k_rows[:, None]",
        "v_tile": "v_row" if is_tile_in_page else "v_rows[:, None]",
    }


def decode_context(plan: KernelPlan) -> dict[str, object]:
    """Names of ``kernels/decode.py.j2``."""
    decode = plan.decode
    assert decode is not None
    block_h = plan.launch[0][1].block_m
    cache = _contiguous_cache(plan) if decode.page_size is None else _paged_cache(plan, decode)
    names = cache["strides"]
    assert isinstance(names, tuple)
    indices = ("kv_head",) * (plan.num_kv_heads > 1) + ("head_tile",) * (decode.head_tiles > 1)
    return (
        _common(plan)
        | cache
        | {
            "address": decode.address,
            "page_size": decode.page_size,
            "problem": f"Attention of one query token a request against its keys: {_heads_in_words(plan)};\n"
            f"{_mask_in_words(plan)}.",
            "head_dim_qk": plan.head_dim_qk,
            "head_dim_v": plan.head_dim_v,
            "split_arguments": _argument_list((*names, "num_splits")),
            "balanced_arguments": _argument_list((*names, "B", "num_parts")),
            "task": ("batch", *indices),
            "task_index": "task_in_request" if len(indices) > 1 else "".join(indices),
            "task_in_words": {
                (): "the whole",
                ("kv_head",): "one KV head",
                ("head_tile",): "one tile of query heads",
                ("kv_head", "head_tile"): "one KV head and tile of its query heads",
            }[indices],
            "tile_of_heads": _tile_of_heads(plan, block_h),
            "heads_are_padded": plan.group_size % block_h != 0,
            "head_tiles": decode.head_tiles,
            "tasks_per_request": plan.num_kv_heads * decode.head_tiles,
            "is_balanced": decode.num_splits is None,
            "num_splits": decode.num_splits,
            "num_splits_default": "is the balanced schedule"
            if decode.num_splits is None
            else f"is {decode.num_splits}",
            "programs_per_sm": decode.programs_per_sm,
            "batch_chunk": decode.batch_chunk,
            "merge_chunk": decode.merge_chunk,
            "merge_warps": decode.merge_warps,
            "merge_width": next_power_of_2(plan.head_dim_v),
        }
    )


CONTEXTS = {"prefill": prefill_context, "decode": decode_context}
