"""The sentences and literals that generated files hold."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.plan.model import KernelPlan, PrefillPlan

LINE_LENGTH = 120
_NO_BREAK = "\u00a0"


def heads_in_words(plan: KernelPlan) -> str:
    """Which query heads share which KV heads."""
    q, kv = plan.num_qo_heads, plan.num_kv_heads
    if plan.values_are_keys:
        return "one query head reads one latent a token" if q == 1 else f"{q} query heads share one latent a token"
    if q == kv == 1:
        return "one head, with keys and values of its own"
    if q == kv:
        return f"{q} heads, each with keys and values of its own (MHA)"
    if kv == 1:
        return f"{q} query heads share one KV head (MQA)"
    return f"{q} query heads share {kv} KV heads, {plan.group_size} each (GQA)"


def expanded_in_words(prefill: PrefillPlan) -> str:
    """A sentence on the columns of q and k of a latent layer's expanded form; nothing for other layers."""
    if prefill.nope_rope is None:
        return ""
    nope, rope = prefill.nope_rope
    sentences = (
        "The expanded form of a latent layer (MLA): keys and values were made from the latent before the call. Of the "
        f"{nope + rope} columns of q and of k the first {nope} are the content (nope), the last {rope} the rotary part "
        "(rope). The scale is the layer's, the same in the absorbed form."
    )
    return "\n" + textwrap.fill(sentences, 110)


def rotary_in_words(plan: KernelPlan) -> str:
    """A sentence on the rotary block that is tensors of its own; nothing for other layers."""
    if plan.head_dim_pe is None:
        return ""
    return "\n" + textwrap.fill(
        f"Queries and keys have a rotary part of {plan.head_dim_pe} columns in tensors of its own, q_pe and k_pe; k_pe "
        "has a head for each KV head.",
        110,
    )


def absorbed_in_words(plan: KernelPlan) -> str:
    """Sentences on the absorbed form of a latent layer; nothing for other layers."""
    if not plan.values_are_keys:
        return ""
    sentences = (
        "The absorbed form of a latent layer (MLA): all heads share one latent kv a token, which is key and value, and "
        f"one rotary key k_pe. q is the content query times the key's up-projection, {plan.head_dim_qk} wide; out is "
        f"{plan.head_dim_v} wide, for the value's up-projection. kv and k_pe may be slices of one cache. The scale is "
        "the layer's, the same in the expanded form."
    )
    return "\n" + textwrap.fill(sentences, 110)


def mask_in_words(plan: KernelPlan) -> str:
    """Which keys a query sees."""
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
class Lengths:
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
    keywords: tuple[str, ...]  # of the function, before ``out``
    sizes: tuple[str, ...]


