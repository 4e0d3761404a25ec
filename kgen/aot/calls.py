"""Representative calls of a generated module, from its own ``SPEC``.

Between them they make every launch that the module can make: rows aligned to 16
bytes and not, with and without LSE, with a scheduled, a single and a fixed number
of splits. The tensors are fake (shapes without memory), so sizes cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.errors import KgenError
from kgen.spec import views
from kgen.spec.model import SpecFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Not 1 and not multiples of 16: Triton specialises on both, and a server's lengths are neither.
BATCH = 3
QUERY_TOKENS = 1019
KEY_TOKENS = 4099
PAGES = 1021
PARTS = 3


@dataclass(frozen=True)
class Sizes:
    """Batch and lengths of a representative call."""

    batch: int = BATCH
    query_tokens: int = QUERY_TOKENS
    key_tokens: int = KEY_TOKENS


@dataclass(frozen=True)
class Call:
    """One call of a module's ``function``; ``label`` says what is particular about it."""

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    function: str = "attention"


def representative_calls(spec: dict[str, Any], kernel: str, sizes: Sizes) -> Iterator[Call]:
    """Calls for the module ``kernel`` of ``spec`` (its ``SPEC``); inside a ``FakeTensorMode``.

    Raises KgenError for a kind of kernel that has no calls here.
    """
    kind = spec["kernels"][kernel]["kind"]
    absorbed = False
    if kind in ("prefill", "decode"):
        loaded = SpecFile.model_validate(spec)
        layer, absorbed = views.of_kernel(loaded, kernel), views.is_absorbed(loaded, kernel)
        spec = spec | {"attention": layer.model_dump(mode="json")}
    if kind == "prefill":
        yield from _prefill(spec, spec["kernels"][kernel], sizes)
    elif kind == "decode":
        make = _latent_cache if absorbed else _cache
        yield from _decode(spec, spec["kernels"][kernel]["kv"], sizes, make)
    elif kind == "merge_states":
        yield from _merge_states(spec, spec["kernels"][kernel], sizes)
    else:
        raise KgenError(f"{kernel}: no representative call is known for a kernel of kind {kind}")


def _tensor(spec: dict[str, Any], *shape: int, padding: int = 0) -> Any:
    """A fake tensor of the spec's dtype on the GPU; ``padding`` elements follow each row of the last dimension."""
    import torch

    *outer, last = shape
    whole = torch.empty((*outer, last + padding), dtype=getattr(torch, spec["dtype"]), device="cuda")
    return whole[..., :last]


def _prefill(spec: dict[str, Any], kernel: dict[str, Any], sizes: Sizes) -> Iterator[Call]:
    layer = spec["attention"]

    def tensor(heads: int, tokens: int, dim: int, padding: int = 0) -> Any:
        shapes = {
            "bhsd": (sizes.batch, heads, tokens),
            "bshd": (sizes.batch, tokens, heads),
            "ragged": (tokens, heads),
        }
        return _tensor(spec, *shapes[kernel["layout"]], dim, padding=padding)

    def keys_and_values(padding: int) -> tuple[Any, ...]:
        if kernel["kv"]["kind"] == "paged":
            return _pages(spec, kernel["kv"]["page_size"], padding=padding)
        dims = (*_scored_dims(layer), layer["head_dim_v"])
        return tuple(tensor(layer["num_kv_heads"], sizes.key_tokens, dim, padding) for dim in dims)

    queries = tuple(tensor(layer["num_qo_heads"], sizes.query_tokens, dim) for dim in _scored_dims(layer))
    options = _index_arguments(kernel, sizes)
    aligned, unaligned = (*queries, *keys_and_values(0)), (*queries, *keys_and_values(1))
    yield Call("prefill", aligned, options)
    yield Call("prefill with lse", aligned, options | {"return_lse": True})
    yield Call("prefill of unaligned rows", unaligned, options)
    if "sm_90" in spec.get("targets", ()) and kernel["layout"] != "ragged":
        # Indices that share memory: what TMA cannot address runs the portable form on Hopper too.
        shared = tuple(tensor[:1].expand_as(tensor) for tensor in keys_and_values(0))
        yield Call("prefill of shared keys", (*queries, *shared), options)


