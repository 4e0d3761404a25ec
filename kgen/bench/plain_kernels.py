"""Plain decode kernels, as one writes them first: what the generated ones are compared with beside the peers.

Both cut every request into the same number of splits and merge the parts in a second kernel.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

LOG2_E = math.log2(math.e)
PROGRAMS_PER_SM = 4
LEAST_KEYS = 256  # of a split
MOST_SPLITS = 64


@triton.jit
def _head_kernel(
    q_ptr,  # [B, Hq, D]
    k_ptr,  # [B, Hkv, N, D]
    v_ptr,
    parts_ptr,  # [B, Hq, SPLITS, D] float32
    lse_ptr,  # [B, Hq, SPLITS] float32, base 2
    seq_lens_ptr,
    scale,  # sm_scale * log2(e)
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a query head and split: it loads keys and values for its head alone."""
    h, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = b * tl.num_programs(0) + h
    length = tl.load(seq_lens_ptr + b)
    keys = tl.cdiv(tl.cdiv(length, tl.num_programs(1)), BLOCK_N) * BLOCK_N
    begin = split * keys
    end = tl.minimum(begin + keys, length)
    offs_d = tl.arange(0, D)
    q = tl.load(q_ptr + row * D + offs_d).to(tl.float32) * scale
    k_rows = k_ptr + b.to(tl.int64) * stride_kb + (h // GROUP).to(tl.int64) * stride_kh
    v_rows = v_ptr + b.to(tl.int64) * stride_vb + (h // GROUP).to(tl.int64) * stride_vh
    m_i, l_i = -float("inf"), 0.0
    acc = tl.zeros([D], tl.float32)
    for start in range(begin, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        n_ok = offs_n < end
        k = tl.load(k_rows + offs_n[:, None].to(tl.int64) * stride_kn + offs_d, mask=n_ok[:, None], other=0.0)
        s = tl.sum(k.to(tl.float32) * q[None, :], 1)
        s = tl.where(n_ok, s, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(s, 0))
        p, alpha = tl.exp2(s - m_new), tl.exp2(m_i - m_new)
        v = tl.load(v_rows + offs_n[:, None].to(tl.int64) * stride_vn + offs_d, mask=n_ok[:, None], other=0.0)
        acc = acc * alpha + tl.sum(p[:, None] * v.to(tl.float32), 0)
        l_i = l_i * alpha + tl.sum(p, 0)
        m_i = m_new
    part = row * tl.num_programs(1) + split
    total = tl.where(l_i > 0, l_i, 1.0)  # a split without keys gives 0 and -inf
    tl.store(parts_ptr + part.to(tl.int64) * D + offs_d, acc / total)
    tl.store(lse_ptr + part, m_i + tl.log2(total))


@triton.jit
def _latent_kernel(
    q_ptr,  # [B, H, R]
    q_pe_ptr,  # [B, H, P]
    cache_ptr,  # [B, N, R + P]
    parts_ptr,  # [B, H, SPLITS, R] float32
    lse_ptr,  # [B, H, SPLITS] float32, base 2
    seq_lens_ptr,
    scale,  # sm_scale * log2(e)
    stride_b,
    stride_n,
    R: tl.constexpr,
    P: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a tile of heads and split; the latent tile is K and, as it is, V."""
    h, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = (b * tl.num_programs(0) + h) * BLOCK_H + tl.arange(0, BLOCK_H)
    length = tl.load(seq_lens_ptr + b)
    keys = tl.cdiv(tl.cdiv(length, tl.num_programs(1)), BLOCK_N) * BLOCK_N
    begin = split * keys
    end = tl.minimum(begin + keys, length)
    offs_r, offs_p = tl.arange(0, R), tl.arange(0, P)
    q = tl.load(q_ptr + rows[:, None] * R + offs_r)
    q_pe = tl.load(q_pe_ptr + rows[:, None] * P + offs_p)
    m_i = tl.full([BLOCK_H], -float("inf"), tl.float32)
    l_i = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, R], tl.float32)
    for start in range(begin, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        n_ok = offs_n < end
        token = cache_ptr + b.to(tl.int64) * stride_b + offs_n[:, None].to(tl.int64) * stride_n
        kv = tl.load(token + offs_r, mask=n_ok[:, None], other=0.0)
        k_pe = tl.load(token + R + offs_p, mask=n_ok[:, None], other=0.0)
        s = (tl.dot(q, kv.T) + tl.dot(q_pe, k_pe.T)) * scale
        s = tl.where(n_ok[None, :], s, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p, alpha = tl.exp2(s - m_new[:, None]), tl.exp2(m_i - m_new)
        acc = tl.dot(p.to(kv.dtype), kv, acc * alpha[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    part = rows * tl.num_programs(1) + split
    total = tl.where(l_i > 0, l_i, 1.0)  # a split without keys gives 0 and -inf
    tl.store(parts_ptr + part[:, None].to(tl.int64) * R + offs_r, acc / total[:, None])
    tl.store(lse_ptr + part, m_i + tl.log2(total))


@triton.jit
def _merge_kernel(parts_ptr, lse_ptr, out_ptr, SPLITS: tl.constexpr, D: tl.constexpr):
    """The parts of one row, weighted by their LSE."""
    row = tl.program_id(0)
    offs_s, offs_d = tl.arange(0, SPLITS), tl.arange(0, D)
    lse = tl.load(lse_ptr + row * SPLITS + offs_s)
    top = tl.max(lse, 0)
    weights = tl.where(lse > -float("inf"), tl.exp2(lse - top), 0.0)
    total = tl.sum(weights, 0)
    parts = tl.load(parts_ptr + (row.to(tl.int64) * SPLITS + offs_s[:, None]) * D + offs_d)
    out = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + row.to(tl.int64) * D + offs_d, out)


def num_splits(programs: int, longest: int, multiprocessors: int) -> int:
    """Splits, a power of two, that fill the GPU with ``programs`` a split and leave each some keys."""
    wanted = min(PROGRAMS_PER_SM * multiprocessors // programs, longest // LEAST_KEYS, MOST_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)


def grouped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq_lens: torch.Tensor, sm_scale: float, splits: int
) -> torch.Tensor:
    """Decode of ``q[B, Hq, D]`` over ``k, v[B, Hkv, N, D]``, D a power of two: ``out[B, Hq, D]``."""
    batch, heads, width = q.shape
    parts = torch.empty(batch, heads, splits, width, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, heads, splits, dtype=torch.float32, device=q.device)
    _head_kernel[(heads, splits, batch)](
        q,
        k,
        v,
        parts,
        lse,
        seq_lens,
        sm_scale * LOG2_E,
        *k.stride()[:3],
        *v.stride()[:3],
        GROUP=heads // k.shape[1],
        D=width,
        BLOCK_N=64,
        num_warps=4,
    )
    return _merged(parts, lse, q)


def latent(
    q: torch.Tensor, q_pe: torch.Tensor, cache: torch.Tensor, seq_lens: torch.Tensor, sm_scale: float, splits: int
) -> torch.Tensor:
    """Absorbed decode of ``q[B, H, R]``, ``q_pe[B, H, P]`` over ``cache[B, N, R + P]``, 16 heads a tile."""
    batch, heads, rank = q.shape
    parts = torch.empty(batch, heads, splits, rank, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, heads, splits, dtype=torch.float32, device=q.device)
    _latent_kernel[(heads // 16, splits, batch)](
        q,
        q_pe,
        cache,
        parts,
        lse,
        seq_lens,
        sm_scale * LOG2_E,
        *cache.stride()[:2],
        R=rank,
        P=q_pe.shape[-1],
        BLOCK_H=16,
        BLOCK_N=32,
        num_warps=4,
        num_stages=2,
    )
    return _merged(parts, lse, q)


def _merged(parts: torch.Tensor, lse: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    batch, heads, splits, width = parts.shape
    out = torch.empty(batch, heads, width, dtype=q.dtype, device=q.device)
    _merge_kernel[(batch * heads,)](parts, lse, out, SPLITS=splits, D=width)
    return out
