"""A proof that cannot fail proves nothing: break generated kernels in the classic ways and see each one caught."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kgen.verify.modules import load_package
from tests.verify_support import MASKS, failures, generate, load_spec

pytestmark = pytest.mark.triton

CAUSAL = {"heads": 4, "kv_heads": 2, "mask": MASKS["causal"]}
FULL = {"heads": 4, "kv_heads": 2, "mask": MASKS["full"]}
WINDOW = {"heads": 4, "kv_heads": 2, "mask": {"kind": "sliding_window", "size": 40}}
TWO_SIDED = {"heads": 4, "kv_heads": 2, "mask": {"kind": "window", "left": 3, "right": 2}}
ODD_GROUP = {"heads": 6, "kv_heads": 2, "mask": MASKS["causal"]}
RAGGED = {**CAUSAL, "kernels": {"prefill": {"layout": "ragged"}}}
PADDED_BATCH = {**CAUSAL, "kernels": {"prefill": {"padded": True}}}
PADDED_FULL = {**FULL, "kernels": {"prefill": {"padded": True}}}
TOKENS_FIRST = {**CAUSAL, "kernels": {"prefill": {"layout": "bshd"}}}
PAGED = CAUSAL | {"kernels": {"decode": {"kv": {"kind": "paged", "page_size": 16}}}}
PAGED_WINDOW = WINDOW | {"kernels": {"decode": {"kv": {"kind": "paged", "page_size": 16}}}}
TILE_IN_PAGE = CAUSAL | {"kernels": {"decode": {"kv": {"kind": "paged", "page_size": 128}}}}
CHUNKS = CAUSAL | {"kernels": {"prefill": {"layout": "ragged", "kv": {"kind": "paged", "page_size": 16}}}}
CHUNKS_WINDOW = CHUNKS | {"mask": WINDOW["mask"]}
CHUNKS_TILE = CAUSAL | {"kernels": {"prefill": {"layout": "ragged", "kv": {"kind": "paged", "page_size": 128}}}}
PADDED = {"heads": 2, "kv_heads": 1, "head_dim": 24, "mask": MASKS["causal"]}


@dataclass(frozen=True)
class Mutation:
    """A fault: ``old`` becomes ``new`` wherever it stands in the kernel generated from ``facts``."""

    name: str
    kernel: str
    facts: dict[str, Any] = field(hash=False)
    old: str
    new: str


MUTATIONS = (
    # The mask.
    Mutation("causal off by one", "prefill", CAUSAL, "[None, :] <= q_pos[:, None]", "[None, :] < q_pos[:, None]"),
    Mutation("causal top-left", "prefill", CAUSAL, "q_pos = offs_m + N - M", "q_pos = offs_m"),
    Mutation("no causal mask", "prefill", CAUSAL, "[None, :] <= q_pos[:, None]", "[None, :] < N"),
    Mutation("full tiles reach too far", "prefill", CAUSAL, "full_hi = tl.maximum(first_pos + 1, 0)",
             "full_hi = tl.maximum(first_pos + 2, 0)"),
    Mutation("loop ends a tile early", "prefill", CAUSAL, "hi = last_pos + 1", "hi = last_pos"),
    Mutation("no tail mask", "prefill", FULL, "visible = n_ok[None, :]", "visible = n_ok[None, :] | True"),
    Mutation("window one too narrow", "prefill", WINDOW, "(distance <= 39)", "(distance < 39)"),
    Mutation("window one too wide", "prefill", WINDOW, "39", "40"),
    Mutation("window loop starts late", "prefill", WINDOW, "lo = tl.maximum(first_pos - 39, 0)",
             "lo = tl.maximum(first_pos - 38, 0)"),
    Mutation("right edge off by one", "prefill", TWO_SIDED, "(distance >= -2)", "(distance >= -1)"),
    Mutation("finite sentinel", "prefill", CAUSAL, "qk = tl.where(visible, qk, -float(\"inf\"))",
             "qk = tl.where(visible, qk, -1e4)"),
    # The softmax.
    Mutation("0 stored as the maximum", "prefill", WINDOW, "return p, alpha, m_new, l_i * alpha + tl.sum(p, 1)",
             "return p, alpha, tl.where(m_new == -float(\"inf\"), 0.0, m_new), l_i * alpha + tl.sum(p, 1)"),
    Mutation("no guard in the exponent", "prefill", WINDOW, "m_ref = tl.where(m_new == -float(\"inf\"), 0.0, m_new)",
             "m_ref = m_new"),
    Mutation("accumulator not rescaled", "prefill", CAUSAL, "acc * alpha[:, None]", "acc"),
    Mutation("sum not rescaled", "prefill", CAUSAL, "l_i * alpha + tl.sum(p, 1)", "l_i + tl.sum(p, 1)"),
    Mutation("scale off by 1 %", "prefill", CAUSAL, "_SCALE_LOG2 = tl.constexpr(",
             "_SCALE_LOG2 = tl.constexpr(1.01 * "),
    Mutation("scale used as if in base e", "prefill", CAUSAL, "tl.exp2(", "tl.exp("),
    Mutation("LSE in base 2", "prefill", CAUSAL, "(m_i + tl.log2(l_safe)) * _LN2", "(m_i + tl.log2(l_safe))"),
    Mutation("empty row divides by 0", "prefill", CAUSAL, "l_safe = tl.where(l_i == 0.0, 1.0, l_i)", "l_safe = l_i"),
    # Memory.
    Mutation("K tail read past the end", "prefill", CAUSAL,
             "k = tl.load(k_ptrs + start_n * stride_kn, mask=n_ok[:, None], other=0.0)",
             "k = tl.load(k_ptrs + start_n * stride_kn)"),
    Mutation("V tail not zeroed", "prefill", CAUSAL,
             "v = tl.load(v_ptrs + start_n * stride_vn, mask=n_ok[:, None], other=0.0)",
             "v = tl.load(v_ptrs + start_n * stride_vn, mask=n_ok[:, None])"),
    Mutation("rows past M stored", "prefill", CAUSAL, ".to(tl.float16), mask=m_ok[:, None])", ".to(tl.float16))"),
    Mutation("LSE past M stored", "prefill", CAUSAL, "* _LN2, mask=m_ok)", "* _LN2)"),
    Mutation("V read with K's strides", "prefill", CAUSAL, "v_base = v_ptr + (batch * stride_vb + kv_head * stride_vh)",
             "v_base = v_ptr + (batch * stride_kb + kv_head * stride_kh)"),
    Mutation("out written with q's strides", "prefill", CAUSAL, "offs_m[:, None] * stride_om",
             "offs_m[:, None] * stride_qm"),
    Mutation("row offsets in 32 bits", "prefill", CAUSAL, "stride_kn = tl.cast(stride_kn, tl.int64) * STRIDE_UNIT",
             "stride_kn = stride_kn * STRIDE_UNIT"),
    Mutation("head offsets in 32 bits", "prefill", CAUSAL, "head = tl.cast(batch_head % 4, tl.int64)",
             "head = batch_head % 4"),
    Mutation("batch offsets in 32 bits", "prefill", CAUSAL, "batch = tl.cast(batch_head // 4, tl.int64)",
             "batch = batch_head // 4"),
    Mutation("head map of another library", "prefill", CAUSAL, "kv_head = head // 2", "kv_head = head % 2"),
    Mutation("padding columns of q and k not masked", "prefill", PADDED, " & d_ok[None, :], other=0.0", ", other=0.0"),
    Mutation("padding columns stored", "prefill", PADDED, "mask=m_ok[:, None] & d_ok[None, :])", "mask=m_ok[:, None])"),
    # Layouts.
    Mutation("bshd: axes of k in the other order", "prefill", TOKENS_FIRST, "*k.stride()[:3]",
             "k.stride(0), k.stride(2), k.stride(1)"),
    Mutation("bshd: rows of out and of lse", "prefill", TOKENS_FIRST, "*out.stride()[:3])",
             "out.stride(0), out.stride(2), out.stride(1))"),
    # Lengths of requests.
    Mutation("padded: rows of padding stored from junk", "prefill", PADDED_BATCH,
             "tl.where(m_ok[:, None], acc / l_safe[:, None], 0.0)", "acc / l_safe[:, None]"),
    Mutation("padded: LSE of padding from junk", "prefill", PADDED_BATCH,
             "tl.where(m_ok, (m_i + tl.log2(l_safe)) * _LN2, -float(\"inf\"))", "(m_i + tl.log2(l_safe)) * _LN2"),
    Mutation("padded: rows of padding not written", "prefill", PADDED_BATCH, "is_row = offs_m < M", "is_row = m_ok"),
    Mutation("padded: keys of padding seen", "prefill", PADDED_FULL, "n_ok = start_n + offs_n < length",
             "n_ok = start_n + offs_n < M"),
    Mutation("padded: lengths of the neighbour", "prefill", PADDED_BATCH, "tl.load(seq_lens_ptr + batch)",
             "tl.load(seq_lens_ptr + (batch + 1) % B)"),
    Mutation("padded: a block of padding walks keys", "prefill", PADDED_BATCH,
             "length = tl.where(start_m < length, length, 0)", "length = tl.where(start_m < length, length, M)"),
    Mutation("ragged: indptr of the neighbour", "prefill", RAGGED, "q_begin = tl.load(qo_indptr_ptr + batch)",
             "q_begin = tl.load(qo_indptr_ptr + tl.maximum(batch - 1, 0))"),
    Mutation("ragged: keys of the neighbour", "prefill", RAGGED, "kv_begin = tl.load(kv_indptr_ptr + batch)",
             "kv_begin = tl.load(kv_indptr_ptr + tl.maximum(batch - 1, 0))"),
    Mutation("ragged: keys where the queries lie", "prefill", RAGGED, "kv_begin = tl.load(kv_indptr_ptr + batch)",
             "kv_begin = tl.load(qo_indptr_ptr + batch)"),
    Mutation("ragged: LSE at a dense offset", "prefill", RAGGED, "head * Tq + q_begin + offs_m",
             "tl.cast(batch_head, tl.int64) * max_qo_len + offs_m"),
    Mutation("ragged: LSE of tokens before heads", "prefill", RAGGED, "head * Tq + q_begin + offs_m",
             "(q_begin + offs_m) * 4 + head"),
    Mutation("ragged: rows past the request stored", "prefill", RAGGED, "m_ok = offs_m < qo_len",
             "m_ok = offs_m < max_qo_len"),
    Mutation("ragged: the next request's keys seen", "prefill", {**RAGGED, "mask": MASKS["full"]},
             "n_ok = start_n + offs_n < kv_len", "n_ok = start_n + offs_n < kv_len + 1"),
    Mutation("ragged: aligned over the bound", "prefill", RAGGED, "q_pos = offs_m + kv_len - qo_len",
             "q_pos = offs_m + kv_len - max_qo_len"),
    Mutation("ragged: row offsets in 32 bits", "prefill", RAGGED,
             "stride_qm = tl.cast(stride_qm, tl.int64) * STRIDE_UNIT", "stride_qm = stride_qm * STRIDE_UNIT"),
    # Chunks of a paged cache.
    Mutation("chunks: page of the wrong request", "prefill", CHUNKS, "table = block_table_ptr + batch * stride_tb",
             "table = block_table_ptr + (B - 1 - batch) * stride_tb"),
    Mutation("chunks: rows of the table taken as dense", "prefill", CHUNKS, "block_table.stride(0)",
             "block_table.shape[1]"),
    Mutation("chunks: page index of the tile ahead unmasked", "prefill", CHUNKS, "mask=ahead < kv_len, other=0)",
             "mask=ahead >= 0, other=0)"),
    Mutation("chunks: table entry one too far", "prefill", CHUNKS, "mask=ahead < kv_len, other=0)",
             "mask=ahead <= kv_len, other=0)"),
    Mutation("chunks: first page index unmasked", "prefill", CHUNKS, "mask=offs_n < kv_len, other=0)",
             "mask=offs_n >= 0, other=0)"),
    Mutation("chunks: page of the first tile throughout", "prefill", CHUNKS, "        page = tl.load(table + ahead",
             "        _ = tl.load(table + ahead"),
    Mutation("chunks: two tiles ahead", "prefill", CHUNKS, "ahead = start_n + BLOCK_N + offs_n",
             "ahead = start_n + 2 * BLOCK_N + offs_n"),
    Mutation("chunks: place in the page off by one", "prefill", CHUNKS, "page * stride_kp + (start_n + offs_n)",
             "page * stride_kp + (start_n + offs_n + 1)"),
    Mutation("chunks: causal shift dropped", "prefill", CHUNKS, "q_pos = offs_m + kv_len - qo_len", "q_pos = offs_m"),
    Mutation("chunks: lengths of the neighbour", "prefill", CHUNKS, "kv_len = tl.load(seq_lens_ptr + batch)",
             "kv_len = tl.load(seq_lens_ptr + (batch + 1) % B)"),
    Mutation("chunks: keys before the chunk alone", "prefill", CHUNKS, "kv_len = tl.load(seq_lens_ptr + batch)",
             "kv_len = tl.load(seq_lens_ptr + batch) - qo_len"),
    Mutation("chunks: page offset in 32 bits", "prefill", CHUNKS,
             "stride_vp = tl.cast(stride_vp, tl.int64) * STRIDE_UNIT", "stride_vp = stride_vp * STRIDE_UNIT"),
    Mutation("chunks: offset in a page in 32 bits", "prefill", CHUNKS,
             "stride_kn = tl.cast(stride_kn, tl.int64) * STRIDE_UNIT", "stride_kn = stride_kn * STRIDE_UNIT"),
    Mutation("chunks: V tail not zeroed", "prefill", CHUNKS, "v_rows[:, None], mask=n_ok[:, None], other=0.0)",
             "v_rows[:, None])"),
    Mutation("chunks: freed pages before the window", "prefill", CHUNKS_WINDOW,
             "page = tl.load(table + (lo + offs_n) // 16, mask=lo + offs_n < kv_len, other=0)",
             "page = tl.load(table + (lo - 16 + offs_n) // 16, mask=(lo >= 16) & (lo + offs_n < kv_len), other=0)"),
    Mutation("chunks: place of a tile in its page", "prefill", CHUNKS_TILE, "start_n % 128 * stride_vn",
             "start_n % 64 * stride_vn"),
    Mutation("chunks: page index of a tile ahead unmasked", "prefill", CHUNKS_TILE, ", mask=ahead < kv_len, other=0)",
             ")"),
    Mutation("chunks: first page of a request without keys", "prefill", CHUNKS_TILE, ", mask=kv_len > 0, other=0)",
             ")"),
    # Decode.
    Mutation("decode: last split ignored", "decode", CAUSAL, "first_slot, first_slot, num_splits, row",
             "first_slot, first_slot, num_splits - 1, row"),
    Mutation("decode: no tail mask", "decode", CAUSAL, "qk = tl.where(n_ok[None, :], qk, -float(\"inf\"))", "qk = qk"),
    Mutation("decode: finite sentinel", "decode", CAUSAL, "qk = tl.where(n_ok[None, :], qk, -float(\"inf\"))",
             "qk = tl.where(n_ok[None, :], qk, -1e4)"),
    Mutation("decode: length one short", "decode", CAUSAL, "n_ok = start_n + offs_n < length",
             "n_ok = start_n + offs_n < length - 1"),
    Mutation("decode: V tail not zeroed", "decode", CAUSAL,
             "v = tl.load(v_ptrs + start_n * stride_vn, mask=n_ok[:, None], other=0.0)",
             "v = tl.load(v_ptrs + start_n * stride_vn)"),
    Mutation("decode: window one too wide", "decode", WINDOW, "tl.minimum(length, 40)", "tl.minimum(length, 41)"),
    Mutation("decode: window of the first keys", "decode", WINDOW, "(length - num_keys) * stride", "0 * stride"),
    Mutation("decode: neighbour's heads overwritten", "decode", ODD_GROUP, "h_ok = offs_h < 3", "h_ok = offs_h < 4"),
    Mutation("decode: head map", "decode", ODD_GROUP, "kv_head = task % 2", "kv_head = 1 - task % 2"),
    Mutation("decode: 0 stored as the maximum of a merge", "decode", CAUSAL, "        m_i = m_new",
             "        m_i = m_ref"),
    Mutation("decode: merge of base-2 LSE in base e", "decode", CAUSAL, "weight = tl.exp2(", "weight = tl.exp("),
    Mutation("decode: parts past the count merged", "decode", CAUSAL, "p_ok = part < count", "p_ok = part < count + 1"),
    Mutation("decode: parts of two tasks in one slot", "decode", CAUSAL,
             "slot = tl.where(unit == start, part, num_parts + part)", "slot = part"),
    Mutation("decode: a cut task not merged", "decode", CAUSAL, "if count > 1:", "if count > 2:"),
    Mutation("decode: empty requests not written", "decode", CAUSAL, "tl.maximum(tl.cdiv(length, BLOCK_N), 1)",
             "tl.cdiv(length, BLOCK_N)"),
    Mutation("decode: row offsets in 32 bits", "decode", CAUSAL,
             "stride_vn = tl.cast(stride_vn, tl.int64) * STRIDE_UNIT",
             "stride_vn = stride_vn * STRIDE_UNIT"),
    # Pages.
    Mutation("paged: page index unmasked", "decode", PAGED,
             "page = tl.load(table + position // 16, mask=position < length, other=0)",
             "page = tl.load(table + position // 16)"),
    Mutation("paged: page index of a tile unmasked", "decode", TILE_IN_PAGE, ", mask=start_n < length, other=0)", ")"),
    Mutation("paged: entry behind the last key", "decode", PAGED, "mask=position < length, other=0",
             "mask=position <= length, other=0"),
    Mutation("paged: place in the page off by one", "decode", PAGED, "k_base + (offs_n % 16)[:, None]",
             "k_base + ((offs_n + 1) % 16)[:, None]"),
    Mutation("paged: place of a windowed key off by one", "decode", PAGED_WINDOW,
             "k_rows = page * stride_kp + position % 16", "k_rows = page * stride_kp + (position + 1) % 16"),
    Mutation("paged: place of a tile in its page", "decode", TILE_IN_PAGE, "start_n % 128 * stride_vn",
             "start_n % 64 * stride_vn"),
    Mutation("paged: page of another size", "decode", PAGED, "position // 16", "position // 17"),
    Mutation("paged: page of the first tile throughout", "decode", PAGED, "position += BLOCK_N\n        page = ",
             "position += BLOCK_N\n        _ = "),
    Mutation("paged: neighbour's row of the table", "decode", PAGED, "batch * stride_tb", "(batch + 1) * stride_tb"),
    Mutation("paged: every request reads the first row", "decode", PAGED, "batch * stride_tb", "0 * stride_tb"),
    Mutation("paged: rows of the table taken as dense", "decode", PAGED, "block_table.stride(0)",
             "block_table.shape[1]"),
    Mutation("paged: page offset in 32 bits", "decode", PAGED, "stride_kp = tl.cast(stride_kp, tl.int64) * STRIDE_UNIT",
             "stride_kp = stride_kp * STRIDE_UNIT"),
    Mutation("paged: page offset of a tile in 32 bits", "decode", TILE_IN_PAGE,
             "stride_vp = tl.cast(stride_vp, tl.int64) * STRIDE_UNIT", "stride_vp = stride_vp * STRIDE_UNIT"),
    Mutation("paged: offset in a page in 32 bits", "decode", PAGED,
             "stride_vn = tl.cast(stride_vn, tl.int64) * STRIDE_UNIT", "stride_vn = stride_vn * STRIDE_UNIT"),
    Mutation("paged: V read with K's strides", "decode", PAGED, "v_rows = page * stride_vp",
             "v_rows = page * stride_kp"),
    Mutation("paged: keys left of the window", "decode", PAGED_WINDOW, "position = length - num_keys + begin",
             "position = begin"),
    Mutation("paged: K tail not masked", "decode", PAGED, "k_rows[:, None], mask=n_ok[:, None], other=0.0)",
             "k_rows[:, None])"),
    Mutation("paged: V tail not zeroed", "decode", PAGED, "v_rows[:, None], mask=n_ok[:, None], other=0.0)",
             "v_rows[:, None])"),
)  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_every_mutation_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    loaded = load_spec(**mutation.facts)
    generate(loaded, tmp_path)
    path = tmp_path / loaded.spec.name / f"{mutation.kernel}.py"
    text = path.read_text()
    assert mutation.old in text, "the generated code has changed: give this mutation the new text"
    path.write_text(text.replace(mutation.old, mutation.new))
    module = load_package(path.parent)[mutation.kernel]
    caught = failures(loaded, mutation.kernel, module, first=True)
    assert caught, "every case passed"
    message = caught[0].message
    assert message is not None
    # A mutation must compute something wrong, not fail to run.
    assert "raised" not in message or "ForeignAccessError" in message, message
