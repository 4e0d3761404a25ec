"""Time the committed kernels beside their peers on the GPU that is present.

    python benchmarks/run.py --out benchmarks/results/h200.json

Each workload is checked first (sampled rows against float64, outputs filled with NaN), then
timed in rounds that interleave kgen and its peers, as replays of a CUDA graph with L2 flushed by
writing 256 MB before each; the figure is the median. The ceilings (a read of 2 GiB, a read of the
workload's own bytes, an 8192^3 bfloat16 matrix product) are measured in the same process.
A peer that does not load or refuses a shape costs its own column only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kgen.plan.lower import lower  # noqa: E402
from kgen.render.emit import render  # noqa: E402
from kgen.spec.loader import load_file  # noqa: E402

if TYPE_CHECKING:
    from types import ModuleType

Call = Callable[[], torch.Tensor]
ROUNDS = 7


@dataclass(frozen=True)
class Workload:
    """B requests of M query tokens (decode: 1) against N keys each, for a kernel of a spec."""

    name: str
    spec: str
    kernel: str
    B: int
    M: int
    N: int


WORKLOADS = (
    Workload("a1", "specs/llama3_8b.yaml", "decode", 1, 1, 131072),
    Workload("a2", "specs/llama3_8b.yaml", "decode", 64, 1, 8192),
    Workload("b", "specs/llama3_405b.yaml", "decode", 16, 1, 32768),
    Workload("c", "benchmarks/specs/mqa_d128.yaml", "decode", 8, 1, 32768),
    Workload("d", "benchmarks/specs/mha_d128.yaml", "decode", 16, 1, 4096),
    Workload("qwen2_5_7b decode", "specs/qwen2_5_7b.yaml", "decode", 64, 1, 8192),
    Workload("falcon_7b decode", "specs/falcon_7b.yaml", "decode", 64, 1, 8192),
    Workload("phi3_mini decode", "specs/phi3_mini.yaml", "decode", 32, 1, 4096),
    Workload("mistral_7b decode", "specs/mistral_7b.yaml", "decode", 64, 1, 16384),
    Workload("gemma3_27b_full decode", "specs/gemma3_27b_full.yaml", "decode", 32, 1, 8192),
    Workload("gemma3_27b_sliding decode", "specs/gemma3_27b_sliding.yaml", "decode", 64, 1, 16384),
    Workload("g1", "specs/llama3_8b.yaml", "prefill", 1, 8192, 8192),
    Workload("g3", "specs/llama3_8b.yaml", "prefill", 1, 16384, 16384),
    Workload("g5", "specs/llama3_8b.yaml", "prefill", 1, 512, 32768),
    Workload("llama3_405b prefill", "specs/llama3_405b.yaml", "prefill", 1, 8192, 8192),
    Workload("qwen2_5_7b prefill", "specs/qwen2_5_7b.yaml", "prefill", 1, 8192, 8192),
    Workload("falcon_7b prefill", "specs/falcon_7b.yaml", "prefill", 2, 8192, 8192),
    Workload("phi3_mini prefill", "specs/phi3_mini.yaml", "prefill", 1, 8192, 8192),
    Workload("mistral_7b prefill", "specs/mistral_7b.yaml", "prefill", 1, 16384, 16384),
    Workload("gemma3_27b_full prefill", "specs/gemma3_27b_full.yaml", "prefill", 1, 8192, 8192),
    Workload("gemma3_27b_sliding prefill", "specs/gemma3_27b_sliding.yaml", "prefill", 1, 16384, 16384),
    Workload("siglip prefill", "specs/siglip.yaml", "prefill", 64, 729, 729),
)


@triton.jit
def _read_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Sum of a strided share of x (int32): nothing but loads."""
    acc = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        acc += tl.load(x_ptr + tl.cast(start, tl.int64) + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc))


