"""Decode of latent layers, absorbed, and decode with a rotary part of its own: plans, words, cases, loads, mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgen.plan.lower import lower
from kgen.plan.model import KernelPlan
from kgen.render.emit import render
from kgen.spec.loader import LoadedSpec
from kgen.verify.interpreter import interpreting
from kgen.verify.modules import load_package
from tests.verify_support import failures, generate, load_latent, load_spec

pytestmark = pytest.mark.triton


def paged(size: int, **options: object) -> dict[str, dict[str, object]]:
    return {"decode": {"kv": {"kind": "paged", "page_size": size}, **options}}


WINDOW = {"kind": "sliding_window", "size": 24}
# One tile of heads and several, whole and padded; latents of one block and of two; pages that hold a part of a tile, a
# tile, and one token; shares of the batch, and equal ranges of each request.
ABSORBED = {
    "one head": {"heads": 1, "dtype": "float32", "kernels": {"decode": {"num_splits": 9}}},
    "few heads": {"heads": 5, "dtype": "bfloat16"},
    "tiles of heads": {"heads": 20, "dtype": "bfloat16", "kernels": paged(16)},
    "two blocks": {"heads": 3, "widths": (72, 8, 24, 32), "dtype": "float32", "kernels": paged(3, num_splits=3)},
    "pages of one": {"heads": 16, "kernels": paged(1)},
    "whole pages": {"heads": 7, "widths": (16, 16, 8, 8), "kernels": paged(64)},
    "splits": {"heads": 24, "kernels": {"decode": {"num_splits": 2}}},
}
ROTARY = {
    "contiguous": {"heads": 4, "kv_heads": 2, "head_dim_pe": 8},
    "window": {"heads": 3, "kv_heads": 1, "head_dim": 24, "head_dim_pe": 16, "mask": WINDOW, "kernels": paged(16)},
    "pages": {"heads": 6, "kv_heads": 2, "head_dim_v": 24, "head_dim_pe": 72, "dtype": "float32", "kernels": paged(3)},
    "whole pages": {"heads": 2, "kv_heads": 2, "head_dim_pe": 8, "dtype": "bfloat16", "kernels": paged(128)},
    "pages of one": {"heads": 2, "kv_heads": 1, "head_dim_pe": 8, "kernels": paged(1, num_splits=3)},
}


def layer(name: str) -> LoadedSpec:
    """``absorbed.<name>`` or ``rotary.<name>``."""
    form, key = name.split(".")
    return (
        load_latent(**ABSORBED[key]) if form == "absorbed" else load_spec(**{"kernels": {"decode": {}}} | ROTARY[key])
    )


LAYERS = [f"absorbed.{name}" for name in ABSORBED] + [f"rotary.{name}" for name in ROTARY]


def plan_of(loaded: LoadedSpec) -> KernelPlan:
    (plan,) = lower(loaded)
    assert isinstance(plan, KernelPlan)
    return plan


@pytest.mark.parametrize("name", LAYERS)
def test_every_case_passes(name: str, tmp_path: Path) -> None:
    loaded = layer(name)
    module = generate(loaded, tmp_path)["decode"]
    failed = failures(loaded, "decode", module, first=False)
    assert not failed, "\n".join(f"{r.case.name} {r.case.shape}: {r.message}" for r in failed)


@pytest.mark.parametrize(
    ("widths", "blocks"),
    [
        ((512, 64, 128, 128), (512, 64)),
        ((256, 64, 64, 64), (256, 64)),
        ((256, 32, 64, 64), (256, 32)),
        ((320, 8, 64, 64), (256, 64, 16)),
    ],
)
def test_content_and_rotary_part_are_blocks_of_their_own(widths: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    plan = plan_of(load_latent(heads=128, widths=widths, dtype="bfloat16"))
    assert tuple(block.width for block in (*plan.qk_blocks, *plan.pe_blocks)) == blocks
    assert plan.v_blocks == plan.qk_blocks
    source = render(plan)
    assert "tl.arange(0, 1024)" not in source
    for width in set(blocks):
        assert f"tl.arange(0, {width})" in source


def test_the_scale_is_that_of_the_keys_of_heads_in_both_forms() -> None:
    for scale in (None, 0.1352337788608801):
        given = {} if scale is None else {"sm_scale": scale}
        loaded = load_latent(widths=(512, 64, 128, 128), kernels={"prefill": {}, "decode": {}}, **given)
        assert [plan.sm_scale for plan in lower(loaded)] == [scale or 192**-0.5] * 2  # type: ignore[union-attr]
    assert f"(q . kv + q_pe . k_pe) * {24**-0.5!r}" in " ".join(render(plan_of(load_latent())).split())


def test_few_heads_share_a_multiprocessor_and_many_fill_it() -> None:
    few, many = (plan_of(load_latent(heads=n, widths=(512, 64, 128, 128), dtype="bfloat16")) for n in (16, 128))
    assert few.decode is not None
    assert many.decode is not None
    assert (few.decode.programs_per_sm, many.decode.programs_per_sm) == (2, 1)
    tiles = [dict(plan.launch)["sm_90"] for plan in (few, many)]
    assert [(tile.block_m, tile.block_n) for tile in tiles] == [(16, 32), (64, 64)]
    # Two query tiles of 64 heads cover 128; the form for rows off 16 bytes takes 16 heads at a time.
    assert many.decode.head_tiles == 128 // many.unaligned.block_m


def test_the_docstring_says_what_is_scored_and_where_it_lies() -> None:
    words = " ".join(render(plan_of(layer("absorbed.tiles of heads"))).split('"""')[1].split())
    assert "attention(q, q_pe, kv, k_pe, *, block_table, seq_lens" in words
    assert "20 query heads share one latent a token" in words
    assert "kv [pages, 16, 32] bfloat16, pages of 16 tokens k_pe [pages, 16, 8] bfloat16" in words
    assert "P is cast to bfloat16 for P . KV" in words
    rotary = " ".join(render(plan_of(layer("rotary.pages"))).split('"""')[1].split())
    assert "attention(q, q_pe, k_cache, k_pe_cache, v_cache, *, block_table, seq_lens" in rotary
    assert "k_pe_cache [pages, 3, 2, 72] float32" in rotary


