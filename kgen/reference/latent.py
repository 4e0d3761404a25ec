"""A latent layer in float64, in both of its forms, straight from its spec.

Neither form is computed from the other: each is the evaluation of its own view
of the layer (``kgen.spec.views``), on the tensors that its kernel takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.errors import InputError
from kgen.reference.evaluate import evaluate
from kgen.spec import views
from kgen.spec.model import LatentAttention

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from kgen.spec.model import GroupedAttention, SpecFile


def expanded(
    spec: SpecFile,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    seq_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over keys and values of each head.

    ``q[B, Hq, M, nope + rope]`` and ``k[B, Hq, N, nope + rope]``, nope first;
    ``v[B, Hq, N, v_head_dim]``. Mask, ``seq_lens`` and rows without keys as in
    ``kgen.reference.evaluate.evaluate``.

    Returns ``out[B, Hq, M, v_head_dim]`` and ``lse[B, Hq, M]``, float64.

    Raises ``InputError`` for a layer that is not latent, a tensor of another
    shape, or a feature the reference does not know.
    """
    return evaluate(_seen_as(views.expanded, spec), q, k, v, seq_lens=seq_lens)


def absorbed(
    spec: SpecFile,
    q: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    k_pe: torch.Tensor,
    *,
    seq_lens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the latents that all heads share: R + P wide scored, R wide returned.

    ``q[B, Hq, M, R]`` and ``q_pe[B, Hq, M, P]``, ``kv[B, N, R]`` and
    ``k_pe[B, N, P]`` with R = ``kv_lora_rank`` and P = ``qk_rope_head_dim``. The
    scale is the layer's, that of an expanded key.

    Returns ``out[B, Hq, M, R]`` and ``lse[B, Hq, M]``, float64.

    Raises as ``expanded`` does.
    """
    kv, k_pe = kv.unsqueeze(1), k_pe.unsqueeze(1)
    return evaluate(_seen_as(views.absorbed, spec), q, kv, kv, q_pe=q_pe, k_pe=k_pe, seq_lens=seq_lens)


def _seen_as(view: Callable[[LatentAttention], GroupedAttention], spec: SpecFile) -> SpecFile:
    """The spec with one view of its latent layer in the layer's place."""
    if not isinstance(spec.attention, LatentAttention):
        raise InputError(f"{spec.name} has a {spec.attention.kind} layer; only a latent layer has forms")
    return spec.model_copy(update={"attention": view(spec.attention)})
