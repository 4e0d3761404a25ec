"""Prefill of ragged chunks from a paged cache: what is laid out, the contract, and kernels of every page size."""

from __future__ import annotations

import inspect

import pytest
import torch

from kgen.plan.lower import lower
from kgen.verify.cases import Tiles, interpreter_cases
from kgen.verify.interpreter import interpreting
from kgen.verify.pages import lay_out
from tests.verify_support import MASKS, failures, generate, load_spec

pytestmark = pytest.mark.triton

TILES = (Tiles("sm_80", 64, 64),)
WINDOW = {"kind": "sliding_window", "size": 40}
HEADS, KV_HEADS, WIDTH = 4, 2, 16
# Pages of one token, no divisor of a tile, smaller than one, as large, and larger than anything in use.
LAYERS = {
    1: {"heads": 2, "kv_heads": 1},
    3: {"heads": 4, "kv_heads": 2, "mask": WINDOW},
    16: {"heads": 3, "kv_heads": 1, "head_dim": 40, "head_dim_v": 24, "dtype": "bfloat16"},
    128: {"heads": 2, "kv_heads": 1},
    100: {"heads": 2, "kv_heads": 1, "mask": MASKS["window"]},
    2048: {"heads": 2, "kv_heads": 2, "mask": MASKS["full"], "dtype": "float32"},
}


def paged(page_size, **facts):
    prefill = {"layout": "ragged", "kv": {"kind": "paged", "page_size": page_size}}
    return load_spec(**facts, kernels={"prefill": prefill})


@pytest.mark.parametrize("page_size", LAYERS)
def test_every_page_size_passes(page_size, tmp_path):
    loaded = paged(page_size, **LAYERS[page_size])
    module = generate(loaded, tmp_path)["prefill"]
    failed = failures(loaded, "prefill", module, first=False)
    assert not failed, "\n".join(f"{r.case.name} {r.case.shape}: {r.message}" for r in failed)


def made(page_size, **facts):
    return interpreter_cases(paged(page_size, heads=2, kv_heads=1, **facts).spec, "prefill", TILES)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 2048])
def test_cases_meet_the_edges_of_pages(page_size):
    cases = made(page_size)
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.page_size == page_size and case.qo_lens is not None for case in cases)
    pairs = [pair for case in cases for pair in zip(case.qo_lens, case.seq_lens, strict=True)]
    assert {0, 1 % page_size} <= {keys % page_size for _, keys in pairs if keys} or page_size > 1024
    assert {(rows > 0, keys > 0) for rows, keys in pairs} == {(a, b) for a in (False, True) for b in (False, True)}
    assert any(rows > keys > 0 for rows, keys in pairs)
    assert any(case.shares_pages for case in cases)


def test_only_pages_that_a_chunk_sees_are_in_use():
    (case,) = (case for case in made(16, mask=WINDOW) if case.name == "nothing to do")
    assert (case.qo_lens, case.seq_lens) == ((0, 2, 0, 4, 3, 0), (67, 0, 0, 73, 5, 17))
    x = torch.randn(6, 1, case.kv_len, 8)
    cache = lay_out(case, x, x)
    # Of 73 keys the first of the last 4 queries, at 69, sees those from 30 on: half of the second page is free.
    assert [list(entries) for entries in cache.entries] == [[], [], [], [1, 2, 3, 4], [0], []]
    assert cache.rows.sum() == (73 - 30) + 5
    assert cache.table[3, 0] in (-1, 2**31 - 1, 0)


@pytest.mark.parametrize(
    ("page_size", "mask", "address"),
    [
        (1, "causal", "paged"),
        (16, "causal", "paged"),
        (32, "causal", "paged"),
        (64, "causal", "paged_tile"),
        (128, "causal", "paged_tile"),
        (128, "sliding_window", "paged"),
    ],
)
def test_one_page_index_serves_a_tile_only_where_every_tile_lies_in_a_page(page_size, mask, address):
    (plan,) = lower(paged(page_size, heads=32, kv_heads=8, head_dim=64, dtype="bfloat16", mask=MASKS[mask]))
    assert (plan.prefill.address, plan.prefill.page_size) == (address, page_size)
    widest = max(tile.block_n for tile in (plan.unaligned, *(tile for _, tile in plan.launch)))
    assert address == "paged" or page_size % widest == 0
    assert f"page_size {page_size}" in dict(plan.reasons)


# The contract.


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    kernels = {"ragged": {"kind": "prefill", "layout": "ragged"}}
    for size in (1, 3, 128):
        kernels[f"page{size}"] = kernels["ragged"] | {"kv": {"kind": "paged", "page_size": size}}
    loaded = load_spec(heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, kernels=kernels)
    return generate(loaded, tmp_path_factory.mktemp("generated"))


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def call(module, *tensors, **arguments):
    with interpreting():
        return module.attention(*tensors, **arguments)


def refused(module, error, message, *tensors, **arguments):
    with pytest.raises(error, match=rf"^attention: {message}"):
        call(module, *tensors, **arguments)


