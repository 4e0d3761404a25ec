"""The split law: attention over a set of keys from attention over its parts.

A part is an output and its LSE. The LSE of the whole is the logarithm of the sum
of the parts' exponentials, and the output is the mean of the parts' outputs with
those exponentials as weights. A part is any set of keys: a split of a long
cache, or a prefix that several requests share. The parts of a row must not have a
key in common.
"""

from __future__ import annotations

import torch

from kgen.errors import InputError


def merge_states(out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the parts ``out[S, .., H, M, Dv]`` and ``lse[S, .., H, M]`` in float64.

    Any number S of parts, of any floating dtype; the LSE is the natural
    logarithm. Merging is associative and commutative. A row of a part with LSE
    -inf has no keys and is neutral, whatever its output holds; a row without keys
    in every part, or with no part, gives 0 and -inf.

    Returns ``out[.., H, M, Dv]`` and ``lse[.., H, M]``.

    Raises ``InputError`` where the shapes do not belong together.
    """
    if lse.ndim == 0 or out.shape[:-1] != lse.shape:
        raise InputError(
            f"merge_states: out is {list(out.shape)} and lse is {list(lse.shape)}; "
            "expected [parts, .., H, M, Dv] and [parts, .., H, M]"
        )
    out, lse = out.double(), lse.double()
    empty = lse == -torch.inf
    # The largest LSE of a row; 0 where no part has keys, so that no -inf meets -inf.
    top = lse.amax(0) if len(lse) else lse.new_zeros(lse.shape[1:])
    top = torch.where(top == -torch.inf, 0.0, top)
    weight = torch.exp(lse - top)
    total = weight.sum(0)
    merged = (weight[..., None] * torch.where(empty[..., None], 0.0, out)).sum(0)
    return torch.where(total[..., None] > 0, merged / total[..., None], 0.0), top + torch.log(total)
