"""Small layers in every layout that ``kgen bench`` knows, their workloads, and stand-ins for the GPU and for peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kgen.bench.gpu import Captured
from kgen.bench.inputs import Problem, UnsupportedError
from kgen.bench.peers import Candidate, Peer
from kgen.bench.run import Machine
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


class FakeClock:
    """Times replays that are functions of the number of their call; notes the order."""

    def __init__(self) -> None:
        self.order: list[tuple[Any, int]] = []

    def samples(self, replay: Callable[[], Any], count: int) -> list[float]:
        found = replay()
        self.order.append((found[0], count))
        return [found[1]] * count


def good(problem: Problem) -> Candidate:
    out = right(problem)
    return Candidate(lambda: out, problem.results, "a copy")


def wrong(problem: Problem) -> Candidate:
    out = right(problem)
    out += 1.0
    return Candidate(lambda: out, problem.results)


def absent(_: Problem) -> Candidate:
    raise ModuleNotFoundError("No module named 'absent'")


def picky(_: Problem) -> Candidate:
    raise UnsupportedError("takes heads of another width")


def broken(_: Problem) -> Candidate:
    raise SystemExit("a library that ends the process\nin two lines")


FAKES = (good, wrong, absent, picky, broken)


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> tuple[Peer, ...]:
    """Peers that are right, wrong, not installed, not made for it, and ending the process."""
    loaders = {f"fakes:{loader.__name__}": loader for loader in FAKES}
    monkeypatch.setattr(Peer, "prepare", lambda peer, problem: loaders[peer.place](problem))
    return tuple(Peer(loader.__name__, loader.__name__, f"fakes:{loader.__name__}") for loader in FAKES)


def machine(clocks: dict[str, Any] | None = None, **changes: Any) -> Machine:
    def captured(call: Callable[[], Any]) -> Captured:
        result = call()
        out = result.clone() if isinstance(result, torch.Tensor) else result

        def replay() -> tuple[str, float]:
            if isinstance(out, torch.Tensor):
                out.copy_(call())
            return "", 100.0

        return Captured(replay, out, call)

    on = Machine(
        device=torch.device("cpu"),
        clocks=clocks or {"write": FakeClock()},
        captured=captured,
        read=lambda nbytes: lambda: nbytes,
        ceiling_calls=lambda: {name: lambda: None for name in ("read", "copy", "matmul")},
        raise_if_lost=lambda error: None,
        facts={"name": "a GPU of the test"},
        versions={"torch": "1", "triton": "2"},
    )
    return dataclasses.replace(on, **changes)
