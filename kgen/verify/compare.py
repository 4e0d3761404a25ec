"""How wrong an output may be, and how wrong it is.

The measure is the float64 reference. The limit follows PyTorch: twice the error
of a plain computation in the spec's own dtype, with the precisions of the laws
(scores float32, P cast to V's dtype), plus the little that two correct kernels
may differ by:

* one rounding of the output and one of P, ``2 u max|out|``, for outputs of so
  few elements that PyTorch's own error is small by luck;
* the rounding of float32 scores, ``r * S``, where ``S`` bounds the scores by
  ``|q| |k| sm_scale``: it moves a weight by that factor, and only counts where
  logits are enormous. ``r`` is ``4 * 2**-23``, or where that is more half of a
  row's additions times the error of one, since the partial sums of equal terms
  are half of the sum on average: tensor cores add 16 products at a time and cut
  off both the products and the sum (``2 * 2**-23``), IEEE float32 is added one by
  one and rounded (``2**-24``);
* numbers below the smallest normal one may be flushed to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kgen.reference.evaluate import eager, evaluate
from kgen.spec.model import GroupedAttention

if TYPE_CHECKING:
    from kgen.spec.model import SpecFile

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
EPS32 = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Expected:
    """The reference's answer and how far from it a kernel may be."""

    out: torch.Tensor  # float64 [B, Hq, M, Dv]
    lse: torch.Tensor  # float64 [B, Hq, M]
    max_limit: float
    frobenius_limit: float
    lse_limit: float


@dataclass(frozen=True)
class Comparison:
    """Errors of one output; ``message`` says what is wrong, ``None`` is nothing."""

    max_error: float
    frobenius_error: float
    lse_error: float
    message: str | None


def unit_roundoff(spec: SpecFile) -> float:
    """Relative error of one rounding to the spec's precision (of TF32 where it is allowed)."""
    return 2.0**-11 if spec.allow_tf32 else torch.finfo(DTYPES[spec.dtype]).eps / 2


def expect(
    spec: SpecFile,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    q_pe: torch.Tensor | None = None,
    k_pe: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    qo_lens: torch.Tensor | None = None,
) -> Expected:
    """The reference's answer for inputs of the spec's dtype, and the limits that follow from it.

    ``spec`` has the layer as the kernel sees it (``kgen.spec.views.seen_by``).
    Shapes as in ``kgen.reference.evaluate.evaluate``.
    """
    out, lse = evaluate(spec, q, k, v, q_pe=q_pe, k_pe=k_pe, seq_lens=seq_lens, qo_lens=qo_lens)
    assert isinstance(spec.attention, GroupedAttention)  # evaluate refuses the others
    plain, plain_lse = eager(spec, q, k, v, q_pe=q_pe, k_pe=k_pe, seq_lens=seq_lens, qo_lens=qo_lens)
    scores = _largest_row(q, q_pe) * _largest_row(k, k_pe) * spec.attention.sm_scale
    width = q.shape[-1] + (0 if q_pe is None else q_pe.shape[-1])
    is_ieee = spec.dtype == "float32" and not spec.allow_tf32
    scores *= max(1.0, width / (16 if is_ieee else 64))
    return limits((out, lse), (plain, plain_lse), unit=unit_roundoff(spec), jitter=4 * EPS32 * scores, lse_size=scores)


def limits(
    want: tuple[torch.Tensor, torch.Tensor],
    plain: tuple[torch.Tensor, torch.Tensor],
    *,
    unit: float,
    jitter: float,
    lse_size: float,
) -> Expected:
    """The limits for ``want``, out and LSE in float64, from the same by ``plain`` computation.

    ``unit`` is the relative error of a rounding, ``jitter`` that of a weight; ``lse_size`` bounds the terms of an LSE.
    """
    out, lse = want
    error = plain[0].double() - out
    return Expected(
        out=out,
        lse=lse,
        max_limit=2 * _max(error.abs()) + (2 * unit + jitter) * _max(out.abs()) + torch.finfo(plain[0].dtype).tiny,
        frobenius_limit=2 * _frobenius(error, out) + unit / 2 + jitter,
        lse_limit=2 * _lse_error(plain[1], lse) + 4 * EPS32 * max(1.0, lse_size),
    )


def compare(
    expected: Expected, out: torch.Tensor, lse: torch.Tensor, *, rows: torch.Tensor | None = None
) -> Comparison:
    """Judge ``out[B, Hq, M, Dv]`` and ``lse[B, Hq, M]``; with ``rows[B, Hq, M]`` only those that are true."""
    want, want_lse = expected.out, expected.lse
    got, got_lse = out.double(), lse.double()
    if rows is not None:
        want, want_lse, got, got_lse = want[rows], want_lse[rows], got[rows], got_lse[rows]
    max_error = _max((got - want).abs())
    frobenius = _frobenius(got - want, want)
    lse_error = _lse_error(got_lse, want_lse)
    empty = want_lse == -torch.inf
    problems = []
    if got.isnan().any() or got_lse.isnan().any():
        problems.append(f"NaN in {int(got.isnan().sum())} outputs and {int(got_lse.isnan().sum())} LSE values")
    if (got[empty] != 0).any():
        problems.append("a row without keys has an output that is not 0")
    if (got_lse[empty] != -torch.inf).any():
        problems.append("a row without keys has an LSE that is not -inf")
    # `not <=` so that NaN fails too.
    if not max_error <= expected.max_limit:
        problems.append(f"out is wrong by {max_error:.3g}, limit {expected.max_limit:.3g}{_where(got - want, rows)}")
    if not frobenius <= expected.frobenius_limit:
        problems.append(f"relative Frobenius error of out {frobenius:.3g}, limit {expected.frobenius_limit:.3g}")
    if not lse_error <= expected.lse_limit:
        problems.append(f"lse is wrong by {lse_error:.3g}, limit {expected.lse_limit:.3g}")
    return Comparison(max_error, frobenius, lse_error, "; ".join(problems) or None)


def _max(values: torch.Tensor) -> float:
    """The largest element, 0 for none; NaN where there is one."""
    return float(values.max()) if values.numel() else 0.0


def _largest_row(content: torch.Tensor, rotary: torch.Tensor | None) -> float:
    """The largest norm of a row, its rotary block included."""
    row = content if rotary is None else torch.cat((content, rotary), dim=-1)
    return _max(row.double().norm(dim=-1))


def _frobenius(error: torch.Tensor, want: torch.Tensor) -> float:
    """``|error| / |want|`` in the Frobenius norm; 0 / 0 is 0."""
    norm, scale = float(error.norm()), float(want.norm())
    return norm / scale if scale else norm


def _lse_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference; equal infinities differ by 0, an infinity from a number by inf."""
    return _max(torch.where(got.double() == want, 0.0, (got.double() - want).abs()))


def _where(error: torch.Tensor, rows: torch.Tensor | None) -> str:
    """The place of the largest error, where rows were not gathered."""
    if rows is not None or error.numel() == 0:
        return ""
    index = torch.unravel_index(error.abs().nan_to_num(torch.inf).argmax(), error.shape)
    return " at [" + ", ".join(str(int(i)) for i in index) + "]"
