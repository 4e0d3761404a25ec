"""The algebra of a latent layer (MLA): its projections absorbed for decode, its latent expanded for prefill.

The method is that of DeepSeek-V2 (arXiv:2405.04434, section 2.1 and appendix C).
A head's content score is ``(W_Q x) . (W_UK c)`` for a query input ``x`` and a
token's latent ``c``. None of these matrices depends on a position, so the score
is also ``(W_UK^T W_Q x) . c``: the latent is the key of all heads. Likewise
``W_O W_UV`` takes the mean of the latents to the model's width, so that no value
is ever made from a cached token.

Rotary projections depend on positions and stay outside: they are neither weights
here nor part of any result.

Letters in shapes: H query heads (of this process), D the model's width, X the width
of a query's input, R ``kv_lora_rank``, N tokens, nope ``qk_nope_head_dim``, v
``v_head_dim``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from kgen.diagnostics import joined
from kgen.errors import InputError

if TYPE_CHECKING:
    from kgen.spec.model import LatentAttention

# What products of a type are accumulated in. 16-bit factors are exact in TF32 too, so no setting of the process changes
# their products in float32; float32 factors would not be, and are multiplied in float64.
_ACCUMULATOR = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
}


@dataclass(frozen=True, eq=False)
class LatentWeights:
    """The projections of one latent layer that absorption and expansion concern, a block a head.

    All of one dtype (float16, bfloat16, float32 or float64) and on one device.

    * ``W_Q[H, nope, X]``: a query's content part. X is D where queries are
      projected directly from the hidden state. In the low-rank path (``q_a_proj``,
      a norm, ``q_b_proj``) it is ``q_lora_rank``: these are the content rows of
      ``q_b_proj``, their input is the query latent after its norm, and ``q_a_proj``
      stays as it is, because a norm lies between.
    * ``W_UK[H, nope, R]``: a latent to a head's content key.
    * ``W_UV[H, v, R]``: a latent to a head's value.
    * ``W_O[D, H, v]``: heads' outputs to the model's width.

    Raises ``InputError`` where one of them is not a tensor, has another type or
    place, or does not fit the others.
    """

    W_Q: torch.Tensor
    W_UK: torch.Tensor
    W_UV: torch.Tensor
    W_O: torch.Tensor

    def __post_init__(self) -> None:
        # W_UK first: the others are compared with it.
        for name in ("W_UK", "W_Q", "W_UV", "W_O"):
            _check_tensor(name, getattr(self, name), self.W_UK)
        heads, nope, rank = self.W_UK.shape
        v_dim = self.W_UV.shape[1]
        _check_shape("W_Q", self.W_Q, (heads, nope, "X"), "[H, nope, X]")
        _check_shape("W_UV", self.W_UV, (heads, "v", rank), "[H, v, R]")
        _check_shape("W_O", self.W_O, ("D", heads, v_dim), "[D, H, v]")

    @classmethod
    def from_projections(
        cls, layer: LatentAttention, *, q_proj: torch.Tensor, kv_b_proj: torch.Tensor, o_proj: torch.Tensor
    ) -> LatentWeights:
        """Views of a checkpoint's matrices, head by head, as ``torch.nn.Linear`` holds them (outputs first).

        ``q_proj[H * (nope + rope), X]``: ``q_proj.weight``, or ``q_b_proj.weight``
        in the low-rank path; a head's content rows are first, and its rotary rows
        are left out. ``kv_b_proj[H * (nope + v), R]``: a head's rows of the content
        key are first. ``o_proj[D, H * v]``.

        H is ``num_qo_heads`` of the layer: where a process holds some of the heads, a
        layer of so many.

        Raises ``InputError`` where ``layer`` is no latent layer or a matrix has another shape, and as the class does.
        """
        if getattr(layer, "kind", None) != "latent":
            found = getattr(layer, "kind", type(layer).__name__)
            raise InputError(
                f"layer is {found}; it must be the attention of a latent layer's spec: "
                "kgen.spec.loader.load_file(path).spec.attention"
            )
        heads, nope, v_dim = layer.num_qo_heads, layer.qk_nope_head_dim, layer.v_head_dim
        q_rows, kv_rows = nope + layer.qk_rope_head_dim, nope + v_dim
        for name, matrix in (("kv_b_proj", kv_b_proj), ("q_proj", q_proj), ("o_proj", o_proj)):
            _check_tensor(name, matrix, kv_b_proj, ndim=2)
        _check_shape("q_proj", q_proj, (heads * q_rows, "X"), "[H * (nope + rope), X]")
        _check_shape("kv_b_proj", kv_b_proj, (heads * kv_rows, layer.kv_lora_rank), "[H * (nope + v), R]")
        _check_shape("o_proj", o_proj, ("D", heads * v_dim), "[D, H * v]")
        kv = kv_b_proj.view(heads, kv_rows, -1)
        return cls(
            W_Q=q_proj.view(heads, q_rows, -1)[:, :nope],
            W_UK=kv[:, :nope],
            W_UV=kv[:, nope:],
            W_O=o_proj.view(-1, heads, v_dim),
        )


class AbsorbedWeights(NamedTuple):
    """What takes the place of ``W_Q`` and ``W_O`` around an absorbed kernel, in the weights' dtype.

    * ``W_Q_abs[H, R, X]``: a query's input to the absorbed query, whose width is
      that of a latent. As a ``torch.nn.Linear``: ``W_Q_abs.flatten(0, 1)``.
    * ``W_O_abs[D, H, R]``: the kernel's outputs to the model's width. As a
      ``torch.nn.Linear``: ``W_O_abs.flatten(1)``.
    """

    W_Q_abs: torch.Tensor
    W_O_abs: torch.Tensor


def absorb(weights: LatentWeights) -> AbsorbedWeights:
    """``W_UK^T W_Q`` and ``W_O W_UV`` of each head: ``W_Q_abs[H, R, X]`` and ``W_O_abs[D, H, R]``.

    Meant to be done once, when a model is loaded. Accumulated in float64 and cast
    to the weights' dtype once, a head at a time so that no float64 copy of a whole
    result exists; without gradients.
    """
    heads, _, rank = weights.W_UK.shape
    width, inputs = weights.W_O.shape[0], weights.W_Q.shape[2]
    with torch.no_grad():
        W_Q_abs = weights.W_Q.new_empty(heads, rank, inputs)
        W_O_abs = weights.W_O.new_empty(width, heads, rank)
        for h in range(heads):
            W_Q_abs[h] = weights.W_UK[h].double().T @ weights.W_Q[h].double()
            W_O_abs[:, h] = weights.W_O[:, h].double() @ weights.W_UV[h].double()
    return AbsorbedWeights(W_Q_abs, W_O_abs)


def expand(latent: torch.Tensor, weights: LatentWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Content keys ``K[.., H, N, nope]`` and values ``V[.., H, N, v]`` of ``latent[.., N, R]``.

    A key of an expanded kernel is this K followed by the token's rotary key, which
    all heads share. Products of 16-bit weights are accumulated in float32, others
    in float64, and cast to the latent's dtype once. Differentiable.

    Raises ``InputError`` where the latent's dtype, device or width is not that of
    the weights.
    """
    _check_tensor("latent", latent, weights.W_UK, ndim=None)
    rank = weights.W_UK.shape[2]
    if latent.ndim < 2 or latent.shape[-1] != rank:
        raise InputError(f"latent is {list(latent.shape)}; expected [.., N, R] with R = {rank}")
    wide = _ACCUMULATOR[latent.dtype]
    tokens = latent.to(wide).unsqueeze(-3)
    keys, values = (tokens @ up.to(wide).mT for up in (weights.W_UK, weights.W_UV))
    return keys.to(latent.dtype), values.to(latent.dtype)


