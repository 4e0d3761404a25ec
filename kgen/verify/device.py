"""What only a GPU can show: bitwise repeats, and launches replayed from a CUDA graph with other lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kgen.verify import layouts, pages
from kgen.verify.poison import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kgen.verify.call import Outcome
    from kgen.verify.cases import Case
    from kgen.verify.values import Inputs

REPEATS = 20


def replays(module: ModuleType, case: Case, inputs: Inputs, first: Outcome) -> list[str]:
    """Run a case again and again, and from a graph; what differs from the first call."""
    q = inputs.q
    if q.numel() == 0 or case.layout != "dense":
        return []
    arguments: dict[str, Any] = {"return_lse": True}
    if case.is_decode:
        queries = [x[:, :, 0].contiguous() for x in inputs.queries.values()]
        caches = [x.contiguous() for x in inputs.keys.values()]
        arguments["seq_lens"] = torch.tensor(case.seq_lens, dtype=torch.int32, device=q.device)
        arguments["num_splits"] = case.num_splits
        arguments["max_seq_len"] = case.max_seq_len
    else:

        def handed(tensors: dict[str, torch.Tensor], lengths: tuple[int, ...] | None) -> list[torch.Tensor]:
            stored = (layouts.stacked(case, x, lengths)[0] for x in tensors.values())
            return [layouts.handed(case, x).contiguous() for x in stored]

        queries, caches = handed(inputs.queries, case.qo_lens), handed(inputs.keys, case.seq_lens)
        arguments |= layouts.index_arguments(case, q.device)
        arguments |= {"max_qo_len": case.q_len} if case.tensors == "ragged" else {}
    if case.page_size is not None:
        cache = pages.lay_out(case, *inputs.keys.values())
        # A graph replays other lengths: every entry must name a page, as a server's tables do.
        arguments["block_table"] = cache.table.where(cache.table < len(cache.tensors[0]), 0).clamp(min=0)
        caches = list(cache.tensors)
    if inputs.is_absorbed:
        caches = [x.select(1 if case.page_size is None else 2, 0) for x in caches]

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of a call's requests; others are nobody's, and hold what was there."""
        out, lse = module.attention(*queries, *caches, **arguments)
        return (out.unsqueeze(2), lse.unsqueeze(2)) if case.is_decode else layouts.results(case, out, lse)

    problems = []
    once = call()
    if not all(same_bits(a, b) for _ in range(REPEATS) for a, b in zip(once, call(), strict=True)):
        problems.append("a repeated call gives other bits")
    # The poisoned call ran with the same lengths: the memory around must not matter.
    for name, got, want in zip(("out", "lse"), once, (first.out, first.lse), strict=True):
        if want is not None and not same_bits(got, want):
            problems.append(f"{name} differs between two buffers of the same numbers")
    if "seq_lens" in arguments:
        problems += _graph(call, arguments["seq_lens"], case.max_seq_len or case.kv_len)
    return problems


def _graph(call: Callable[[], tuple[torch.Tensor, torch.Tensor]], lengths: torch.Tensor, bound: int) -> list[str]:
    """Capture a call, replay it with other ``lengths`` up to ``bound`` in its buffer, compare with plain calls."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # compiles outside the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    problems = []
    kept = lengths.clone()
    for name, new in (("its own", kept), ("rolled", kept.roll(1)), ("no", kept * 0), ("full", kept * 0 + bound)):
        lengths.copy_(new)
        graph.replay()
        plain = call()
        if not all(same_bits(a, b) for a, b in zip(captured, plain, strict=True)):
            problems.append(f"a CUDA graph replayed with {name} lengths gives other bits than a call")
    lengths.copy_(kept)
    return problems
