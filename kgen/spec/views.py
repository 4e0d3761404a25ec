"""The two views of a latent layer: what its kernels see, as layers of the grouped kind.

A latent layer is computed in two ways that give the same result. *Expanded*, each
head has keys and values of its own, made from the latent. *Absorbed*, the
projections have moved into the query and the output, and all heads share one
record a token: the latent, which is scored and returned, and a rotary block,
which is scored only. Either view is a grouped layer, so plan and reference need
no third kind; and both take the scale from the latent layer, where it belongs to
the width of an expanded key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.errors import InputError
from kgen.spec.model import HEAD_DIMS, DecodeKernel, GroupedAttention

if TYPE_CHECKING:
    from kgen.spec.model import Attention, LatentAttention, MergeStatesKernel, SpecFile


def of_kernel(spec: SpecFile, kernel: str) -> GroupedAttention:
    """The layer as a kernel of ``spec`` sees it: a latent one expanded, in decode absorbed."""
    layer = spec.attention
    if isinstance(layer, GroupedAttention):
        return layer
    return absorbed(layer) if is_absorbed(spec, kernel) else expanded(layer)


def is_absorbed(spec: SpecFile, kernel: str) -> bool:
    """Whether a kernel of ``spec`` has one latent a token for all heads, as key and as value."""
    return spec.attention.kind == "latent" and isinstance(spec.kernels[kernel], DecodeKernel)


def seen_by(spec: SpecFile, kernel: str) -> SpecFile:
    """``spec`` with its layer as ``kernel`` sees it."""
    return spec.model_copy(update={"attention": of_kernel(spec, kernel)})


def expanded(layer: LatentAttention) -> GroupedAttention:
    """Every head with its own keys of width nope + rope (nope first) and values of width ``v_head_dim``.

    Raises ``InputError`` where nope + rope is wider than a head may be.
    """
    width = layer.qk_nope_head_dim + layer.qk_rope_head_dim
    if width not in HEAD_DIMS:
        raise InputError(
            f"an expanded key is qk_nope_head_dim + qk_rope_head_dim = {width} wide; "
            f"a head may be {HEAD_DIMS[-1]} wide at most"
        )
    return GroupedAttention(
        kind="grouped",
        num_qo_heads=layer.num_qo_heads,
        num_kv_heads=layer.num_qo_heads,
        head_dim_qk=width,
        head_dim_v=layer.v_head_dim,
        sm_scale=layer.sm_scale,
        mask=layer.mask,
        sinks=layer.sinks,
        logits_soft_cap=layer.logits_soft_cap,
    )


def absorbed(layer: LatentAttention) -> GroupedAttention:
    """One KV head for all: the latent as key and value, and the rotary key as the separate block of ``head_dim_pe``."""
    return GroupedAttention(
        kind="grouped",
        num_qo_heads=layer.num_qo_heads,
        num_kv_heads=1,
        head_dim_qk=layer.kv_lora_rank,
        head_dim_v=layer.kv_lora_rank,
        head_dim_pe=layer.qk_rope_head_dim,
        sm_scale=layer.sm_scale,
        mask=layer.mask,
        sinks=layer.sinks,
        logits_soft_cap=layer.logits_soft_cap,
    )


def merged_width(layer: Attention, kernel: MergeStatesKernel) -> int:
    """Width of the outputs that ``kernel`` merges; of a latent layer, that of the form its parts were computed in."""
    if isinstance(layer, GroupedAttention):
        return layer.head_dim_v
    return layer.kv_lora_rank if kernel.form == "absorbed" else layer.v_head_dim
