"""Costs of layers: pairs against brute force, and figures worked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.errors import InputError, SpecError
from kgen.models.accounting import CacheCost, KernelCost, Workload, cache_cost, floor, kernel_cost
from kgen.models.devices import device, devices
from kgen.models.visibility import UncountedMaskError, Visible, visible
from kgen.plan import features
from kgen.plan.targets import TARGET_INFO
from kgen.reference import evaluate
from kgen.spec.loader import load_specs
from kgen.spec.mask import (
    CausalMask,
    ChunkedMask,
    ExpressionMask,
    FullMask,
    Mask,
    PrefixLMMask,
    SlidingWindowMask,
    WindowMask,
)
from kgen.spec.model import (
    BackwardKernel,
    DecodeKernel,
    GroupedAttention,
    LatentAttention,
    MergeStatesKernel,
    PrefillKernel,
)

REPOSITORY = Path(__file__).resolve().parent.parent
CAUSAL = CausalMask(kind="causal")
PREFILL, DECODE, BACKWARD = (
    PrefillKernel(kind="prefill"),
    DecodeKernel(kind="decode"),
    BackwardKernel(kind="backward"),
)


def grouped(heads: int, kv_heads: int, d_qk: int, d_v: int | None = None, mask: Mask = CAUSAL) -> GroupedAttention:
    return GroupedAttention(
        kind="grouped",
        num_qo_heads=heads,
        num_kv_heads=kv_heads,
        head_dim_qk=d_qk,
        head_dim_v=d_v or d_qk,
        sm_scale=1.0,
        mask=mask,
    )


DEEPSEEK = LatentAttention(
    kind="latent",
    num_qo_heads=128,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    mask=CAUSAL,
)
LIMITS = st.integers(-1, 40)
COUNTED = st.one_of(
    st.just(FullMask(kind="full")),
    st.just(CAUSAL),
    st.integers(1, 40).map(lambda size: SlidingWindowMask(kind="sliding_window", size=size)),
    st.tuples(LIMITS, LIMITS).map(lambda sides: WindowMask(kind="window", left=sides[0], right=sides[1])),
    st.integers(1, 40).map(lambda size: ChunkedMask(kind="chunked", size=size)),
)


def sees(mask: Mask, q: int, k: int) -> bool:
    """The words of each mask's docstring, for a query at position q and a key at position k."""
    match mask:
        case FullMask():
            return True
        case CausalMask():
            return k <= q
        case SlidingWindowMask(size=size):
            return q - size < k <= q
        case WindowMask(left=left, right=right):
            return (left == -1 or k >= q - left) and (right == -1 or k <= q + right)
        case ChunkedMask(size=size):
            return k <= q and k // size == q // size
    raise AssertionError(mask)


@settings(max_examples=500, deadline=None)
@given(mask=COUNTED, queries=st.integers(0, 60), keys=st.integers(0, 60), ahead=st.booleans())
def test_pairs_and_keys_are_those_of_brute_force(mask: Mask, queries: int, keys: int, ahead: bool) -> None:
    seen = [
        [sees(mask, i + keys - queries, j) and (ahead or j <= i + keys - queries) for j in range(keys)]
        for i in range(queries)
    ]
    pairs = sum(map(sum, seen))
    expected = Visible(pairs, sum(any(column) for column in zip(*seen, strict=True)))
    assert visible(mask, queries, keys, ahead=ahead) == expected


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 20), (20, 3), (1, 9)])
@pytest.mark.parametrize("kind", evaluate._MASKS)
def test_pairs_are_those_of_the_reference(kind: type, queries: int, keys: int) -> None:
    fields = {"size": 4} if kind in (SlidingWindowMask, ChunkedMask) else {}
    fields = {"left": 3, "right": 2} if kind is WindowMask else fields
    name = next(iter(kind.model_fields["kind"].annotation.__args__))
    mask = kind(kind=name, **fields)
    q_pos = torch.arange(queries)[:, None] + keys - queries
    seen = evaluate.visible(mask, q_pos, torch.arange(keys)[None, :]).expand(queries, keys)
    assert visible(mask, queries, keys) == Visible(int(seen.sum()), int(seen.any(dim=0).sum()))


def test_pairs_of_lengths_that_no_loop_would_finish() -> None:
    n = 2**31 - 1
    assert visible(CAUSAL, n, n).pairs == n * (n + 1) // 2
    window = SlidingWindowMask(kind="sliding_window", size=4096)
    assert visible(window, n, n).pairs == 4096 * 4097 // 2 + (n - 4096) * 4096