def read_call(nbytes: int) -> Call:
    """A bare read of ``nbytes`` of device memory by eight programs a multiprocessor."""
    x = torch.randint(0, 9, (nbytes // 4 // 8192 * 8192,), dtype=torch.int32, device="cuda")
    programs = torch.cuda.get_device_properties(0).multi_processor_count * 8
    out = torch.empty(programs, dtype=torch.int32, device="cuda")

    def call() -> torch.Tensor:
        _read_kernel[(programs,)](x, out, x.numel(), BLOCK=4096, num_warps=8)
        return out

    return call


def kernel_module(workload: Workload) -> tuple[ModuleType, Any]:
    """The module of a workload's kernel, rendered from its spec, and the plan behind it."""
    loaded = load_file(ROOT / workload.spec)
    plan = next(plan for plan in lower(loaded) if plan.kernel == workload.kernel)
    path = Path(tempfile.mkdtemp()) / f"{plan.spec_name}_{plan.kernel}.py"
    path.write_text(render(plan), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, plan


def inputs(workload: Workload, plan: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B, Hq, M, Dqk], k [B, Hkv, N, Dqk], v [B, Hkv, N, Dv], standard normal."""
    torch.manual_seed(0)
    dtype = getattr(torch, plan.dtype)

    def draw(heads: int, tokens: int, dim: int) -> torch.Tensor:
        return torch.randn(workload.B, heads, tokens, dim, device="cuda", dtype=dtype)

    q = draw(plan.num_qo_heads, workload.M, plan.head_dim_qk)
    k = draw(plan.num_kv_heads, workload.N, plan.head_dim_qk)
    return q, k, draw(plan.num_kv_heads, workload.N, plan.head_dim_v)


def visible_range(plan: Any, position: int, num_keys: int) -> tuple[int, int]:
    """The keys first .. last + 1 that a query at ``position`` sees."""
    left, right = plan.window.left, plan.window.right
    first = 0 if left is None else max(0, position - left)
    return first, num_keys if right is None else min(num_keys, position + right + 1)


def pairs(workload: Workload, plan: Any) -> int:
    """Query-key pairs of one head and request."""
    total = 0
    for row in range(workload.M):
        first, end = visible_range(plan, row + workload.N - workload.M, workload.N)
        total += end - first
    return total


def worst_row_error(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any) -> float:
    """The largest |out - reference| / |reference| of 64 sampled rows, the reference in float64."""
    generator = torch.Generator().manual_seed(1)
    B, H, M, _ = q.shape
    worst = 0.0
    for _ in range(64):
        b, h, i = (int(torch.randint(n, (), generator=generator)) for n in (B, H, M))
        first, end = visible_range(plan, i + k.shape[2] - M, k.shape[2])
        keys, values = (x[b, h // plan.group_size, first:end].double() for x in (k, v))
        row = torch.softmax(keys @ q[b, h, i].double() * plan.sm_scale, 0) @ values
        error = float((out[b, h, i].double() - row).norm() / row.norm())
        if not error <= worst:  # NaN counts as the worst
            worst = error
    return worst


def peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any) -> dict[str, Call]:
    """Peers that state this layer: SDPA's cuDNN and FlashAttention-2, and FlashAttention-3 where it is installed."""
    calls: dict[str, Call] = {}
    decode = plan.template == "decode"
    windowed = plan.window.left is not None
    causal = plan.window.right is not None and not decode
    if not windowed and (not causal or q.shape[2] == k.shape[2]):
        for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)):

            def sdpa(backend: SDPBackend = backend) -> torch.Tensor:
                with sdpa_kernel([backend]):
                    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=plan.sm_scale, enable_gqa=True)

            calls[name] = sdpa
    if windowed and not decode:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        left, right = plan.window.left, plan.window.right

        def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (i - j <= left) & (j - i <= right)

        blocks = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device="cuda")
        compiled = torch.compile(flex_attention)
        calls["FlexAttention"] = lambda: compiled(q, k, v, block_mask=blocks, scale=plan.sm_scale, enable_gqa=True)
    try:
        from fa3_fwd_interface import flash_attn_func
    except ImportError:
        return calls
    if not windowed:
        t = [x.transpose(1, 2) for x in (q, k, v)]
        splits = 0 if decode else 1

        def fa3() -> torch.Tensor:
            out = flash_attn_func(*t, softmax_scale=plan.sm_scale, causal=causal, num_splits=splits)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        calls["FA3"] = fa3
    return calls