LENGTHS = (0, 1, 130, 77)


@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize(("page_size", "heads"), [(None, 16), (1, 16), (16, 16), (64, 16), (16, 40)])
def test_a_latent_is_loaded_once_a_tile_of_heads_and_is_key_and_value(
    page_size: int | None, heads: int, num_splits: int | None, tmp_path: Path
) -> None:
    loaded = load_latent(heads=heads, kernels={"decode": {}} if page_size is None else paged(page_size))
    module = generate(loaded, tmp_path)["decode"]
    columns = -(-150 // (page_size or 150))
    kv, k_pe = (torch.randn(len(LENGTHS) * columns, page_size or 150, width).half() for width in (32, 8))
    q, q_pe = (torch.randn(len(LENGTHS), heads, width).half() for width in (32, 8))
    extra = {} if page_size is None else {"block_table": torch.arange(len(kv), dtype=torch.int32).reshape(-1, columns)}
    with interpreting() as harness:
        counts = harness.count(kv), harness.count(k_pe)
        seq_lens = torch.tensor(LENGTHS, dtype=torch.int32)
        module.attention(q, q_pe, kv, k_pe, seq_lens=seq_lens, num_splits=num_splits, **extra)
    times = -(-heads // module._LAUNCH["sm_80"]["BLOCK_H"])
    assert times == (1 if heads == 16 else 3)
    assert [count.bytes for count in counts] == [times * sum(LENGTHS) * width * 2 for width in (32, 8)]


def test_tensors_of_their_own_and_slices_of_one_cache_give_the_same_bits(tmp_path: Path) -> None:
    module = generate(load_latent(heads=5), tmp_path)["decode"]
    cache = torch.randn(2, 70, 40).half()
    queries = torch.randn(2, 5, 40).half()
    seq_lens = torch.tensor([70, 33], dtype=torch.int32)
    parts = [x for whole in (queries, cache) for x in whole.split([32, 8], -1)]
    with interpreting():
        slices = module.attention(*parts, seq_lens=seq_lens, return_lse=True)
        own = module.attention(*(x.contiguous() for x in parts), seq_lens=seq_lens, return_lse=True)
    assert all(map(torch.equal, slices, own))


MISTAKES = {
    "rotary part not scored": ("absorbed.few heads", "qk = tl.dot(q_pe, k_pe.T, qk)", "qk = qk"),
    "content scored twice": ("absorbed.few heads", "qk = tl.dot(q_pe, k_pe.T, qk)", "qk = tl.dot(q, kv.T, qk)"),
    "scale of the latent": (
        "absorbed.few heads",
        "_SCALE_LOG2 = tl.constexpr(",
        f"_SCALE_LOG2 = tl.constexpr({(24 / 40) ** 0.5} * ",
    ),
    "tail not masked": ("absorbed.few heads", 'qk = tl.where(n_ok[None, :], qk, -float("inf"))', "qk = qk"),
    "tail of the latent not zeroed": (
        "absorbed.few heads",
        "kv = tl.load(kv_ptrs + start_n * stride_kv_n, mask=n_ok[:, None], other=0.0)",
        "kv = tl.load(kv_ptrs + start_n * stride_kv_n)",
    ),
    "old accumulator not rescaled": ("absorbed.few heads", "acc * alpha[:, None]", "acc"),
    "rows of idle heads written": ("absorbed.few heads", "h_ok = offs_h < 5", "h_ok = offs_h < 6"),
    "rotary keys with the strides of latents": (
        "absorbed.few heads",
        "k_pe = tl.load(k_ptrs_pe + start_n * stride_kpe_n",
        "k_pe = tl.load(k_ptrs_pe + start_n * stride_kv_n",
    ),
    "requests of rotary keys": ("absorbed.few heads", "batch * stride_kpe_b", "batch * stride_kv_b"),
    "one task too few": ("absorbed.tiles of heads", "// first_tiles + 1, 0)", "// first_tiles, 0)"),
    "one task too many": ("absorbed.tiles of heads", "// first_tiles + 1, 0)", "// first_tiles + 2, 0)"),
    "tiles of the first request": (
        "absorbed.tiles of heads",
        "last_tiles = _num_tiles(tl.load(seq_lens_ptr + last_batch",
        "last_tiles = _num_tiles(tl.load(seq_lens_ptr + batch",
    ),
    "requests have one task": (
        "absorbed.tiles of heads",
        "last_task = (last_batch - batch) * tl.cdiv(20, BLOCK_H)",
        "last_task = (last_batch - batch)",
    ),
    "slots mixed up": (
        "absorbed.tiles of heads",
        "slot = tl.where(unit == start, part, num_parts + part)",
        "slot = part",
    ),
    "tile of heads of a merged row": ("absorbed.tiles of heads", "head_tile = head // BLOCK_H", "head_tile = 0 * head"),
    "first tile of heads throughout": (
        "absorbed.tiles of heads",
        "offs_h = head_tile * BLOCK_H + tl.arange(0, BLOCK_H)",
        "offs_h = tl.arange(0, BLOCK_H)",
    ),
    "pages of latents": ("absorbed.tiles of heads", "kv_rows = page * stride_kv_p", "kv_rows = page * stride_kpe_p"),
    "pages of rotary keys": (
        "absorbed.tiles of heads",
        "k_pe_rows = page * stride_kpe_p",
        "k_pe_rows = page * stride_kv_p",
    ),
    "page of the first tile": ("absorbed.tiles of heads", "BLOCK_N\n        page = ", "BLOCK_N\n        _ = "),
    "entry behind the last key": (
        "absorbed.tiles of heads",
        "mask=position < length, other=0)",
        "mask=position <= length, other=0)",
    ),
    "slot in the page": ("absorbed.tiles of heads", "kv_base + (offs_n % 16)", "kv_base + ((offs_n + 1) % 16)"),
    "latent offsets in 32 bits": (
        "absorbed.tiles of heads",
        "stride_kv_p = tl.cast(stride_kv_p, tl.int64) * STRIDE_UNIT",
        "stride_kv_p = stride_kv_p * STRIDE_UNIT",
    ),
    "a share of nothing has a task": (
        "absorbed.tiles of heads",
        "num_tasks = tl.where(start < stop, ",
        "num_tasks = tl.where(start < stop + num_units, ",
    ),
    "tile in its page": ("absorbed.whole pages", "start_n % 64 * stride_kv_n", "start_n % 32 * stride_kv_n"),
    "rotary keys of a tile in its page": (
        "absorbed.whole pages",
        "start_n % 64 * stride_kpe_n",
        "start_n % 32 * stride_kpe_n",
    ),
    "page index of a tile behind the last": ("absorbed.whole pages", ", mask=start_n < length, other=0)", ")"),
    "slots of a split task": (
        "absorbed.splits",
        "first_slot = (batch * tl.cdiv(24, BLOCK_H) + head_tile) * num_splits",
        "first_slot = batch * tl.cdiv(24, BLOCK_H) * num_splits",
    ),
    "pages of one token in 32 bits": (
        "absorbed.pages of one",
        "stride_kpe_p = tl.cast(stride_kpe_p, tl.int64) * STRIDE_UNIT",
        "stride_kpe_p = stride_kpe_p * STRIDE_UNIT",
    ),
    "second block of the latent": ("absorbed.two blocks", "tl.dot(q_hi, kv_hi.T", "tl.dot(q_hi, kv_hi.T * 0"),
    "values of the second block": ("absorbed.two blocks", "tl.dot(p, kv_hi,", "tl.dot(p, kv_hi * 0,"),
    "rotary part of the KV head": (
        "rotary.contiguous",
        "heads[:, None] * stride_qpe_h",
        "offs_h[:, None] * stride_qpe_h",
    ),
    "rotary keys of the first head": ("rotary.contiguous", "kv_head * stride_kpe_h", "0 * stride_kpe_h"),
    "rotary part not scored, grouped": ("rotary.window", "qk = tl.dot(q_pe, k_pe.T, qk)", "qk = qk"),
    "rotary keys in the pages of keys": (
        "rotary.window",
        "k_pe_rows = page * stride_kpe_p",
        "k_pe_rows = page * stride_kp",
    ),
}


@pytest.mark.mutation
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(mistake: str, tmp_path: Path) -> None:
    name, old, new = MISTAKES[mistake]
    loaded = layer(name)
    generate(loaded, tmp_path)
    path = tmp_path / loaded.spec.name / "decode.py"
    text = path.read_text()
    assert old in text, "the generated code has changed: give this mistake the new text"
    path.write_text(text.replace(old, new))
    caught = failures(loaded, "decode", load_package(path.parent)["decode"], first=True)
    assert caught, "every case passed"
    message = caught[0].message
    assert message is not None
    assert "raised" not in message or "ForeignAccessError" in message, message
