"""What is timed: a kernel of a spec, and the lengths of the requests of a call."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgen.errors import InputError
from kgen.models import accounting
from kgen.models.accounting import KernelCost
from kgen.spec.mask import FullMask
from kgen.spec.model import DecodeKernel, GroupedAttention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kgen.spec.loader import LoadedSpec
    from kgen.spec.model import Attention, SpecFile

YOURS = "yours"  # the group of workloads of a spec that the user named


@dataclass(frozen=True)
class Workload:
    """Requests with ``qo_lens`` query tokens (decode: one each) against ``seq_lens`` keys, for a kernel of a spec.

    ``spec`` is a path below the folder that holds ``specs/`` and ``benchmarks/``, or one that the user gave.
    """

    id: str
    spec: str
    kernel: str
    seq_lens: tuple[int, ...]
    qo_lens: tuple[int, ...]
    group: str = "core"

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.seq_lens)

    @property
    def context(self) -> int:
        """Keys of the longest request: the capacity of the cache."""
        return max(self.seq_lens)

    @property
    def queries(self) -> int:
        """Query tokens of the request that has most of them."""
        return max(self.qo_lens)

    @property
    def is_uniform(self) -> bool:
        """All requests have the same lengths."""
        return len(set(self.seq_lens)) == len(set(self.qo_lens)) == 1

    @property
    def shape(self) -> str:
        """The lengths in a few signs: ``B64 L8192``, or ``B96 L1024-8192``; M where a request has many queries."""
        queries = "" if self.queries == 1 else f" M{_span(self.qo_lens)}"
        return f"B{self.batch}{queries} L{_span(self.seq_lens)}"


def _span(lengths: Sequence[int]) -> str:
    least, most = min(lengths), max(lengths)
    return str(most) if least == most else f"{least}-{most}"


def uniform(name: str, spec: str, kernel: str, batch: int, queries: int, context: int, group: str = "core") -> Workload:
    """A batch of requests of one length."""
    return Workload(name, spec, kernel, (context,) * batch, (queries,) * batch, group)


def spread_lengths(batch: int, least: int, most: int) -> tuple[int, ...]:
    """``batch`` lengths, evenly from ``least`` to ``most``, in an order that is shuffled and always the same."""
    steps = max(1, batch - 1)
    lengths = [least + (most - least) * index // steps for index in range(batch)] if batch > 1 else [most]
    random.Random(batch).shuffle(lengths)
    return tuple(lengths)


def _spread(
    name: str,
    kernel: str,
    batch: int,
    span: tuple[int, int],
    queries: int | None = None,
    *,
    spec: str,
    group: str = "core",
) -> Workload:
    """A batch of lengths over ``span``; ``queries=None`` is as many query tokens as keys."""
    lengths = spread_lengths(batch, *span)
    return Workload(name, spec, kernel, lengths, lengths if queries is None else (queries,) * batch, group)


def _model(spec: str, kernel: str, batch: int, queries: int, context: int) -> Workload:
    """A batch of requests of one length for a kernel of a model's spec."""
    return uniform(f"{spec}.{kernel}", f"specs/{spec}.yaml", kernel, batch, queries, context, "models")


_LLAMA, _PAGED, _MLA = "specs/llama3_8b.yaml", "specs/llama3_8b_paged.yaml", "benchmarks/specs/mla_h128.yaml"
_LAYOUTS = "benchmarks/specs/gqa_layouts.yaml"
_D64, _SINKS = "benchmarks/specs/gqa_d64.yaml", "benchmarks/specs/gqa_d64_sinks.yaml"

# The core comes first and its most telling rows at its head: a time budget cuts the tail.
WORKLOADS: tuple[Workload, ...] = (
    uniform("a1", _LLAMA, "decode", 1, 1, 131072),
    uniform("a2", _LLAMA, "decode", 64, 1, 8192),
    uniform("a8", "benchmarks/specs/gqa_g8.yaml", "decode", 4, 1, 131072),
    uniform("b", "specs/llama3_405b.yaml", "decode", 16, 1, 32768),
    uniform("c", "benchmarks/specs/mqa_d128.yaml", "decode", 8, 1, 32768),
    uniform("d", "benchmarks/specs/mha_d128.yaml", "decode", 16, 1, 4096),
    uniform("f1", _PAGED, "decode_page1", 64, 1, 8192),
    uniform("f16", _PAGED, "decode_page16", 64, 1, 8192),
    uniform("e1", _MLA, "decode", 1, 1, 131072),
    uniform("e2", _MLA, "decode", 128, 1, 4096),
    uniform("e3", _MLA, "decode", 64, 1, 16384),
    uniform("e4", "benchmarks/specs/mla_h16.yaml", "decode", 64, 1, 8192),
    uniform("g1", _LLAMA, "prefill", 1, 8192, 8192),
    uniform("g3", _LLAMA, "prefill", 1, 16384, 16384),
    uniform("g5", _LLAMA, "prefill", 1, 512, 32768),
    uniform("h", _MLA, "prefill", 1, 8192, 8192),
    uniform("k", _D64, "prefill", 1, 16384, 16384),
    uniform("g-short", _LLAMA, "prefill", 8, 2048, 2048),
    uniform("g-full", "benchmarks/specs/gqa_full.yaml", "prefill", 1, 8192, 8192),
    uniform("g-window", "specs/mistral_7b.yaml", "prefill", 1, 16384, 16384),
    _spread("r-decode", "decode", 96, (1024, 8192), 1, spec=_LLAMA),
    _spread("r-paged", "decode_page16", 96, (1024, 8192), 1, spec=_PAGED),
    _spread("r-prefill", "ragged", 16, (256, 4096), spec=_LAYOUTS),
    uniform("j1", _SINKS, "decode", 64, 1, 8192),
    uniform("j2", _SINKS, "prefill", 1, 8192, 8192),
    _spread("r-chunks", "ragged_page16", 16, (1024, 16384), 256, spec=_LAYOUTS, group="layouts"),
    _spread("r-padded", "padded", 16, (256, 4096), spec=_LAYOUTS, group="layouts"),
    uniform("g-bshd", _LAYOUTS, "bshd", 1, 8192, 8192, "layouts"),
    _model("qwen2_5_7b", "decode", 64, 1, 8192),
    _model("falcon_7b", "decode", 64, 1, 8192),
    _model("phi3_mini", "decode", 32, 1, 4096),
    _model("mistral_7b", "decode", 64, 1, 16384),
    _model("gemma3_27b_full", "decode", 32, 1, 8192),
    _model("gemma3_27b_sliding", "decode", 64, 1, 16384),
    _model("llama3_405b", "prefill", 1, 8192, 8192),
    _model("qwen2_5_7b", "prefill", 1, 8192, 8192),
    _model("falcon_7b", "prefill", 2, 8192, 8192),
    _model("phi3_mini", "prefill", 1, 8192, 8192),
    _model("gemma3_27b_full", "prefill", 1, 8192, 8192),
    _model("gemma3_27b_sliding", "prefill", 1, 16384, 16384),
    _model("siglip", "prefill", 64, 729, 729),
)