LENGTHS = {
    "shapes": Lengths(
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
        keywords=(),
        sizes=("B", "M", "N"),
    ),
    "seq_lens": Lengths(
        problem="Attention of a padded batch, in which request b has seq_lens[b] queries and as many keys:\n",
        position="Query row i of a request sits at position i of its keys",
        laws=(
            "Queries and keys at seq_lens[b] and beyond are padding: they do not matter, their rows of out are 0 and "
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
        keywords=("seq_lens",),
        sizes=("B", "M"),
    ),
    "indptr": Lengths(
        problem="Attention of packed requests, each with its own number of queries and of keys:\n",
        position="Query row i of a request with qo_len queries and kv_len keys sits at position i + kv_len - qo_len "
        "(bottom-right aligned)",
        laws=(
            "Rows of q that no request owns, such as those past qo_indptr[B], do not matter, and their rows of out and "
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
        keywords=("qo_indptr", "kv_indptr=None", "max_qo_len"),
        sizes=("B", "Tq", "max_qo_len"),
    ),
    "chunks": Lengths(
        problem="Attention of packed chunks of requests against a paged cache that holds each chunk's own keys too:\n",
        position="Query row i of a request with qo_len queries and kv_len = seq_lens[b] keys sits at position "
        "i + kv_len - qo_len (bottom-right aligned)",
        laws=(
            "Rows of q that no request owns, such as those past qo_indptr[B], do not matter, and their rows of out and "
            "lse are not written.",
            "The launch depends on shapes and max_qo_len only, so that a CUDA graph serves any lengths within it.",
        ),
        row_count="qo_len",
        key_count="kv_len",
        shift=" + kv_len - qo_len",
        row_position="i + kv_len - qo_len (bottom-right aligned)",
        first_row_end="first_pos + 1",
        most_rows="max_qo_len",
        index_pointers=("qo_indptr_ptr", "block_table_ptr", "seq_lens_ptr"),
        keywords=("qo_indptr", "block_table", "seq_lens", "max_qo_len"),
        sizes=("B", "Tq", "max_qo_len"),
    ),
}


def stale_entries(plan: KernelPlan) -> str:
    """The law of a block table."""
    behind = "behind the last key" if plan.window.left is None else "behind the last key and before the window"
    return f"Entries of block_table {behind} may hold anything: they are never read."


def laws(plan: KernelPlan) -> list[str]:
    """The laws that apply to a kernel, a sentence or two each."""
    precision = {"float32": "products in IEEE float32", "tf32": "products in TF32, as the spec allows"}
    content = "q . kv" if plan.values_are_keys else "q . k"
    products = content if plan.head_dim_pe is None else f"({content} + q_pe . k_pe)"
    values = "KV" if plan.values_are_keys else "V"
    found = [
        f"scores are {products} * {plan.sm_scale!r}; scores, softmax and accumulators are float32"
        + (
            f", {precision['tf32' if plan.allow_tf32 else 'float32']}."
            if plan.dtype == "float32"
            else f"; P is cast to {plan.dtype} for P . {values}."
        )
    ]
    if plan.prefill is not None:
        words = LENGTHS[plan.prefill.lengths]
        if plan.mask != "full":
            found.append(f"{words.position}; {mask_in_words(plan)}.")
        found.append("A row that sees no key gives out = 0 and lse = -inf.")
        if plan.prefill.page_size is not None:
            found.append("Keys at seq_lens[b] and beyond are never read.")
            found.append(stale_entries(plan))
        found += words.laws
    else:
        found.append("The query sits at position seq_lens[b] - 1; " + mask_in_words(plan) + ".")
        found.append(
            "A request without keys gives out = 0 and lse = -inf; keys at seq_lens[b] and beyond are never read."
        )
        if plan.decode is not None and plan.decode.page_size is not None:
            found.append(stale_entries(plan))
        found.append(
            "num_splits = n cuts every request into n equal ranges of tiles: its bits do not depend on its batch."
        )
        assert plan.decode is not None
        if plan.decode.num_splits is None:
            found.append(
                "By default the tiles of the whole batch are dealt out equally to the GPU's programs, from seq_lens on "
                "the device: repeats are bitwise equal, but the cuts, and so the rounding, depend on the batch and on "
                "the number of multiprocessors."
            )
        known = "shapes and max_seq_len" if plan.decode.num_splits is None else "shapes and num_splits"
        found.append(f"The launch depends on {known} only, so that a CUDA graph serves any seq_lens.")
    found.append("out, where it is given, shares no memory with an input.")
    return found


def _literal(value: object) -> str:
    """``value`` as Python source, strings in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}": {_literal(v)}' for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return repr(value)


def pretty(value: object, indent: int = 0) -> str:
    """``_literal``, broken over lines where it would pass the line length."""
    text = _literal(value)
    pad = " " * (indent + 4)
    if not isinstance(value, dict) or (len(text) + indent <= 90 and indent):
        return text
    lines = [f'{pad}"{key}": {pretty(item, indent + 4)},' for key, item in value.items()]
    return "\n".join(["{", *lines, " " * indent + "}"])


def wrapped(law: str) -> str:
    """A law over lines of the docstring."""
    return "\n".join(textwrap.wrap(law, 110, subsequent_indent="  ", break_on_hyphens=False))


def argument_list(names: tuple[str, ...]) -> str:
    """Quoted names, wrapped for the ``do_not_specialize`` of a decorator."""
    text = ", ".join(f'"{name}"' for name in names) + ","
    return textwrap.fill(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 8, break_long_words=False)


def filled(items: Sequence[str], indent: int) -> str:
    """Items with a space between them, on lines of the line length at most; the first line is indented by its place."""
    lines: list[str] = []
    for item in items:
        if lines and indent + len(lines[-1]) + 1 + len(item) <= LINE_LENGTH:
            lines[-1] += f" {item}"
        else:
            lines.append(item)
    return ("\n" + " " * indent).join(lines)


def tuple_of(items: Sequence[str]) -> str:
    """A tuple of expressions in a launcher, on one line or, in lines of its own, on more."""
    text = f"({', '.join(items)})"
    if len(f"        strides = {text}") <= LINE_LENGTH:
        return text
    return f"(\n{' ' * 12}{filled([f'{item},' for item in items], 12)}\n        )"


def signature(parameters: Sequence[str]) -> str:
    """The head of ``attention``."""
    listed = ", ".join(parameters)
    text = f"def attention({listed}):"
    return text if len(text) <= LINE_LENGTH else f"def attention(\n    {listed}\n):"


def call_in_words(parameters: Sequence[str]) -> str:
    """The call and its results, as a module's docstring shows them."""
    results = "-> out, or (out, lse)"
    call = f"attention({', '.join(parameters)})"
    if len(call) + 4 <= 116 < len(call) + 5 + len(results):
        return f"    {call}\n        {results}"
    text = f"{call} {results.replace(' ', _NO_BREAK)}"
    return textwrap.fill(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 14).replace(_NO_BREAK, " ")
