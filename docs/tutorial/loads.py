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
PREFILL, DECODE = ("mha", "gqa", "mqa"), ("grouped", "split", "paged", "mla")
STEPS = (*((package, "prefill") for package in PREFILL), *((package, "decode") for package in DECODE))


def zeros(*shape: int) -> torch.Tensor:
    """A tensor as the layers of the tutorial take it."""
    return torch.zeros(*shape, dtype=torch.float16)


def inputs(
    spec: dict[str, Any], kernel: dict[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, Any]]:
    """The queries, the tensors of the cache, and the other arguments of one request."""
    layer = spec["attention"]
    heads = layer["num_qo_heads"]
    if layer["kind"] == "latent":
        record = [(layer["kv_lora_rank"],), (layer["qk_rope_head_dim"],)]  # no heads: one of each a token
        queries = [zeros(1, heads, *width) for width in record]
    else:
        record = [(layer["num_kv_heads"], layer["head_dim_qk"])] * 2
        queries = [zeros(1, heads, layer["head_dim_qk"])]
    if kernel["kind"] == "prefill":
        return [q.unsqueeze(2) for q in queries], [zeros(1, kv, TOKENS, width) for kv, width in record], {}
    lengths = {"seq_lens": torch.tensor([TOKENS], dtype=torch.int32)}
    if kernel["kv"]["kind"] == "contiguous":
        return queries, [zeros(1, kv, TOKENS, width) for kv, width in record], lengths
    page_size = kernel["kv"]["page_size"]
    pages = torch.randperm(TOKENS // page_size, dtype=torch.int32)
    cache = [zeros(len(pages), page_size, *sizes) for sizes in record]
    return queries, cache, {"block_table": pages[None], **lengths}


def main(folder: Path) -> None:
    """Print a row a kernel: its programs, the bytes of the cache, and the bytes that the programs loaded of it."""
    interpreter.require()
    print("KERNEL          PROGRAMS  CACHE BYTES  LOADED BYTES  TIMES")
    for package, name in STEPS:
        module = load_package(folder / package)[name]
        queries, cache, others = inputs(module.SPEC, module.SPEC["kernels"][name])
        with interpreter.interpreting() as harness:
            starts, reads = harness.count(queries[0]), [harness.count(tensor) for tensor in cache]
            module.attention(*queries, *cache, **others)
        held, loaded = sum(tensor.nbytes for tensor in cache), sum(count.bytes for count in reads)
        # A program loads its queries once.
        print(f"{package + '.' + name:14}  {starts.loads:8}  {held:11,}  {loaded:12,}  {loaded / held:5g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