def replay(call: Call) -> Callable[[], None]:
    """``call`` captured in a CUDA graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def timed(calls: dict[str, Call]) -> dict[str, dict[str, float]]:
    """Median and spread in microseconds over rounds that interleave the calls; peers that fail are left out."""
    graphs: dict[str, Callable[[], None]] = {}
    for name, call in calls.items():
        try:
            graphs[name] = replay(call)
        except Exception as error:  # a peer may refuse a shape in any way
            print(f"    {name}: {type(error).__name__}: {str(error)[:90]}", file=sys.stderr)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            samples[name].append(1e3 * triton.testing.do_bench(graph, warmup=5, rep=30, return_mode="median"))
    return {
        name: {"us": statistics.median(times), "min_us": min(times), "max_us": max(times)}
        for name, times in samples.items()
    }


def ceilings() -> dict[str, float]:
    """Read bandwidth in TB/s over 2 GiB and bfloat16 matrix rate in TFLOP/s."""
    nbytes = 2 << 30
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = timed({"read": read_call(nbytes), "matmul": lambda: a @ b})
    return {
        "read_tb_s": nbytes / times["read"]["us"] / 1e6,
        "matmul_tflop_s": 2 * 8192**3 / times["matmul"]["us"] / 1e6,
    }


def measure(workload: Workload) -> dict[str, Any]:
    """One workload: checked, then timed beside its peers."""
    module, plan = kernel_module(workload)
    q, k, v = inputs(workload, plan)
    if workload.kernel == "decode":
        seq_lens = torch.full((workload.B,), workload.N, dtype=torch.int32, device="cuda")
        out = torch.full_like(q[:, :, 0], float("nan"))
        calls: dict[str, Call] = {"kgen": lambda: module.attention(q[:, :, 0], k, v, seq_lens=seq_lens, out=out)}
        calls["kgen"]()
        error = worst_row_error(out[:, :, None], q, k, v, plan)
    else:
        out = torch.full((*q.shape[:3], plan.head_dim_v), float("nan"), device="cuda", dtype=q.dtype)
        calls = {"kgen": lambda: module.attention(q, k, v, out=out)}
        calls["kgen"]()
        error = worst_row_error(out, q, k, v, plan)
    if not error < 2e-2:
        raise SystemExit(f"{workload.name}: wrong result, relative error {error}")
    calls |= peers(q, k, v, plan)
    first, end = visible_range(plan, workload.N - 1, workload.N)
    keys = end - first if workload.kernel == "decode" else workload.N
    nbytes = workload.B * plan.num_kv_heads * keys * plan.kv_bytes_per_token
    if workload.kernel == "decode":
        calls["read"] = read_call(nbytes)
    flops = 2 * workload.B * plan.num_qo_heads * pairs(workload, plan) * (plan.head_dim_qk + plan.head_dim_v)
    result = {**vars(workload), "error": error, "bytes": nbytes, "flops": flops, "times": timed(calls)}
    print_row(result)
    return result


def print_row(result: dict[str, Any]) -> None:
    """One line of the table: time, rate, and the best peer's time over ours."""
    times = result["times"]
    ours = times["kgen"]["us"]
    rate = (
        f"{result['bytes'] / ours / 1e6:.2f} TB/s"
        if result["kernel"] == "decode"
        else f"{result['flops'] / ours / 1e6:.0f} TF/s"
    )
    others = ", ".join(f"{name} {t['us']:.1f}" for name, t in times.items() if name != "kgen")
    print(f"{result['name']:28} {ours:9.1f} us  {rate:10}  {others}", flush=True)


def main() -> None:
    """Run the workloads, print a line each and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--only", nargs="*", help="names of workloads; default all")
    arguments = parser.parse_args()
    record: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "flush": "L2 flushed by writing 256 MB",
        "ceilings": ceilings(),
        "workloads": [],
    }
    print(json.dumps({key: value for key, value in record.items() if key != "workloads"}), flush=True)
    for workload in WORKLOADS:
        if not arguments.only or workload.name in arguments.only:
            record["workloads"].append(measure(workload))
            torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
