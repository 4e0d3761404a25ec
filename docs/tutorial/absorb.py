"""One latent layer computed three ways from the same weights: by hand, expanded, and absorbed.

    python docs/tutorial/absorb.py FOLDER

FOLDER holds the packages that ``kgen build`` made of the tutorial's specs. By hand is float64, from the definition; the
two others run generated kernels in Triton's interpreter, for the newest token of one request.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from kgen.runtime.mla import LatentWeights, absorb, expand
from kgen.verify import interpreter
from kgen.verify.modules import load_package

HEADS, RANK, NOPE, ROPE, V, WIDTH, TOKENS, PAGE = 8, 128, 64, 16, 64, 128, 100, 16
SCALE = (NOPE + ROPE) ** -0.5


def normal(*shape: int) -> torch.Tensor:
    """Random numbers; a matrix keeps the magnitude of what it is multiplied with."""
    return torch.randn(*shape, dtype=torch.float64) / shape[-1] ** 0.5


def main(folder: Path) -> None:
    """Print what each form reads of a token, and whether its result agrees with the one by hand."""
    interpreter.require()
    torch.manual_seed(0)
    kernels = load_package(folder / "mla")
    weights = LatentWeights(
        W_Q=normal(HEADS, NOPE, WIDTH),
        W_UK=normal(HEADS, NOPE, RANK),
        W_UV=normal(HEADS, V, RANK),
        W_O=normal(WIDTH, HEADS, V) / HEADS**0.5,
    )
    x = 10.0 * normal(1, WIDTH)  # the newest token's hidden state
    latent, k_pe = 8.0 * normal(1, TOKENS, RANK), 4.0 * normal(1, TOKENS, ROPE)
    q_pe = 4.0 * normal(1, HEADS, ROPE)

    # Expanded: each head gets keys and values of its own, as in MHA.
    k, v = expand(latent, weights)
    q = torch.cat([torch.einsum("hnx,bx->bhn", weights.W_Q, x), q_pe], -1)
    k = torch.cat([k, k_pe[:, None].expand(-1, HEADS, -1, -1)], -1)
    p = torch.softmax(torch.einsum("bhd,bhnd->bhn", q, k) * SCALE, -1)
    by_hand = torch.einsum("dhv,bhv->bd", weights.W_O, torch.einsum("bhn,bhnv->bhv", p, v))
    with interpreter.interpreting():
        out = kernels["prefill"].attention(q[:, :, None].half(), k.half(), v.half())
    expanded = torch.einsum("dhv,bhv->bd", weights.W_O, out[:, :, 0].double())

    # Absorbed: the query meets the latents themselves, in pages.
    W_Q_abs, W_O_abs = absorb(weights)
    q = torch.einsum("hrx,bx->bhr", W_Q_abs, x)
    pages = -(-TOKENS // PAGE)
    padded = [torch.nn.functional.pad(t[0], (0, 0, 0, pages * PAGE - TOKENS)) for t in (latent, k_pe)]
    cache = [t.reshape(pages, PAGE, -1).half() for t in padded]
    table = torch.arange(pages, dtype=torch.int32)[None]
    lengths = torch.tensor([TOKENS], dtype=torch.int32)
    with interpreter.interpreting():
        out = kernels["decode"].attention(q.half(), q_pe.half(), *cache, block_table=table, seq_lens=lengths)
    absorbed = torch.einsum("dhr,bhr->bd", W_O_abs, out.double())

    print("FORM      KERNEL       ELEMENTS READ A TOKEN  AGREES WITH FLOAT64")
    for form, kernel, result, held in (
        ("expanded", "mla.prefill", expanded, HEADS * (NOPE + ROPE + V)),
        ("absorbed", "mla.decode", absorbed, RANK + ROPE),
    ):
        agrees = (result - by_hand).abs().max() < 2e-3 * by_hand.abs().max()
        print(f"{form:8}  {kernel:11}  {held:21,}  {'yes' if agrees else 'no'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
