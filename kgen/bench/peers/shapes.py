"""What several peers ask of a problem."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kgen.bench.inputs import UnsupportedError

if TYPE_CHECKING:
    import torch

    from kgen.bench.inputs import Problem

CONTIGUOUS = "a contiguous copy"
PACKED = "a packed copy"
WINDOW = "the keys of the window alone"


def library(name: str) -> Any:
    """A peer's module. Raises ``ImportError`` where it is not installed, or does not load for another reason."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise
    except Exception as error:  # a binary of another release of PyTorch fails in any way
        raise ImportError(f"{name} does not load: {type(error).__name__}: {error}") from error


def refuse_extras(problem: Problem, *, soft_cap: bool = False) -> None:
    """Raise ``UnsupportedError`` for sinks, and for a soft cap unless the peer has one."""
    if problem.layer.sinks:
        raise UnsupportedError("has no sinks")
    if problem.layer.logits_soft_cap is not None and not soft_cap:
        raise UnsupportedError("has no soft cap")


def one_length(problem: Problem) -> int:
    """The keys of every request. Raises ``UnsupportedError`` for a ragged batch."""
    if not problem.workload.is_uniform:
        raise UnsupportedError("takes requests of one length")
    return problem.workload.context


def seen_by_decode(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, str | None]:
    """k and v ``[B, Hkv, N, D]`` that the one query of each request sees, all requests of one length.

    Of a window only its keys: for a batch of one length a view of them states the same layer without a mask.
    """
    length = one_length(problem)
    if problem.workload.queries != 1:
        raise UnsupportedError("takes one query token a request")
    k, v = problem.dense_k(), problem.dense_v()
    left, _ = problem.band
    notes = [CONTIGUOUS] if problem.is_copied else []
    if left is not None and left + 1 < length:
        k, v = k[:, :, length - 1 - left : length], v[:, :, length - 1 - left : length]
        notes.append(WINDOW)
    return k, v, ", ".join(notes) or None


def of_heads_first(out: torch.Tensor, request: int) -> torch.Tensor:
    """``[Hq, M, Dv]`` of ``out[B, Hq, M, Dv]``."""
    return out[request]


def of_tokens_first(out: torch.Tensor, request: int) -> torch.Tensor:
    """``[Hq, M, Dv]`` of ``out[B, M, Hq, Dv]``."""
    return out[request].transpose(0, 1)
