"""Small layers in every layout that ``kgen bench`` knows, and their workloads."""

from __future__ import annotations

from pathlib import Path

import torch

from kgen.bench.inputs import Problem
from kgen.bench.workloads import YOURS, Workload
from kgen.reference.evaluate import evaluate
from kgen.spec.loader import LoadedSpec, load_specs

GROUPED = """\
name: layer
attention:
  kind: grouped
  num_qo_heads: 4
  num_kv_heads: 2
  head_dim_qk: 16
  mask: {mask}
dtype: {dtype}
kernels:
  bhsd: {{kind: prefill}}
  bshd: {{kind: prefill, layout: bshd}}
  padded: {{kind: prefill, padded: true}}
  ragged: {{kind: prefill, layout: ragged}}
  ragged_paged: {{kind: prefill, layout: ragged, kv: {{kind: paged, page_size: 4}}}}
  contiguous: {{kind: decode}}
  paged: {{kind: decode, kv: {{kind: paged, page_size: 4}}}}
"""
LATENT = """\
name: latent
attention:
  kind: latent
  num_qo_heads: 16
  kv_lora_rank: 32
  qk_nope_head_dim: 16
  qk_rope_head_dim: 16
  v_head_dim: 16
  sm_scale: 0.25
  mask: {{kind: causal}}
dtype: {dtype}
kernels:
  expanded: {{kind: prefill}}
  contiguous: {{kind: decode}}
  paged: {{kind: decode, kv: {{kind: paged, page_size: 4}}}}
"""
ONE_LENGTH = {"bhsd": ((9, 9), (7, 7)), "bshd": ((9, 9), (9, 9)), "expanded": ((9, 9), (9, 9))}
LENGTHS = {
    "padded": ((9, 5), (9, 5)),
    "ragged": ((9, 5, 6), (7, 5, 2)),
    "ragged_paged": ((9, 5), (3, 3)),
    "contiguous": ((9, 5, 6), (1, 1, 1)),
    "paged": ((9, 5, 6), (1, 1, 1)),
    **ONE_LENGTH,
}


def spec_file(folder: Path, text: str, dtype: str = "float32", mask: str = "{kind: causal}") -> Path:
    path = folder / "layer.yaml"
    path.write_text(text.format(dtype=dtype, mask=mask))
    return path


def load(path: Path) -> LoadedSpec:
    (loaded,) = load_specs([path], ungenerated="allowed")
    return loaded


def workload(
    path: Path, kernel: str, seq_lens: tuple[int, ...] | None = None, qo_lens: tuple[int, ...] | None = None
) -> Workload:
    own, queries = LENGTHS[kernel]
    return Workload(f"layer.{kernel}", str(path), kernel, seq_lens or own, qo_lens or queries, YOURS)


def right(problem: Problem) -> torch.Tensor:
    """The output of the contract, from the reference of the proof, request by request."""
    layer = problem.layer.model_copy(update={"head_dim_pe": None, "head_dim_qk": problem.keys(0).shape[-1]})
    spec = problem.spec.model_copy(update={"attention": layer})
    out = problem.new_out()
    for request in range(problem.workload.batch):
        rows = (problem.queries(request), problem.keys(request), problem.values(request))
        want, _ = evaluate(spec, *(x[None].double() for x in rows))
        problem.results(out, request).copy_(want[0])
    return out
