"""What each kernel of the tutorial reads of the cache for one new token, counted in Triton's interpreter.

    python docs/tutorial/loads.py FOLDER

FOLDER holds the packages that ``kgen build`` made of the tutorial's specs. One request of 512 tokens; a prefill kernel
is given the one query token that decode has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from kgen.verify import interpreter
from kgen.verify.modules import load_package

TOKENS = 512
PREFILL, DECODE = ("mha", "gqa", "mqa"), ("grouped", "split", "paged")
STEPS = (*((package, "prefill") for package in PREFILL), *((package, "decode") for package in DECODE))


def inputs(spec: dict[str, Any], kernel: dict[str, Any]) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, Any]]:
    """q, the tensors of the cache, and the other arguments of one request."""
    layer = spec["attention"]
    q_heads, kv_heads, width = layer["num_qo_heads"], layer["num_kv_heads"], layer["head_dim_qk"]
    q = torch.zeros(1, q_heads, width, dtype=torch.float16)
    if kernel["kind"] == "prefill":
        return q.unsqueeze(2), [torch.zeros(1, kv_heads, TOKENS, width, dtype=torch.float16) for _ in "kv"], {}
    lengths = {"seq_lens": torch.tensor([TOKENS], dtype=torch.int32)}
    if kernel["kv"]["kind"] == "contiguous":
        return q, [torch.zeros(1, kv_heads, TOKENS, width, dtype=torch.float16) for _ in "kv"], lengths
    page_size = kernel["kv"]["page_size"]
    pages = torch.randperm(TOKENS // page_size, dtype=torch.int32)
    cache = [torch.zeros(len(pages), page_size, kv_heads, width, dtype=torch.float16) for _ in "kv"]
    return q, cache, {"block_table": pages[None], **lengths}


def main(folder: Path) -> None:
    """Print a row a kernel: its programs, the bytes of the cache, and the bytes that the programs loaded of it."""
    interpreter.require()
    print("KERNEL          PROGRAMS  CACHE BYTES  LOADED BYTES  TIMES")
    for package, name in STEPS:
        module = load_package(folder / package)[name]
        q, cache, others = inputs(module.SPEC, module.SPEC["kernels"][name])
        with interpreter.interpreting() as harness:
            queries, *reads = (harness.count(tensor) for tensor in (q, *cache))
            module.attention(q, *cache, **others)
        held, loaded = sum(tensor.nbytes for tensor in cache), sum(count.bytes for count in reads)
        # A program loads its queries once.
        print(f"{package + '.' + name:14}  {queries.loads:8}  {held:11,}  {loaded:12,}  {loaded / held:5g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
