"""Decode from pages: the reference that gathers them, the memory they are tried in, and kernels of every page size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kgen.reference.paging import gather
from kgen.verify.cases import Tiles, interpreter_cases
from kgen.verify.pages import as_read, lay_out
from tests.verify_support import MASKS, failures, generate, load_spec

pytestmark = pytest.mark.triton

TILES = (Tiles("sm_80", 16, 64),)
WINDOW = {"kind": "sliding_window", "size": 40}
# Pages smaller than a tile, no divisor of one, as large, larger, and larger than anything in use.
PAGE_SIZES = (1, 2, 3, 16, 17, 64, 100, 256, 2048)
LAYERS = {
    "one KV head": {"heads": 2, "kv_heads": 1},
    "window": {"heads": 4, "kv_heads": 2, "mask": WINDOW},
    "bfloat16, two blocks": {"heads": 6, "kv_heads": 2, "head_dim": 40, "head_dim_v": 24, "dtype": "bfloat16"},
    "full, float32, 3 splits": {"heads": 2, "kv_heads": 2, "mask": MASKS["full"], "dtype": "float32"},
}


def paged(page_size, **facts):
    kernel = {"kv": {"kind": "paged", "page_size": page_size}}
    if facts.get("dtype") == "float32":
        kernel["num_splits"] = 3
    return load_spec(**facts, kernels={"decode": kernel})


def test_tokens_are_gathered_from_their_pages():
    # Pages 5, 2 and then 5 again: tokens 0, 1 | 2, 3 | 4 of the second request, the first has none.
    cache = torch.arange(6 * 2 * 1 * 3).reshape(6, 2, 1, 3)
    table = torch.tensor([[-1, 7, 99], [5, 2, 5]])
    dense = gather(cache, table, torch.tensor([0, 5]), 6)
    assert dense.shape == (2, 1, 6, 3)
    assert not dense[0].any()
    assert dense[1, 0, :, 0].tolist() == [30, 33, 12, 15, 30, 0]


def made(page_size, name, **facts):
    loaded = paged(page_size, **facts)
    (case,) = (case for case in interpreter_cases(loaded.spec, "decode", TILES) if case.name == name)
    k, v = (torch.randn(case.batch, 2, case.kv_len, width) for width in (16, 8))
    return case, k, v


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("name", ["lengths", "shared pages", "full table", "page edges"])
def test_what_is_laid_out_in_pages_is_read_back(page_size, name):
    case, k, v = made(page_size, name)
    read = as_read(case, k, v)
    for dense, got in zip((k, v), read, strict=True):
        for b, length in enumerate(case.seq_lens):
            if not case.shares_pages:
                assert torch.equal(got[b, :, :length], dense[b, :, :length])
            assert not got[b, :, length:].any()
    assert all(map(torch.equal, as_read(case, *read), read))


def test_shared_pages_are_shared_and_others_are_not():
    case, k, v = made(16, "shared pages")
    for shared in (True, False):
        cache = lay_out(replace(case, shares_pages=shared), k, v)
        used = [cache.table[b, entries.start : entries.stop].tolist() for b, entries in enumerate(cache.entries)]
        flat = [page for pages in used for page in pages]
        assert (len(set(flat)) < len(flat)) is shared
    assert max(flat) == len(cache.tensors[0]) - 1


def test_the_table_holds_stale_entries_behind_the_last_page_and_before_a_window():
    case, _, _ = made(16, "window", heads=4, kv_heads=2, mask=WINDOW)
    x = torch.randn(3, 2, 110, 16)
    cache = lay_out(replace(case, seq_lens=(100, 0, 30), kv_len=110), x, x)
    assert cache.entries == (range(3, 7), range(0), range(2))
    assert cache.table[0, :3].tolist() == [-1, 2**31 - 1, 0]
    assert cache.rows.sum() == 40 + 0 + 30


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_page_size_passes(page_size, tmp_path):
    # The layers in turn, so that each meets pages smaller and larger than a tile.
    facts = list(LAYERS.values())[PAGE_SIZES.index(page_size) % len(LAYERS)]
    loaded = paged(page_size, **facts)
    module = generate(loaded, tmp_path)["decode"]
    failed = failures(loaded, "decode", module, first=False)
    assert not failed, "\n".join(f"{r.case.name} {r.case.shape}: {r.message}" for r in failed)


def test_cases_meet_the_edges_of_pages():
    for page_size in PAGE_SIZES:
        loaded = paged(page_size, heads=2, kv_heads=1)
        cases = interpreter_cases(loaded.spec, "decode", TILES)
        assert len({case.name for case in cases}) == len(cases)
        assert all(case.page_size == page_size for case in cases)
        lengths = {length % page_size for case in cases for length in case.seq_lens if length}
        assert {0, 1 % page_size} <= lengths or page_size > 1024
        assert any(case.shares_pages for case in cases)
        assert any((case.num_splits or 0) > -(-max(case.seq_lens) // page_size) for case in cases if case.seq_lens)
