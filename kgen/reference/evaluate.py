"""The reference: attention in float64, straight from the spec, without tiles.

It is written to be checked by eye against the laws, not to be fast. The order of
the score pipeline is fixed: ``q . k * sm_scale``, soft cap, mask, softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from kgen.errors import InputError
from kgen.spec.mask import CausalMask, FullMask, SlidingWindowMask, WindowMask
from kgen.spec.model import GroupedAttention

if TYPE_CHECKING:
    from kgen.spec.model import SpecFile

# Elements of one float64 score matrix; bounds the memory of long sequences (128 MiB).
_CHUNK = 1 << 24

_Visible = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
_F = TypeVar("_F", bound=_Visible)
# Queries [B, Hq, M, D] and keys [B, Hkv, N, D] whose products add up to the scores.
_Blocks = tuple[tuple[torch.Tensor, torch.Tensor], ...]
_MASKS: dict[type, _Visible] = {}


def _mask(kind: type) -> Callable[[_F], _F]:
    """Register the predicate of one kind of mask."""

    def register(function: _F) -> _F:
        _MASKS[kind] = function
        return function

    return register


@_mask(FullMask)
def _full(_: FullMask, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(q_pos - kv_pos, dtype=torch.bool)


@_mask(CausalMask)
def _causal(_: CausalMask, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
    return kv_pos <= q_pos


@_mask(SlidingWindowMask)
def _sliding_window(mask: SlidingWindowMask, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
    # `size` keys, the query's own among them.
    return (kv_pos <= q_pos) & (kv_pos > q_pos - mask.size)


@_mask(WindowMask)
def _window(mask: WindowMask, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
    seen = torch.ones_like(q_pos - kv_pos, dtype=torch.bool)
    if mask.left >= 0:
        seen &= kv_pos >= q_pos - mask.left
    if mask.right >= 0:
        seen &= kv_pos <= q_pos + mask.right
    return seen


def visible(mask: object, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
    """Which keys a query may see.

    ``q_pos`` and ``kv_pos`` are absolute positions (integers) that broadcast
    against each other; the result is a boolean tensor of the common shape.
    Positions of queries are negative where there are more queries than keys.

    Raises ``InputError`` for a mask the reference does not know.
    """
    predicate = _MASKS.get(type(mask))
    if predicate is None:
        known = ", ".join(sorted(kind.__name__ for kind in _MASKS))
        raise InputError(f"the reference does not know {type(mask).__name__}; it knows {known}")
    return predicate(mask, q_pos, kv_pos)


def evaluate(
    spec: SpecFile,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    q_pe: torch.Tensor | None = None,
    k_pe: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    qo_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of ``spec`` in float64, on the device of ``q``.

    ``q[B, Hq, M, Dqk]``, ``k[B, Hkv, N, Dqk]``, ``v[B, Hkv, N, Dv]`` of any
    floating dtype; where the layer has ``head_dim_pe``, ``q_pe[B, Hq, M, Dpe]`` and
    ``k_pe[B, Hkv, N, Dpe]``, whose products are added to the scores before the
    scale. With ``seq_lens[B]`` request ``b`` has ``seq_lens[b]`` keys; rows beyond
    are never looked at. The queries are the last M tokens of their
    request (bottom-right alignment): row ``i`` sits at position ``i + N_b - M``.
    With ``qo_lens[B]`` only the first ``M_b = qo_lens[b]`` rows are queries, row
    ``i`` at ``i + N_b - M_b``; rows beyond have ``out`` 0 and ``lse`` -inf.

    Returns ``out[B, Hq, M, Dv]`` and ``lse[B, Hq, M]`` (natural logarithm). A
    row without keys has ``out`` 0 and ``lse`` -inf.

    Raises ``InputError`` for a feature the reference does not know, and where the
    tensors are not those of the layer.
    """
    blocks = _blocks(spec, q, k, v, q_pe, k_pe)
    return _attend(spec, blocks, v, (seq_lens, qo_lens), torch.Tensor.double, torch.Tensor.double)


