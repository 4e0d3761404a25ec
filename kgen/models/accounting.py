"""What a layer costs: cache, arithmetic and memory traffic, from its spec alone.

Everything is an exact integer of one layer. A multiplication and an addition are two operations; only the matrix
products are counted, not the softmax between them. Traffic is the least a kernel can move: each operand once, a key
or value once for all the query heads and tokens that share it, and only those that some query sees. What a schedule
adds (keys read again by later tiles, partial results of splits) and index tensors are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kgen.models.visibility import UncountedMaskError, visible
from kgen.spec.model import BackwardKernel, DecodeKernel, GroupedAttention, MergeStatesKernel
from kgen.spec.views import merged_width

if TYPE_CHECKING:
    from kgen.spec.model import Attention, DType, Kernel

DTYPE_BYTES: dict[DType, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
LSE_BYTES = 4  # float32, whatever the dtype of the layer


@dataclass(frozen=True)
class Workload:
    """``batch`` requests of ``context`` keys each; prefill and backward have ``queries`` query tokens a request."""

    batch: int
    context: int
    queries: int


@dataclass(frozen=True)
class Operands:
    """What a kernel multiplies: query heads, widths of a score and of an output, elements of a token's K and V."""

    num_qo_heads: int
    width_qk: int
    width_v: int
    record: int


@dataclass(frozen=True)
class CacheCost:
    """The cache of one layer.

    ``held_bytes`` is that of every token of the workload; ``seen_bytes`` is the part that the newest token of each
    request sees, ``None`` where that depends on more than the spec.
    """

    elements_per_token: int
    bytes_per_token: int
    held_bytes: int
    seen_bytes: int | None


@dataclass(frozen=True)
class KernelCost:
    """One call of a kernel. ``pairs`` are those of one head and request, the rest is the whole call's."""

    queries: int
    pairs: int
    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes moved, read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Floor:
    """The time no kernel can beat, and what sets it."""

    seconds: float
    bound: Literal["compute", "memory"]


def operands(layer: Attention, kernel: Literal["prefill", "decode", "backward"]) -> Operands:
    """The shape of a layer as a kind of kernel sees it.

    A latent layer is expanded to keys and values of every head for prefill and backward. Decode is absorbed: all
    heads score the latent and the rotary key of a token, and the latent is its value too.
    """
    if isinstance(layer, GroupedAttention):
        width_qk = layer.head_dim_qk + (layer.head_dim_pe or 0)
        record = layer.num_kv_heads * (width_qk + layer.head_dim_v)
        return Operands(layer.num_qo_heads, width_qk, layer.head_dim_v, record)
    if kernel == "decode":
        record = layer.kv_lora_rank + layer.qk_rope_head_dim
        return Operands(layer.num_qo_heads, record, layer.kv_lora_rank, record)
    width_qk = layer.qk_nope_head_dim + layer.qk_rope_head_dim
    return Operands(layer.num_qo_heads, width_qk, layer.v_head_dim, layer.num_qo_heads * (width_qk + layer.v_head_dim))


def cache_cost(layer: Attention, dtype: DType, workload: Workload) -> CacheCost:
    """The cache of ``layer``: what decode reads again for every new token."""
    elements = operands(layer, "decode").record
    token = elements * DTYPE_BYTES[dtype]
    try:
        seen = workload.batch * visible(layer.mask, 1, workload.context, ahead=False).keys * token
    except UncountedMaskError:
        seen = None
    return CacheCost(elements, token, workload.batch * workload.context * token, seen)


def kernel_cost(layer: Attention, kernel: Kernel, dtype: DType, workload: Workload) -> KernelCost:
    """One call of ``kernel`` on ``workload``; a merge is one of two parts.

    Raises:
        UncountedMaskError: the pairs of the mask depend on more than the spec says.
    """
    if isinstance(kernel, MergeStatesKernel):
        return _merge_cost(layer, kernel, dtype, workload)
    shape = operands(layer, kernel.kind)
    is_decode = isinstance(kernel, DecodeKernel)
    queries = kernel.q_len if isinstance(kernel, DecodeKernel) else workload.queries
    seen = visible(layer.mask, queries, workload.context, ahead=not is_decode)
    size = DTYPE_BYTES[dtype]

    rows = workload.batch * queries * shape.num_qo_heads
    q, out, lse = rows * shape.width_qk * size, rows * shape.width_v * size, rows * LSE_BYTES
    read_kv = workload.batch * seen.keys * shape.record * size
    all_pairs = workload.batch * shape.num_qo_heads * seen.pairs
    if isinstance(kernel, BackwardKernel):
        # Q K^T, dS K and dS^T Q are as wide as a key; dO V^T and P^T dO as wide as a value.
        flops = 2 * all_pairs * (3 * shape.width_qk + 2 * shape.width_v)
        # Reads do beside out; writes the gradient of every key, also of those that no query sees.
        written_kv = workload.batch * workload.context * shape.record * size
        return KernelCost(queries, seen.pairs, flops, q + read_kv + 2 * out + lse, q + written_kv)
    flops = 2 * all_pairs * (shape.width_qk + shape.width_v)
    return KernelCost(queries, seen.pairs, flops, q + read_kv, out + lse)


def _merge_cost(layer: Attention, kernel: MergeStatesKernel, dtype: DType, workload: Workload) -> KernelCost:
    """Two parts read and one written; there is no matrix product in it, and no pair of a query and a key."""
    queries = 1 if kernel.layout == "bhd" else workload.queries
    rows = workload.batch * queries * layer.num_qo_heads
    part = rows * (merged_width(layer, kernel) * DTYPE_BYTES[dtype] + LSE_BYTES)
    return KernelCost(queries, 0, 0, 2 * part, part)


def floor(cost: KernelCost, *, tflop_s: float, memory_tb_s: float) -> Floor:
    """The longer of the time to compute at ``tflop_s`` and the time to move the bytes at ``memory_tb_s``."""
    compute, memory = cost.flops / (tflop_s * 1e12), cost.bytes / (memory_tb_s * 1e12)
    return Floor(compute, "compute") if compute > memory else Floor(memory, "memory")