def _index_arguments(kernel: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """What a prefill takes that says where the requests of its batch end."""
    if kernel["layout"] == "ragged":
        options = {"qo_indptr": _indices(sizes.batch + 1), "max_qo_len": sizes.query_tokens}
        if kernel["kv"]["kind"] == "paged":
            return options | _block_table(kernel["kv"]["page_size"], sizes) | {"seq_lens": _indices(sizes.batch)}
        return options | {"kv_indptr": _indices(sizes.batch + 1)}
    return {"seq_lens": _indices(sizes.batch)} if kernel["padded"] else {}


def _indices(*shape: int) -> Any:
    """A fake int32 tensor on the GPU."""
    import torch

    return torch.empty(shape, dtype=torch.int32, device="cuda")


def _block_table(page_size: int, sizes: Sizes) -> dict[str, Any]:
    """The argument that says where the pages of each request lie."""
    return {"block_table": _indices(sizes.batch, -(-sizes.key_tokens // page_size))}


def _scored_dims(layer: dict[str, Any]) -> tuple[int, ...]:
    """Widths of the tensors that are scored: those of the keys, and of their rotary part where it is its own."""
    return tuple(layer[name] for name in ("head_dim_qk", "head_dim_pe") if layer[name] is not None)


def _pages(spec: dict[str, Any], page_size: int, *, padding: int = 0) -> tuple[Any, ...]:
    """The caches of keys, their rotary part and values, each ``[pages, page_size, Hkv, D]``."""
    layer = spec["attention"]
    tokens = (PAGES, page_size, layer["num_kv_heads"])
    return tuple(_tensor(spec, *tokens, dim, padding=padding) for dim in (*_scored_dims(layer), layer["head_dim_v"]))


def _cache(spec: dict[str, Any], kv: dict[str, Any], sizes: Sizes, padding: int) -> tuple[Any, ...]:
    """The keys, their rotary part and the values that decode reads."""
    if kv["kind"] == "paged":
        return _pages(spec, kv["page_size"], padding=padding)
    layer = spec["attention"]
    heads = (sizes.batch, layer["num_kv_heads"], sizes.key_tokens)
    return tuple(_tensor(spec, *heads, dim, padding=padding) for dim in (*_scored_dims(layer), layer["head_dim_v"]))


def _latent_cache(spec: dict[str, Any], kv: dict[str, Any], sizes: Sizes, padding: int) -> tuple[Any, ...]:
    """The latents and their rotary keys, slices of one cache."""
    content, rotary = _scored_dims(spec["attention"])
    tokens = (PAGES, kv["page_size"]) if kv["kind"] == "paged" else (sizes.batch, sizes.key_tokens)
    whole = _tensor(spec, *tokens, content + rotary, padding=padding)
    return whole[..., :content], whole[..., content:]


def _decode(
    spec: dict[str, Any],
    kv: dict[str, Any],
    sizes: Sizes,
    make: Callable[[dict[str, Any], dict[str, Any], Sizes, int], tuple[Any, ...]],
) -> Iterator[Call]:
    layer = spec["attention"]
    queries = tuple(_tensor(spec, sizes.batch, layer["num_qo_heads"], dim) for dim in _scored_dims(layer))
    index = _block_table(kv["page_size"], sizes) if kv["kind"] == "paged" else {}
    aligned, unaligned = ((*queries, *make(spec, kv, sizes, padding)) for padding in (0, 1))
    seq_lens = _indices(sizes.batch)
    for num_splits in (None, 1, 3):
        options = {**index, "seq_lens": seq_lens, "num_splits": num_splits}
        yield Call(f"decode num_splits={num_splits}", aligned, options)
        yield Call(f"decode num_splits={num_splits} with lse", aligned, options | {"return_lse": True})
        yield Call(f"decode num_splits={num_splits} of unaligned rows", unaligned, options)


def _merge_states(spec: dict[str, Any], kernel: dict[str, Any], sizes: Sizes) -> Iterator[Call]:
    import torch

    layer = spec["attention"]
    heads, tokens = layer["num_qo_heads"], sizes.query_tokens
    width = layer[{None: "head_dim_v", "absorbed": "kv_lora_rank", "expanded": "v_head_dim"}[kernel["form"]]]
    out_shape, lse_shape = {
        "bhd": ((sizes.batch, heads), (sizes.batch, heads)),
        "bhsd": ((sizes.batch, heads, tokens), (sizes.batch, heads, tokens)),
        "bshd": ((sizes.batch, tokens, heads), (sizes.batch, heads, tokens)),
        "ragged": ((tokens, heads), (heads, tokens)),
    }[kernel["layout"]]

    def part(*parts: int, padding: int = 0) -> tuple[Any, Any]:
        return (
            _tensor(spec, *parts, *out_shape, width, padding=padding),
            torch.empty((*parts, *lse_shape), dtype=torch.float32, device="cuda"),
        )

    for what, padding in (("", 0), (" of unaligned rows", 1)):
        one, other = part(padding=padding), part(padding=padding)
        pair = ((one[0], other[0]), (one[1], other[1]))
        yield Call(f"merge of a pair{what}", pair, {}, "merge_states")
        stack = part(PARTS, padding=padding)
        yield Call(f"merge of {PARTS} parts{what}", stack, {"return_lse": True}, "merge_states")