def eager(
    spec: SpecFile,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    q_pe: torch.Tensor | None = None,
    k_pe: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    qo_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What plain PyTorch computes in the dtype of ``q``, with the precisions of the laws.

    Scores and softmax float32, P cast to V's dtype (float32 operands to TF32
    where the spec allows it), products accumulated in float32. Shapes as in
    ``evaluate``; ``out`` has q's dtype, ``lse`` is float32.
    """

    def operand(x: torch.Tensor) -> torch.Tensor:
        x = x.to(q.dtype).float()
        if spec.allow_tf32:
            # Keep 10 bits of the mantissa, rounded to the nearest.
            x = (((x.contiguous().view(torch.int32) + 0x1000) >> 13) << 13).view(torch.float32)
        return x

    blocks = _blocks(spec, q, k, v, q_pe, k_pe)
    out, lse = _attend(spec, blocks, v, (seq_lens, qo_lens), operand, torch.Tensor.float)
    return out.to(q.dtype), lse


def _blocks(
    spec: SpecFile,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_pe: torch.Tensor | None,
    k_pe: torch.Tensor | None,
) -> _Blocks:
    """The pairs of queries and keys that are scored; all tensors have the shapes that the layer gives them."""
    layer = spec.attention
    if not isinstance(layer, GroupedAttention):
        raise InputError(f"the reference does not know the attention of {spec.name!r}; it knows grouped layers")
    if [q_pe is not None, k_pe is not None] != [layer.head_dim_pe is not None] * 2:
        takes = "neither q_pe nor k_pe" if layer.head_dim_pe is None else "q_pe and k_pe"
        raise InputError(f"head_dim_pe of {spec.name!r} is {layer.head_dim_pe}, so the reference takes {takes}")
    batch, rows, length = q.shape[:1], q.shape[2:3], k.shape[2:3]
    queries, keys = (*batch, layer.num_qo_heads, *rows), (*batch, layer.num_kv_heads, *length)
    for name, tensor, expected_shape in (
        ("q", q, (*queries, layer.head_dim_qk)),
        ("k", k, (*keys, layer.head_dim_qk)),
        ("v", v, (*keys, layer.head_dim_v)),
        ("q_pe", q_pe, (*queries, layer.head_dim_pe)),
        ("k_pe", k_pe, (*keys, layer.head_dim_pe)),
    ):
        if tensor is not None and tensor.shape != expected_shape:
            raise InputError(f"{name} is {list(tensor.shape)}; {spec.name!r} expects {list(expected_shape)}")
    return ((q, k),) if q_pe is None or k_pe is None else ((q, k), (q_pe, k_pe))


def _attend(
    spec: SpecFile,
    blocks: _Blocks,
    v: torch.Tensor,
    lengths: tuple[torch.Tensor | None, torch.Tensor | None],
    operand: Callable[[torch.Tensor], torch.Tensor],
    state: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with ``operand`` applied to what is multiplied, and ``state`` to the results.

    ``lengths`` are the keys and the queries of each request; ``None`` is all rows.
    """
    attention = spec.attention
    assert isinstance(attention, GroupedAttention)  # _blocks refuses the others
    if attention.sinks or attention.alibi:
        raise InputError(f"the reference does not know the extra inputs (sinks, alibi) of {spec.name!r}")
    q, k = blocks[0]
    batch, heads, most_rows, _ = q.shape
    groups = (attention.num_kv_heads, attention.group_size)
    out = state(torch.zeros(batch, heads, most_rows, v.shape[-1], device=q.device))
    lse = state(torch.full((batch, heads, most_rows), -torch.inf, device=q.device))
    sizes = (k.shape[2], most_rows)
    key_counts, query_counts = (
        [size] * batch if given is None else [int(n) for n in given.tolist()]
        for given, size in zip(lengths, sizes, strict=True)
    )
    for b, (length, rows) in enumerate(zip(key_counts, query_counts, strict=True)):
        if length == 0:
            continue
        step = max(1, _CHUNK // (heads * length))
        keys = [operand(k[b, :, :length]) for _, k in blocks]
        values = operand(v[b, :, :length])
        kv_pos = torch.arange(length, device=q.device)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            q_pos = torch.arange(start, stop, device=q.device) + (length - rows)
            seen = visible(attention.mask, q_pos[:, None], kv_pos[None, :])
            # Query head h reads KV head h // group_size: [Hq, m, D] -> [Hkv, group, m, D].
            queries = [operand(q[b, :, start:stop]).reshape(*groups, stop - start, -1) for q, _ in blocks]
            products = [state(torch.einsum("hgmd,hnd->hgmn", *block)) for block in zip(queries, keys, strict=True)]
            scores = sum(products[1:], products[0]) * attention.sm_scale
            if attention.logits_soft_cap is not None:
                scores = attention.logits_soft_cap * torch.tanh(scores / attention.logits_soft_cap)
            scores = torch.where(seen, scores, -torch.inf)
            # The largest score of a row; 0 where there is none, so that no -inf meets -inf.
            top = scores.amax(dim=-1, keepdim=True)
            top = torch.where(top == -torch.inf, 0.0, top)
            p = torch.exp(scores - top)
            total = p.sum(dim=-1, keepdim=True)
            part = torch.einsum("hgmn,hnd->hgmd", operand(p), values)
            out[b, :, start:stop] = torch.where(total > 0, part / total, 0.0).flatten(0, 1)
            lse[b, :, start:stop] = (top + torch.log(total)).squeeze(-1).flatten(0, 1)
    return out, lse