@pytest.mark.parametrize(
    "mask", [PrefixLMMask(kind="prefix_lm"), ExpressionMask(kind="expression", visible="kv_pos > 3")]
)
def test_masks_that_depend_on_more_than_the_spec_are_not_counted(mask: Mask) -> None:
    layer = grouped(8, 2, 64, mask=mask)
    with pytest.raises(UncountedMaskError, match="depend on"):
        kernel_cost(layer, PREFILL, "float16", Workload(1, 10, 10))
    assert cache_cost(layer, "float16", Workload(3, 10, 10)) == CacheCost(256, 512, 3 * 10 * 512, None)


def test_a_prefill_by_hand() -> None:
    """2 requests of 4 query tokens against 6 keys, causal: rows see 3, 4, 5 and 6 keys."""
    cost = kernel_cost(grouped(6, 2, 16, 8), PREFILL, "float16", Workload(2, 6, 4))
    rows = 2 * 4 * 6
    assert cost == KernelCost(
        queries=4,
        pairs=3 + 4 + 5 + 6,
        flops=2 * 2 * 6 * 18 * (16 + 8),
        read_bytes=rows * 16 * 2 + 2 * 6 * 2 * (16 + 8) * 2,
        written_bytes=rows * 8 * 2 + rows * 4,
    )
    assert cost.bytes == cost.read_bytes + cost.written_bytes
    assert cost.intensity == cost.flops / cost.bytes


def test_a_decode_by_hand_loads_each_key_once_a_group() -> None:
    """A window of 5 of 9 keys; 12 query heads on 2 KV heads."""
    layer = grouped(12, 2, 16, mask=SlidingWindowMask(kind="sliding_window", size=5))
    cost = kernel_cost(layer, DECODE, "float32", Workload(3, 9, 9))
    rows = 3 * 12
    assert cost == KernelCost(
        queries=1,
        pairs=5,
        flops=2 * rows * 5 * 32,
        read_bytes=rows * 16 * 4 + 3 * 5 * 2 * 32 * 4,
        written_bytes=rows * 16 * 4 + rows * 4,
    )


def test_query_tokens_of_a_decode_are_causal_among_themselves() -> None:
    layer = grouped(4, 4, 8, mask=WindowMask(kind="window", left=-1, right=7))
    cost = kernel_cost(layer, DecodeKernel(kind="decode", q_len=3), "float16", Workload(1, 10, 10))
    assert (cost.queries, cost.pairs) == (3, 8 + 9 + 10)


def test_a_backward_by_hand() -> None:
    """5 products; gradients are written for all 10 keys, 4 of them are read."""
    layer = grouped(4, 2, 16, 8, mask=SlidingWindowMask(kind="sliding_window", size=3))
    cost = kernel_cost(layer, BACKWARD, "float16", Workload(1, 10, 2))
    q, out, lse = 2 * 4 * 16 * 2, 2 * 4 * 8 * 2, 2 * 4 * 4
    assert cost == KernelCost(
        queries=2,
        pairs=6,
        flops=2 * 4 * 6 * (3 * 16 + 2 * 8),
        read_bytes=q + 4 * 2 * 24 * 2 + out + out + lse,
        written_bytes=q + 10 * 2 * 24 * 2,
    )


def test_a_latent_layer_is_expanded_for_prefill_and_absorbed_for_decode() -> None:
    work = Workload(1, 1000, 10)
    prefill, decode = (kernel_cost(DEEPSEEK, kernel, "bfloat16", work) for kernel in (PREFILL, DECODE))
    assert prefill.flops == 2 * 128 * prefill.pairs * (192 + 128)
    assert prefill.read_bytes == 10 * 128 * 192 * 2 + 1000 * 128 * (192 + 128) * 2
    assert decode.flops == 2 * 128 * 1000 * (576 + 512)
    assert decode.read_bytes == 128 * 576 * 2 + 1000 * 576 * 2
    assert decode.written_bytes == 128 * 512 * 2 + 128 * 4


def test_a_separate_rotary_block_is_scored_and_cached() -> None:
    layer = grouped(4, 2, 64).model_copy(update={"head_dim_pe": 32})
    assert cache_cost(layer, "float16", Workload(1, 1, 1)).elements_per_token == 2 * (64 + 32 + 64)
    assert kernel_cost(layer, DECODE, "float16", Workload(1, 5, 1)).flops == 2 * 4 * 5 * (96 + 64)


def test_the_cache_of_a_windowed_layer_is_held_whole_and_seen_in_part() -> None:
    layer = grouped(8, 2, 64, mask=SlidingWindowMask(kind="sliding_window", size=100))
    assert cache_cost(layer, "float32", Workload(3, 1000, 1)) == CacheCost(256, 1024, 3 * 1000 * 1024, 3 * 100 * 1024)