def test_pages_give_the_bits_of_packed_keys(modules):
    lengths = (70, 0, 9)
    q, (k, v) = torch.randn(14, HEADS, WIDTH).half(), torch.randn(2, 79, KV_HEADS, WIDTH).half()
    options = {"qo_indptr": ints(0, 5, 5, 14), "max_qo_len": 9, "return_lse": True}
    want = call(modules["ragged"], q, k, v, kv_indptr=ints(0, 70, 70, 79), **options)
    for size in (1, 3, 128):
        columns = -(-70 // size)
        table = torch.randperm(3 * columns).reshape(3, columns).int()
        caches = torch.zeros(2, 3 * columns, size, KV_HEADS, WIDTH).half()
        for b, (start, length) in enumerate(((0, 70), (70, 0), (70, 9))):
            for t in range(length):
                caches[:, table[b, t // size].long(), t % size] = torch.stack((k, v))[:, start + t]
        got = call(modules[f"page{size}"], q, *caches, block_table=table, seq_lens=ints(*lengths), **options)
        assert all(map(torch.equal, got, want)), size


def small(size, tokens=5, pages=4):
    q = torch.randn(tokens, HEADS, WIDTH).half()
    return q, torch.randn(pages, size, KV_HEADS, WIDTH).half(), torch.randn(pages, size, KV_HEADS, WIDTH).half()


def test_arguments_and_results(modules):
    module = modules["page3"]
    parameters = inspect.signature(module.attention).parameters
    keywords = ["qo_indptr", "block_table", "seq_lens", "max_qo_len", "out", "return_lse"]
    assert list(parameters) == ["q", "k_cache", "v_cache", *keywords]
    assert all(parameters[name].default is inspect.Parameter.empty for name in keywords[:4])
    tensors = small(3, tokens=6)
    given = torch.full((6, HEADS, WIDTH), 7.0).half()
    options = {"qo_indptr": ints(0, 2, 5), "block_table": ints(3, 1, 0, 2).reshape(2, 2), "seq_lens": ints(5, 4)}
    out, lse = call(module, *tensors, **options, max_qo_len=3, out=given, return_lse=True)
    assert out is given
    assert lse.shape == (HEADS, 6)
    # A row of no request keeps what was there; the host's bound may be loose.
    assert (out[5:] == 7.0).all()
    loose = call(module, *tensors, **options, max_qo_len=100)
    assert torch.equal(loose[:5], out[:5])
    # More queries than keys: those before the first key see nothing.
    out, lse = call(module, *tensors, **options | {"seq_lens": ints(1, 0)}, max_qo_len=3, return_lse=True)
    assert not out[[0, 2, 3, 4]].any()
    assert (lse[:, [0, 2, 3, 4]] == -torch.inf).all()
    assert lse[:, 1].isfinite().all()


def test_checks(modules):
    module, (q, k, v) = modules["page3"], small(3)
    good = {"qo_indptr": ints(0, 2, 5), "block_table": ints(3, 1, 0, 2).reshape(2, 2), "seq_lens": ints(5, 4)}
    good |= {"max_qo_len": 3}
    for name in good:
        with pytest.raises(TypeError, match=name):
            call(module, q, k, v, **{key: value for key, value in good.items() if key != name})
    for name in ("qo_indptr", "block_table", "seq_lens"):
        refused(module, TypeError, f"{name} must be a torch.Tensor, got list", q, k, v, **good | {name: [0, 2, 5]})
        wide = good[name].long()
        refused(module, TypeError, f"{name} must be torch.int32, got torch.int64", q, k, v, **good | {name: wide})
        refused(module, ValueError, f"{name} must be on cpu", q, k, v, **good | {name: good[name].to("meta")})
    bad = {"qo_indptr": ints(), "max_qo_len": 3}
    refused(module, ValueError, r"qo_indptr must have shape \[B \+ 1\], got \[0\]", q, k, v, **good | bad)
    for table, got in ((good["block_table"][:1], r"\[1, 2\]"), (good["block_table"][0], r"\[2\]")):
        wanted = rf"block_table must have shape \[2, max_pages\], got {got}"
        refused(module, ValueError, wanted, q, k, v, **good | {"block_table": table})
    gaps = torch.zeros(2, 6, dtype=torch.int32)[:, ::2]
    refused(module, ValueError, "block_table must be contiguous in its last", q, k, v, **good | {"block_table": gaps})
    refused(module, ValueError, r"seq_lens must have shape \[2\], got \[1\]", q, k, v, **good | {"seq_lens": ints(5)})
    wanted = r"k_cache must have shape \[pages, 3, 2, 16\], got \[4, 6, 2, 16\]"
    refused(module, ValueError, wanted, q, k.repeat(1, 2, 1, 1), v, **good)
    wanted = r"v_cache must have shape \[4, 3, 2, 16\], got \[3, 3, 2, 16\]"
    refused(module, ValueError, wanted, q, k, v[:3], **good)
    refused(module, ValueError, r"q must have shape \[Tq, 4, 16\], got", q[None], k, v, **good)
    refused(module, TypeError, "max_qo_len must be an int, got float", q, k, v, **good | {"max_qo_len": 3.0})
    refused(module, ValueError, "max_qo_len must be at least 0, got -1", q, k, v, **good | {"max_qo_len": -1})


@pytest.mark.parametrize(("requests", "pages", "columns"), [(0, 0, 0), (2, 0, 0), (2, 3, 0)])
def test_batches_of_nothing(modules, requests, pages, columns):
    tensors = small(3, tokens=requests, pages=pages)
    options = {"qo_indptr": torch.arange(requests + 1).int(), "seq_lens": torch.zeros(requests).int()}
    table = torch.zeros(requests, columns).int()
    out, lse = call(modules["page3"], *tensors, **options, block_table=table, max_qo_len=1, return_lse=True)
    assert out.shape == (requests, HEADS, WIDTH)
    assert not out.any()
    assert (lse == -torch.inf).all()