def _check_tensor(name: str, tensor: object, like: torch.Tensor, *, ndim: int | None = 3) -> None:
    """``tensor`` is one, of an allowed dtype, of ``ndim`` dimensions, with the dtype and device of ``like``."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is {type(tensor).__name__}; expected a torch.Tensor")
    if tensor.dtype not in _ACCUMULATOR:
        allowed = joined([str(dtype).removeprefix("torch.") for dtype in _ACCUMULATOR])
        raise InputError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}; expected {allowed}")
    if ndim is not None and tensor.ndim != ndim:
        raise InputError(f"{name} is {list(tensor.shape)}; expected {ndim} dimensions")
    if (tensor.dtype, tensor.device) != (like.dtype, like.device):
        raise InputError(f"{name} is {tensor.dtype} on {tensor.device}; expected {like.dtype} on {like.device}")


def _check_shape(name: str, tensor: torch.Tensor, expected: tuple[int | str, ...], meaning: str) -> None:
    """``tensor`` has the ``expected`` sizes; a name stands for a size that is free."""
    if any(isinstance(want, int) and got != want for got, want in zip(tensor.shape, expected, strict=True)):
        sizes = ", ".join(str(size) for size in expected)
        raise InputError(f"{name} is {list(tensor.shape)}; expected {meaning}, here [{sizes}]")
