"""Runs the prefill of a generated package once on the GPU, for compute-sanitizer to watch.

python -m tests.gpu.one_prefill FOLDER NUM_QO_HEADS NUM_KV_HEADS HEAD_DIM_QK HEAD_DIM_V
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from kgen.verify.modules import load_package

TOKENS = 300  # whole tiles and an edge


def main(folder: str, heads: int, kv_heads: int, qk: int, v: int) -> None:
    module = load_package(Path(folder))["prefill"]
    q, k, values = (
        torch.randn(1, h, TOKENS, d, device="cuda", dtype=torch.bfloat16)
        for h, d in ((heads, qk), (kv_heads, qk), (kv_heads, v))
    )
    assert module.form(q, k, values) == "sm_90"
    out, lse = module.attention(q, k, values, return_lse=True)
    torch.cuda.synchronize()
    assert out.isfinite().all()
    assert lse.isfinite().all()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
