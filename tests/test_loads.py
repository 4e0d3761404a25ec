"""What a decode reads: every tile of K and V once for all the query heads of a KV head."""

from __future__ import annotations

import pytest
import torch

from kgen.verify.interpreter import interpreting
from tests.verify_support import MASKS, generate, load_spec

pytestmark = pytest.mark.triton

LENGTHS = (0, 1, 130, 77)
WIDTH, KV_HEADS = 16, 2


def loaded_bytes(tmp_path, group, num_splits, mask):
    loaded = load_spec(heads=group * KV_HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, mask=mask)
    module = generate(loaded, tmp_path)["decode"]
    k, v = (torch.randn(len(LENGTHS), KV_HEADS, 150, WIDTH).half() for _ in range(2))
    q = torch.randn(len(LENGTHS), group * KV_HEADS, WIDTH).half()
    seq_lens = torch.tensor(LENGTHS, dtype=torch.int32)
    with interpreting() as harness:
        counts = harness.count(k), harness.count(v)
        module.attention(q, k, v, seq_lens=seq_lens, num_splits=num_splits)
    return [count.bytes for count in counts]


@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize("group", [1, 3, 4, 16])
def test_each_key_and_value_is_loaded_once_for_its_group(tmp_path, group, num_splits):
    once = sum(LENGTHS) * KV_HEADS * WIDTH * 2
    assert loaded_bytes(tmp_path, group, num_splits, MASKS["causal"]) == [once, once]


def test_keys_left_of_the_window_are_not_loaded(tmp_path):
    seen = sum(min(n, 40) for n in LENGTHS) * KV_HEADS * WIDTH * 2
    assert loaded_bytes(tmp_path, 4, None, {"kind": "sliding_window", "size": 40}) == [seen, seen]


@pytest.mark.parametrize("page_size", [1, 16, 17, 64])
@pytest.mark.parametrize("mask", [MASKS["causal"], {"kind": "sliding_window", "size": 40}], ids=["causal", "window"])
def test_a_paged_decode_reads_each_key_once_and_no_entry_behind_it(tmp_path, page_size, mask):
    kernels = {"decode": {"kv": {"kind": "paged", "page_size": page_size}}}
    loaded = load_spec(heads=4 * KV_HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, mask=mask, kernels=kernels)
    module = generate(loaded, tmp_path)["decode"]
    max_pages = -(-150 // page_size)
    k, v = (torch.randn(len(LENGTHS) * max_pages, page_size, KV_HEADS, WIDTH).half() for _ in range(2))
    q = torch.randn(len(LENGTHS), 4 * KV_HEADS, WIDTH).half()
    table = torch.randperm(len(k), dtype=torch.int32).reshape(len(LENGTHS), max_pages)
    seen = [min(n, mask.get("size", n)) for n in LENGTHS]
    with interpreting() as harness:
        keys, values = harness.count(k), harness.count(v)
        stale = [
            harness.count(part)
            for row, n, visible in zip(table, LENGTHS, seen, strict=True)
            for part in (row[: (n - visible) // page_size], row[-(-n // page_size) :])
        ]
        module.attention(q, k, v, block_table=table, seq_lens=torch.tensor(LENGTHS, dtype=torch.int32))
    once = sum(seen) * KV_HEADS * WIDTH * 2
    assert (keys.bytes, values.bytes) == (once, once)
    assert [count.bytes for count in stale] == [0] * len(stale)


def test_prefill_skips_the_tiles_that_no_row_sees(tmp_path):
    def keys(mask):
        loaded = load_spec(heads=1, kv_heads=1, head_dim=WIDTH, mask=mask)
        module = generate(loaded, tmp_path)["prefill"]
        module._LAUNCH = {"sm_80": {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 2}}
        x = torch.randn(1, 1, 96, WIDTH).half()
        k = x.clone()
        with interpreting() as harness:
            count = harness.count(k)
            module.attention(x, k, x)
        return count.bytes // (WIDTH * 2)

    assert keys(MASKS["full"]) == 6 * 96
    assert keys(MASKS["causal"]) == 16 * (1 + 2 + 3 + 4 + 5 + 6)
    # A tile of 16 rows sees 16 + 15 keys of a window of 16: two tiles, the first row block one.
    assert keys({"kind": "sliding_window", "size": 16}) <= 16 * (1 + 5 * 2) + 16