def test_a_merge_moves_two_parts_and_a_result_and_multiplies_nothing() -> None:
    decode = MergeStatesKernel(kind="merge_states")
    rows = 5 * 32  # requests, heads
    assert kernel_cost(grouped(32, 8, 128, 64), decode, "bfloat16", Workload(5, 1000, 7)) == KernelCost(
        1, 0, 0, 2 * rows * (64 * 2 + 4), rows * (64 * 2 + 4)
    )
    prefill = MergeStatesKernel(kind="merge_states", layout="ragged")
    assert kernel_cost(grouped(32, 8, 128), prefill, "float32", Workload(5, 1000, 7)) == KernelCost(
        7, 0, 0, 2 * 7 * rows * (128 * 4 + 4), 7 * rows * (128 * 4 + 4)
    )
    absorbed, expanded = (
        kernel_cost(DEEPSEEK, decode.model_copy(update={"form": form}), "bfloat16", Workload(1, 1, 1)).written_bytes
        for form in ("absorbed", "expanded")
    )
    assert (absorbed, expanded) == (128 * (512 * 2 + 4), 128 * (128 * 2 + 4))


def test_llama_405b_its_endpoints_and_deepseek_v3() -> None:
    """Four formats of a cache with 128 query heads, in elements a token a layer."""
    work = Workload(1, 128_000, 128_000)
    mha, gqa, mqa = (grouped(128, kv_heads, 128) for kv_heads in (128, 8, 1))
    costs = [cache_cost(layer, "bfloat16", work) for layer in (mha, gqa, DEEPSEEK, mqa)]
    assert [cost.elements_per_token for cost in costs] == [32_768, 2_048, 576, 256]
    assert [cost.held_bytes for cost in costs] == [8_388_608_000, 524_288_000, 147_456_000, 65_536_000]
    assert math.isclose(costs[1].bytes_per_token / costs[2].bytes_per_token, 3.6, abs_tol=0.05)
    assert costs[2].bytes_per_token / costs[3].bytes_per_token == 2.25
    # A smaller record hides no pair.
    assert {kernel_cost(layer, PREFILL, "bfloat16", work).pairs for layer in (mha, gqa, DEEPSEEK, mqa)} == {
        128_000 * 128_001 // 2
    }


def test_the_floor_is_the_longer_of_two_times() -> None:
    cost = KernelCost(queries=1, pairs=1, flops=6 * 10**12, read_bytes=10**12, written_bytes=10**12)
    memory = floor(cost, tflop_s=6.0, memory_tb_s=0.5)
    assert (memory.seconds, memory.bound) == (4.0, "memory")
    compute = floor(cost, tflop_s=2.0, memory_tb_s=1.0)
    assert (compute.seconds, compute.bound) == (3.0, "compute")


def test_every_target_has_a_device_and_every_device_a_target() -> None:
    assert {found.target for found in devices().values()} == set(TARGET_INFO)
    for found in devices().values():
        assert set(found.tflop_s) == {"bfloat16", "float16", "float32", "tf32"}
        assert found.tflop_s["bfloat16"] > found.tflop_s["float32"]
        assert found.tflop_s["float32"] <= found.tflop_s["tf32"] < found.tflop_s["float16"]
        assert 0.1 < found.memory_tb_s < 20
        assert "heet" in found.source or "whitepaper" in found.source


def test_the_rate_follows_the_type_of_the_products() -> None:
    h200 = device("H200")
    assert (h200.memory_tb_s, h200.peak("bfloat16", allow_tf32=False)) == (4.8, 989.0)
    assert h200.peak("float32", allow_tf32=False) == 67.0
    assert h200.peak("float32", allow_tf32=True) == 494.0
    with pytest.raises(InputError, match=r"--device h20: .* a10, a100, b200.*--bandwidth-tb-s"):
        device("h20")


def test_the_spec_of_the_docs_is_deepseek_v3() -> None:
    (loaded,) = load_specs([REPOSITORY / "docs/cost/deepseek_v3.yaml"], ungenerated="allowed")
    scale = 192**-0.5 * (0.1 * math.log(40) + 1) ** 2
    assert math.isclose(loaded.spec.attention.sm_scale, scale)
    assert loaded.spec.attention == DEEPSEEK.model_copy(update={"sm_scale": loaded.spec.attention.sm_scale})


def test_what_is_not_generated_is_loaded_on_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    path = REPOSITORY / "specs/llama3_8b.yaml"
    unmet = features.Feature("KG399", "eight KV heads", "", lambda _: iter([("attention", "num_kv_heads")]))
    monkeypatch.setattr(features, "NOT_YET", (unmet,))
    with pytest.raises(SpecError, match=r"error\[KG399\]: not generated yet: eight KV heads"):
        load_specs([path])
    (loaded,) = load_specs([path], ungenerated="allowed")
    assert features.unmet(loaded.spec) == ("eight KV heads",)