def find(names: Iterable[str]) -> tuple[Workload, ...]:
    """The workloads of ids and of groups, each once, in the order they are named.

    Raises ``InputError`` that lists every name that is neither.
    """
    found: dict[str, Workload] = {}
    unknown = []
    for name in names:
        chosen = [workload for workload in WORKLOADS if name in (workload.id, workload.group)]
        found |= {workload.id: workload for workload in chosen}
        unknown += [] if chosen else [name]
    if unknown:
        known = ", ".join(workload.id for workload in WORKLOADS if workload.group == "core")
        raise InputError(
            f"no workload is called {', '.join(unknown)}; there are {known}, those of other groups "
            "(kgen bench --list), and a spec of your own is named by its path"
        )
    return tuple(found.values())


def of_spec(
    loaded: LoadedSpec, kernel: str | None, seq_lens: tuple[int, ...], queries: int | None
) -> tuple[Workload, ...]:
    """A workload for each kernel of a user's spec, or for the one that is named.

    Prefill has ``queries`` query tokens a request; ``None`` is as many as keys. Raises ``InputError``.
    """
    kernels = {name: kind for name, kind in loaded.spec.kernels.items() if kind.kind in ("prefill", "decode")}
    if kernel is not None and kernel not in kernels:
        known = ", ".join(sorted(kernels)) or "none"
        raise InputError(f"--kernel {kernel}: {loaded.display} has no such kernel to time; it has {known}")
    if not kernels:
        raise InputError(f"{loaded.display}: no kernel of it can be timed; kgen bench times prefill and decode")
    found = []
    for name, kind in sorted(kernels.items()):
        if kernel in (None, name):
            if isinstance(kind, DecodeKernel):
                qo_lens = (kind.q_len,) * len(seq_lens)
            else:
                qo_lens = seq_lens if queries is None else (queries,) * len(seq_lens)
            found.append(Workload(f"{loaded.spec.name}.{name}", loaded.display, name, seq_lens, qo_lens, YOURS))
    return tuple(found)


def layer_in_words(layer: Attention, kernel: str) -> str:
    """Heads and widths as papers write them: ``32/8 d128``, ``128 h 192/128``, ``128 h 512+64``, and the mask."""
    mask = "" if kernel == "decode" and layer.mask.kind == "causal" else f" {_mask_in_words(layer)}"
    if isinstance(layer, GroupedAttention):
        pe = f"+{layer.head_dim_pe}" if layer.head_dim_pe else ""
        width = f"d{layer.head_dim_qk}{pe}"
        width += f"/{layer.head_dim_v}" if layer.head_dim_v != layer.head_dim_qk else ""
        sinks = ", sinks" if layer.sinks else ""
        return f"{layer.num_qo_heads}/{layer.num_kv_heads} {width}{mask}{sinks}"
    if kernel == "decode":
        return f"MLA {layer.num_qo_heads} h {layer.kv_lora_rank}+{layer.qk_rope_head_dim}{mask}"
    width_qk = layer.qk_nope_head_dim + layer.qk_rope_head_dim
    return f"MLA {layer.num_qo_heads} h {width_qk}/{layer.v_head_dim}{mask}"


def _mask_in_words(layer: Attention) -> str:
    mask = layer.mask
    size = getattr(mask, "size", None)
    return "full" if isinstance(mask, FullMask) else mask.kind.replace("_", " ") + (f" {size}" if size else "")


def cost(spec: SpecFile, workload: Workload) -> KernelCost:
    """Operations and least bytes of one call, over all of its requests; ``pairs`` of all requests, of one head.

    Raises ``UncountedMaskError`` where the mask's pairs depend on more than the spec says.
    """
    kernel = spec.kernels[workload.kernel]
    total = KernelCost(workload.queries, 0, 0, 0, 0)
    for (keys, queries), requests in Counter(zip(workload.seq_lens, workload.qo_lens, strict=True)).items():
        one = accounting.kernel_cost(spec.attention, kernel, spec.dtype, accounting.Workload(requests, keys, queries))
        total = KernelCost(
            workload.queries,
            total.pairs + requests * one.pairs,
            total.flops + one.flops,
            total.read_bytes + one.read_bytes,
            total.written_bytes + one.written_bytes,
        )
    return total
