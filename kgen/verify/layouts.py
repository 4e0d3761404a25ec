"""How the tensors of a case are handed to a kernel, and how its results are read back.

Everything else of the proof sees ``q[B, Hq, M, D]``, ``k[B, Hkv, N, D]`` and ``out[B, Hq, M, Dv]``. A kernel may want
the axes in another order, or the tokens of all requests packed into one axis. A packed batch has ``SPARE`` rows behind
its last token, which belong to nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kgen.verify.poison import tokens_first

if TYPE_CHECKING:
    from kgen.verify.cases import Case
    from kgen.verify.poison import Placement

SPARE = 3


def spare(case: Case) -> int:
    """Rows behind the last token; none where the last row must lie 2**31 elements behind the first."""
    return 0 if case.layout.startswith("sparse") else SPARE


def placed(case: Case, placement: Placement) -> Placement:
    """``placement`` for tensors whose tokens may come before the heads."""
    return placement if case.tensors == "bhsd" else tokens_first(placement)


def stacked(case: Case, x: torch.Tensor, lengths: tuple[int, ...] | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``x[B, H, N, D]`` as it is stored, axes in the same order, and where the rows of each batch entry end.

    A packed batch is one entry with the first ``lengths[b]`` rows of every request, one after the other.
    """
    if case.tensors != "ragged":
        return x, None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device=x.device)
    assert lengths is not None
    rows = [x[b, :, :length] for b, length in enumerate(lengths)]
    rows.append(x.new_zeros(x.shape[1], spare(case), x.shape[3]))
    return torch.cat(rows, dim=1)[None], torch.tensor([sum(lengths)], dtype=torch.int32, device=x.device)


def handed(case: Case, x: torch.Tensor) -> torch.Tensor:
    """What ``stacked`` made, with its axes in the kernel's order; the same memory."""
    if case.tensors == "bhsd":
        return x
    return x.transpose(1, 2) if case.tensors == "bshd" else x[0].transpose(0, 1)


def read_back(case: Case, x: torch.Tensor) -> torch.Tensor:
    """The inverse of ``handed`` for ``out``; ``lse`` needs ``[None]`` of a packed batch alone."""
    return x.transpose(1, 2) if case.tensors == "bshd" else x.transpose(0, 1)[None] if case.tensors == "ragged" else x


def unpacked(x: torch.Tensor, lengths: tuple[int, ...], rows: int, fill: float) -> torch.Tensor:
    """``x[1, H, T, ...]`` of a packed batch as ``[B, H, rows, ...]``; rows past a length hold ``fill``."""
    result = torch.full((len(lengths), x.shape[1], rows, *x.shape[3:]), fill, dtype=x.dtype, device=x.device)
    start = 0
    for b, length in enumerate(lengths):
        result[b, :, :length] = x[0, :, start : start + length]
        start += length
    return result


def indptr(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """``[B + 1]`` int32: where each request begins, and where the last one ends."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def index_arguments(case: Case, device: torch.device) -> dict[str, torch.Tensor]:
    """The keywords that say where the requests of a prefill begin and end; none for a dense batch.

    ``kv_indptr`` is left out, for its default, where every request has as many keys as queries.
    """
    if case.qo_lens is None or case.seq_lens is None:
        return {}
    if case.tensors != "ragged":
        return {"seq_lens": torch.tensor(case.seq_lens, dtype=torch.int32, device=device)}
    indices = {"qo_indptr": indptr(case.qo_lens, device)}
    if case.page_size is not None:
        return indices | {"seq_lens": torch.tensor(case.seq_lens, dtype=torch.int32, device=device)}
    return indices if case.qo_lens == case.seq_lens else indices | {"kv_indptr": indptr(case.seq_lens, device)}


def results(case: Case, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a kernel returned as ``out[B, Hq, M, Dv]`` and ``lse[B, Hq, M]``; rows of no request are 0 and -inf."""
    out = read_back(case, out)
    if case.tensors != "ragged" or case.qo_lens is None:
        return out, lse
    return (
        unpacked(out, case.qo_lens, case.q_len, fill=0.0),
        unpacked(lse[None], case.qo_lens, case.q_len, fill=-torch.inf),
    )
