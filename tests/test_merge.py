"""The split law: parts of the keys, however they were cut, merge to attention over all of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.errors import InputError
from kgen.reference.evaluate import evaluate, visible
from kgen.reference.merge import merge_states
from tests.verify_support import MASKS, make_spec

HEADS, DIM, DIM_V = 4, 16, 24
SEEDS = st.integers(0, 2**31 - 1)


def inputs(seed: int, batch: int, m: int, n: int, size: float = 1.0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, HEADS, m, DIM, generator=g, dtype=torch.float64) * size
    k = torch.randn(batch, 2, n, DIM, generator=g, dtype=torch.float64)
    v = torch.randn(batch, 2, n, DIM_V, generator=g, dtype=torch.float64)
    return q, k, v


def part(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the keys that ``seen[M, N]`` allows, with torch's own softmax; NaN where there are none."""
    k, v = (x.repeat_interleave(HEADS // 2, dim=1) for x in (k, v))
    scores = (q @ k.mT * DIM**-0.5).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def states(seed: int, parts: int, size: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts of two requests, of which some rows are empty."""
    g = torch.Generator().manual_seed(seed)
    out = torch.randn(parts, 2, 3, 4, 8, generator=g, dtype=torch.float64)
    lse = torch.randn(parts, 2, 3, 4, generator=g, dtype=torch.float64) * size
    empty = torch.rand(lse.shape, generator=g) < 0.3
    return out.masked_fill(empty[..., None], 0.0), lse.masked_fill(empty, -torch.inf)


def assert_same(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...], atol: float = 1e-12) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-14)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(sorted(MASKS)), st.integers(1, 6), st.integers(0, 14), st.integers(1, 6), st.booleans())
def test_any_partition_of_the_keys_merges_to_the_whole(
    seed: int, mask: str, m: int, n: int, parts: int, per_row: bool
) -> None:
    spec = make_spec(heads=HEADS, kv_heads=2, head_dim_v=DIM_V, mask=MASKS[mask])
    q, k, v = inputs(seed, 2, m, n, size=6.0)
    seen = visible(spec.attention.mask, torch.arange(m)[:, None] + n - m, torch.arange(n)[None, :])
    # Every key goes to some part, of which many stay empty; or every pair of a row and a key does.
    g = torch.Generator().manual_seed(seed)
    owner = torch.randint(parts, (m if per_row else 1, n), generator=g)
    outs, lses = zip(*(part(q, k, v, seen & (owner == i)) for i in range(parts)), strict=True)
    assert_same(merge_states(torch.stack(outs), torch.stack(lses)), evaluate(spec, q, k, v))


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(2, 7), st.data())
def test_any_order_and_any_grouping(seed: int, parts: int, data: st.DataObject) -> None:
    out, lse = states(seed, parts)
    whole = merge_states(out, lse)
    order = data.draw(st.permutations(range(parts)))
    assert_same(merge_states(out[order], lse[order]), whole)
    # Merge two neighbours until one part is left, in any order of the pairs.
    left = [(out[i], lse[i]) for i in order]
    while len(left) > 1:
        i = data.draw(st.integers(0, len(left) - 2))
        pair_out, pair_lse = zip(*left[i : i + 2], strict=True)
        left[i : i + 2] = [merge_states(torch.stack(pair_out), torch.stack(pair_lse))]
    assert_same(left[0], whole)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(["causal", "full"]), st.integers(1, 4), st.integers(0, 9), st.integers(0, 5))
def test_a_prefix_that_requests_share(seed: int, mask: str, m: int, prefix: int, more: int) -> None:
    batch, suffix = 3, m + more
    facts = {"heads": HEADS, "kv_heads": 2, "head_dim_v": DIM_V}
    q, k, v = inputs(seed, batch, m, suffix, size=4.0)
    _, shared_k, shared_v = inputs(seed + 1, 1, 1, prefix)
    # All requests are rows of one call: the prefix is read once, and each row sees all of it.
    rows = q.transpose(0, 1).flatten(1, 2).unsqueeze(0)
    out, lse = evaluate(make_spec(**facts, mask=MASKS["full"]), rows, shared_k, shared_v)
    first = (x[0].unflatten(1, (batch, m)).transpose(0, 1) for x in (out, lse))
    spec = make_spec(**facts, mask=MASKS[mask])
    second = evaluate(spec, q, k, v)
    merged = merge_states(*(torch.stack(pair) for pair in zip(first, second, strict=True)))
    keys, values = (
        torch.cat([x.expand(batch, -1, -1, -1), y], 2) for x, y in zip((shared_k, shared_v), (k, v), strict=True)
    )
    assert_same(merged, evaluate(spec, q, keys, values))


def test_two_parts_by_hand() -> None:
    # One key of weight 1 with value 10, three of weight 1 with value 20: (10 + 3 * 20) / 4.
    out, lse = torch.tensor([[10.0], [20.0]]), torch.tensor([0.0, math.log(3.0)], dtype=torch.float64)
    merged, merged_lse = merge_states(out, lse)
    assert merged.item() == pytest.approx(17.5, abs=1e-14)
    assert merged_lse.item() == pytest.approx(math.log(4.0), abs=1e-15)


@pytest.mark.parametrize("garbage", [0.0, 1e30, torch.inf, torch.nan])
def test_an_empty_part_is_neutral_to_the_bit_whatever_it_holds(garbage: float) -> None:
    out, lse = states(1, 1)
    out[..., 0, :], lse[..., 0] = 5.0, 2.0
    both = torch.cat([out, torch.full_like(out, garbage)]), torch.cat([lse, torch.full_like(lse, -torch.inf)])
    for order in ([0, 1], [1, 0]):
        got, got_lse = merge_states(both[0][order], both[1][order])
        assert torch.equal(got, out[0])
        assert torch.equal(got_lse, lse[0])


@pytest.mark.parametrize("parts", [0, 1, 2, 5])
def test_nothing_but_empty_parts(parts: int) -> None:
    out = torch.full((parts, 2, 3, 8), torch.nan)
    merged, lse = merge_states(out, torch.full((parts, 2, 3), -torch.inf))
    assert merged.shape == (2, 3, 8)
    assert lse.shape == (2, 3)
    assert (merged == 0).all()
    assert (lse == -torch.inf).all()


def test_a_row_that_one_part_sees_and_no_other() -> None:
    # Rows and heads are merged apart: a row without keys does not touch its neighbour.
    lse = torch.tensor([[1.0, -torch.inf, -torch.inf], [-torch.inf, 2.0, -torch.inf]])
    out = torch.tensor([[[3.0], [torch.nan], [torch.nan]], [[torch.nan], [4.0], [torch.nan]]])
    merged, merged_lse = merge_states(out, lse)
    assert merged.squeeze(-1).tolist() == [3.0, 4.0, 0.0]
    assert merged_lse.tolist() == [1.0, 2.0, -torch.inf]


@pytest.mark.parametrize("size", [-1e5, -2000.0, 2000.0, 1e5, 1e300])
def test_large_lse_neither_overflow_nor_lose_digits(size: float) -> None:
    lse = torch.tensor([size, size, size * 2 if size < 0 else size / 2], dtype=torch.float64)
    merged, merged_lse = merge_states(torch.tensor([[1.0], [2.0], [9.0]]), lse)
    assert merged.item() == 1.5  # equal weights, exactly; the third has none
    assert merged_lse.item() == pytest.approx(size + math.log(2.0), rel=1e-15)


def test_states_of_16_bits_are_merged_in_float64() -> None:
    out, lse = states(3, 3)
    out, lse = out.bfloat16(), lse.float()
    merged, merged_lse = merge_states(out, lse)
    assert merged.dtype == merged_lse.dtype == torch.float64
    assert_same((merged, merged_lse), merge_states(out.double(), lse.double()), atol=0.0)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 8), (3, 2, 4), (), (2, 1, 4)])
def test_shapes_that_do_not_belong_together(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"out is \[2, 3, 4, 8\] and lse is .*expected \[parts, .., H, M, Dv\]"):
        merge_states(torch.zeros(2, 3, 4, 8), torch.zeros(shape))
