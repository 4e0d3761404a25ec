"""Plans: blocks, windows, tiles, schedules, and what is refused with the numbers."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgen.errors import SpecError
from kgen.plan import tiles as tiles_module
from kgen.plan.blocks import MIN_BLOCK, blocks_of, lanes, next_power_of_2
from kgen.plan.lower import lower
from kgen.plan.model import Block, KernelPlan, Window
from kgen.plan.targets import TARGET_INFO
from kgen.spec.model import TARGETS
from tests.spec_helpers import VALID, changed, load
from tests.verify_support import load_latent


def plan_of(text: str, kernel: str) -> KernelPlan:
    return next(plan for plan in lower(load(text)) if plan.kernel == kernel)


@pytest.mark.parametrize(
    ("head_dim", "expected"),
    [
        (8, (Block(0, 16, 8),)),
        (16, (Block(0, 16, 16),)),
        (40, (Block(0, 32, 32), Block(32, 16, 8))),
        (64, (Block(0, 64, 64),)),
        (72, (Block(0, 64, 64), Block(64, 16, 8))),
        (96, (Block(0, 64, 64), Block(64, 32, 32))),
        (120, (Block(0, 128, 120),)),
        (192, (Block(0, 128, 128), Block(128, 64, 64))),
        (512, (Block(0, 512, 512),)),
    ],
)
def test_blocks_of_a_head_dimension(head_dim, expected):
    assert blocks_of(head_dim) == expected


@given(st.integers(1, 64).map(lambda n: 8 * n))
def test_blocks_cover_a_head_dimension_once_and_never_cost_more_than_padding(head_dim):
    blocks = blocks_of(head_dim)
    columns = [b.start + i for b in blocks for i in range(b.valid)]
    assert columns == list(range(head_dim))
    for block in blocks:
        assert block.width == next_power_of_2(block.width) >= MIN_BLOCK
        assert 0 < block.valid <= block.width
    assert lanes(blocks) <= max(MIN_BLOCK, next_power_of_2(head_dim))


@pytest.mark.parametrize(
    ("mask", "window"),
    [
        ("{kind: full}", Window(None, None)),
        ("{kind: causal}", Window(None, 0)),
        ("{kind: sliding_window, size: 1}", Window(0, 0)),
        ("{kind: sliding_window, size: 4096}", Window(4095, 0)),
        ("{kind: window, left: 4096, right: 0}", Window(4096, 0)),
        ("{kind: window, left: -1, right: 3}", Window(None, 3)),
    ],
)
def test_a_mask_becomes_a_window(mask, window):
    assert plan_of(changed("{kind: causal}", mask), "prefill").window == window


@pytest.mark.parametrize(
    ("heads", "block_h", "head_tiles"),
    [((32, 32), 16, 1), ((28, 4), 16, 1), ((24, 1), 32, 1), ((71, 1), 128, 1), ((128, 1), 128, 1), ((142, 1), 128, 2)],
)
def test_a_tile_of_heads_holds_the_whole_group_up_to_128(heads, block_h, head_tiles):
    text = VALID.replace("num_qo_heads: 32", f"num_qo_heads: {heads[0]}")
    text = text.replace("num_kv_heads: 8", f"num_kv_heads: {heads[1]}")
    text = text.replace("dtype: bfloat16", "dtype: bfloat16\ntargets: [sm_80, sm_90]")
    plan = plan_of(text, "decode")
    assert plan.decode is not None
    assert {tile.block_m for _, tile in plan.launch} == {block_h}
    assert plan.decode.head_tiles == head_tiles


def test_groups_of_several_kv_heads_are_cut_alike_on_all_targets():
    text = VALID.replace("num_qo_heads: 32", "num_qo_heads: 256").replace("num_kv_heads: 8", "num_kv_heads: 2")
    plan = plan_of(text.replace("head_dim_qk: 128", "head_dim_qk: 512"), "decode")
    assert plan.decode is not None
    (rows,) = {tile.block_m for _, tile in plan.launch}
    assert rows * plan.decode.head_tiles >= 128 > rows * (plan.decode.head_tiles - 1)


def test_a_single_kv_head_has_the_tile_of_heads_of_each_target():
    text = VALID.replace("num_qo_heads: 32", "num_qo_heads: 128").replace("num_kv_heads: 8", "num_kv_heads: 1")
    plan = plan_of(text.replace("head_dim_qk: 128", "head_dim_qk: 512"), "decode")
    assert plan.decode is not None
    rows = {target: tile.block_m for target, tile in plan.launch}
    assert len(set(rows.values())) > 1
    # How many tiles there are at most: the launch counts them by BLOCK_H.
    assert plan.decode.head_tiles == -(-128 // min(*rows.values(), plan.unaligned.block_m))


def test_the_tile_of_unaligned_rows_is_one_that_every_target_holds():
    for dtype, keys in (("bfloat16", 32), ("float32", 16)):
        (plan,) = lower(load_latent(heads=16, widths=(512, 64, 128, 128), dtype=dtype))
        assert (plan.unaligned.block_m, plan.unaligned.block_n) == (16, keys)
        assert f"unaligned tile 16 x {keys}" in dict(plan.reasons)


@pytest.mark.parametrize("num_splits", ["auto", 7])
def test_num_splits_reaches_the_plan(num_splits):
    plan = plan_of(changed("num_splits: auto", f"num_splits: {num_splits}"), "decode")
    assert plan.decode is not None
    assert plan.decode.num_splits == (None if num_splits == "auto" else 7)


def test_the_launch_table_has_the_targets_of_the_spec_in_its_order():
    assert [target for target, _ in plan_of(VALID, "prefill").launch] == list(TARGETS)
    text = changed("dtype: bfloat16", "dtype: bfloat16\ntargets: [gfx942, sm_90]")
    assert [target for target, _ in plan_of(text, "prefill").launch] == ["gfx942", "sm_90"]


def test_every_tile_fits_its_target():
    for plan in lower(load(VALID)):
        for target, tile in plan.launch:
            assert 0 < tile.shared_bytes <= TARGET_INFO[target].shared_bytes


def test_what_does_not_fit_is_refused_with_the_numbers(monkeypatch):
    """Every kernel and target that fails is told, each at its kernel."""
    monkeypatch.setattr(tiles_module, "shared_bytes", lambda *args, **kwargs: 100_000)
    with pytest.raises(SpecError) as caught:
        lower(load(VALID))
    found = [(d.code, d.line, d.message) for d in caught.value.diagnostics]
    assert found == [
        (
            "KG401",
            line,
            f"{kernel} does not fit gfx942: the smallest tile takes 100,000 bytes of shared memory, gfx942 has 65,536",
        )
        for line, kernel in ((10, "prefill"), (11, "decode"))
    ]
    assert all("leave gfx942 out of targets" in (d.help or "") for d in caught.value.diagnostics)


def test_reasons_speak_of_every_choice():
    decode = dict(plan_of(VALID, "decode").reasons)
    assert "once a group" in decode["BLOCK_H 16"]
    assert "equally" in decode["num_splits auto"]
    assert "sections" in dict(plan_of(VALID, "prefill").reasons)["program order"]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rows"), [("bfloat16", 128, 16), ("float32", 72, 8), ("float16", 8, 256)]
)
def test_a_program_of_a_merge_holds_the_same_bytes_whatever_the_width(dtype, head_dim, rows):
    text = changed("{num_splits: auto}", "{}\n  merge_states: {layout: ragged}")
    text = text.replace("bfloat16", dtype).replace("head_dim_qk: 128", f"head_dim_qk: {head_dim}")
    plan = next(plan for plan in lower(load(text)) if plan.kernel == "merge_states")
    assert [target for target, _ in plan.launch] == list(TARGETS)
    for target, tile in plan.launch:
        assert tile.block_r == rows
        assert 2 * 4096 < tile.shared_bytes <= TARGET_INFO[target].shared_bytes // 4
    reasons = dict(plan.reasons)
    assert reasons["layout ragged"].endswith("lse [H, T]")
    assert ("idle" in reasons[f"width {head_dim}"]) == (head_dim == 72)


def test_a_plan_is_frozen_and_holds_nothing_of_pydantic():
    for plan in lower(load(changed("{num_splits: auto}", "{}\n  merge_states: {}"))):
        for field in fields(plan):
            assert type(getattr(plan, field.name)).__module__.split(".")[0] in ("builtins", "kgen")
            assert not type(getattr(plan, field.name)).__module__.startswith("kgen.spec")


@pytest.mark.parametrize(
    ("mask", "page_size", "address"),
    [
        ("{kind: causal}", 1, "paged"),
        ("{kind: causal}", 32, "paged"),
        ("{kind: causal}", 64, "paged"),
        ("{kind: causal}", 100, "paged"),
        ("{kind: causal}", 128, "paged_tile"),
        ("{kind: causal}", 2048, "paged_tile"),
        # Tiles of a window start at its left edge, which lies anywhere in a page.
        ("{kind: sliding_window, size: 128}", 64, "paged"),
    ],
)
def test_one_page_index_serves_a_tile_only_where_every_tile_lies_in_a_page(mask, page_size, address):
    text = changed("num_splits: auto", f"kv: {{kind: paged, page_size: {page_size}}}").replace("{kind: causal}", mask)
    plan = plan_of(text, "decode")
    assert plan.decode is not None
    assert (plan.decode.address, plan.decode.page_size) == (address, page_size)
    widest = max(tile.block_n for tile in (plan.unaligned, *(tile for _, tile in plan.launch)))
    assert address == "paged" or page_size % widest == 0
    assert f"page_size {page_size}" in dict(plan.reasons)
