"""The reference against other people's attention and against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from kgen.errors import InputError
from kgen.reference.evaluate import evaluate, visible
from kgen.spec.mask import CausalMask, ChunkedMask, SlidingWindowMask, WindowMask
from tests.verify_support import MASKS, make_spec

SHAPES = [(1, 1), (7, 7), (5, 9), (9, 5), (1, 12), (12, 1)]

# The masks once more, as other libraries would write them: i is the row, j the key, s = N - M.
PREDICATES = {
    "full": lambda i, j, s: (i >= 0) & (j >= 0),
    "causal": lambda i, j, s: j - i <= s,
    "sliding_window": lambda i, j, s: (j - i <= s) & (i + s - j < 5),
    "window": lambda i, j, s: (i + s - j <= 3) & (j - i - s <= 2),
    "window_left": lambda i, j, s: i + s - j <= 4,
    "window_right": lambda i, j, s: j - i - s <= 1,
}


def inputs(spec, batch, m, n):
    a = spec.attention
    g = torch.Generator().manual_seed(m * 100 + n)
    q = torch.randn(batch, a.num_qo_heads, m, a.head_dim_qk, generator=g, dtype=torch.float64)
    k = torch.randn(batch, a.num_kv_heads, n, a.head_dim_qk, generator=g, dtype=torch.float64)
    v = torch.randn(batch, a.num_kv_heads, n, a.head_dim_v, generator=g, dtype=torch.float64)
    return q, k, v


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_values_match_sdpa(mask, m, n):
    spec = make_spec(heads=6, kv_heads=2, head_dim_v=24, mask=MASKS[mask], sm_scale=0.3)
    q, k, v = inputs(spec, 2, m, n)
    out, lse = evaluate(spec, q, k, v)
    allowed = PREDICATES[mask](torch.arange(m)[:, None], torch.arange(n)[None, :], n - m)
    rows = allowed.any(dim=1)
    want = scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out[:, :, rows], want[:, :, rows], atol=1e-12, rtol=0)
    assert out.dtype == lse.dtype == torch.float64
    assert (out[:, :, ~rows] == 0).all()
    assert (lse[:, :, ~rows] == -torch.inf).all()
    assert lse[:, :, rows].isfinite().all()


def test_causal_is_bottom_right_and_sdpa_top_left():
    spec = make_spec(mask=MASKS["causal"])
    q, k, v = inputs(spec, 1, 4, 4)
    top_left = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(evaluate(spec, q, k, v)[0], top_left, atol=1e-12, rtol=0)
    # The last two rows of four against the same keys: SDPA would call them rows 0 and 1.
    torch.testing.assert_close(evaluate(spec, q[:, :, 2:], k, v)[0], top_left[:, :, 2:], atol=1e-12, rtol=0)
    wrong = scaled_dot_product_attention(q[:, :, 2:], k, v, is_causal=True, enable_gqa=True)
    assert (wrong - top_left[:, :, 2:]).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize(("m", "n"), [(8, 8), (5, 9), (3, 12)])
def test_values_and_lse_match_flex_attention(mask, m, n):
    spec = make_spec(heads=4, kv_heads=2, mask=MASKS[mask], sm_scale=0.2)
    q, k, v = inputs(spec, 2, m, n)
    predicate = PREDICATES[mask]
    block_mask = create_block_mask(lambda b, h, i, j: predicate(i, j, n - m), None, None, m, n, device="cpu")
    want, aux = flex_attention(
        q, k, v, block_mask=block_mask, scale=0.2, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    out, lse = evaluate(spec, q, k, v)
    torch.testing.assert_close(out, want, atol=1e-9, rtol=0)
    # FlexAttention returns its LSE in float32.
    torch.testing.assert_close(lse, aux.lse.double(), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_soft_cap_comes_after_the_scale_and_before_the_mask():
    spec = make_spec(sm_scale=0.5, logits_soft_cap=2.0)
    q, k, v = inputs(spec, 1, 5, 7)
    block_mask = create_block_mask(lambda b, h, i, j: j - i <= 2, None, None, 5, 7, device="cpu")
    want = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0), block_mask=block_mask,
                          scale=0.5, enable_gqa=True)  # fmt: skip
    torch.testing.assert_close(evaluate(spec, q, k, v)[0], want, atol=1e-9, rtol=0)


def test_two_keys_by_hand():
    # Logits ln 1 and ln 3, values 10 and 20: weights 1/4 and 3/4, sum of exponentials 4.
    spec = make_spec(heads=1, head_dim=8, mask=MASKS["full"], sm_scale=1.0)
    q, k, v = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8)
    q[..., 0] = 1.0
    k = k.double()
    k[0, 0, 1, 0] = math.log(3.0)
    v[0, 0, :, 0] = torch.tensor([10.0, 20.0])
    out, lse = evaluate(spec, q, k, v)
    assert out[0, 0, 0].tolist() == pytest.approx([17.5] + [0.0] * 7, abs=1e-14)
    assert lse.item() == pytest.approx(math.log(4.0), abs=1e-14)


def test_scale_and_head_map_by_hand():
    # Four query heads on two KV heads: heads 0, 1 read values 1, heads 2, 3 read values 5.
    spec = make_spec(heads=4, kv_heads=2, head_dim=8, mask=MASKS["full"], sm_scale=0.25)
    q, k = torch.ones(1, 4, 1, 8), torch.ones(1, 2, 1, 8)
    v = torch.tensor([1.0, 5.0]).reshape(1, 2, 1, 1).expand(1, 2, 1, 8)
    out, lse = evaluate(spec, q, k, v)
    assert out[0, :, 0, 0].tolist() == [1.0, 1.0, 5.0, 5.0]
    assert lse[0, :, 0].tolist() == [2.0] * 4  # 8 * 1 * 1 * 0.25


def test_window_edges_by_hand():
    # Uniform weights: each row's LSE is the logarithm of the number of keys it sees.
    def counts(mask, m, n):
        spec = make_spec(heads=1, head_dim=8, mask=mask)
        zeros = torch.zeros(1, 1, m, 8), torch.zeros(1, 1, n, 8), torch.zeros(1, 1, n, 8)
        return evaluate(spec, *zeros)[1][0, 0].exp().round().int().tolist()

    assert counts({"kind": "sliding_window", "size": 1}, 4, 4) == [1, 1, 1, 1]  # itself only
    assert counts({"kind": "sliding_window", "size": 3}, 5, 5) == [1, 2, 3, 3, 3]
    assert counts({"kind": "window", "left": 0, "right": 0}, 3, 3) == [1, 1, 1]
    assert counts({"kind": "window", "left": 3, "right": 0}, 5, 5) == [1, 2, 3, 4, 4]  # one more than size 3
    assert counts({"kind": "window", "left": 1, "right": 1}, 4, 4) == [2, 3, 3, 2]
    assert counts({"kind": "causal"}, 5, 3) == [0, 0, 1, 2, 3]  # more queries than keys
    assert counts({"kind": "causal"}, 2, 5) == [4, 5]
    assert counts({"kind": "window", "left": 1, "right": 0}, 2, 6) == [2, 2]
    assert counts({"kind": "window", "left": -1, "right": -1}, 2, 3) == [3, 3]


def test_visible_of_absolute_positions():
    q_pos, kv_pos = torch.tensor([[-1], [0], [4]]), torch.arange(5)
    assert visible(CausalMask(kind="causal"), q_pos, kv_pos).sum(1).tolist() == [0, 1, 5]
    assert (
        visible(SlidingWindowMask(kind="sliding_window", size=2), q_pos, kv_pos)[2].tolist() == [False] * 3 + [True] * 2
    )
    assert visible(WindowMask(kind="window", left=0, right=2), q_pos, kv_pos)[0].tolist() == [True, True] + [False] * 3


def test_seq_lens_cut_each_request():
    spec = make_spec(heads=4, kv_heads=2)
    q, k, v = inputs(spec, 4, 1, 6)
    seq_lens = torch.tensor([6, 0, 3, 1], dtype=torch.int32)
    poisoned_k, poisoned_v = k.clone(), v.clone()
    for b, n in enumerate(seq_lens.tolist()):
        poisoned_k[b, :, n:] = torch.nan
        poisoned_v[b, :, n:] = torch.nan
    out, lse = evaluate(spec, q, poisoned_k, poisoned_v, seq_lens=seq_lens)
    for b, n in enumerate(seq_lens.tolist()):
        want, want_lse = evaluate(spec, q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
        assert torch.equal(out[b : b + 1], want)
        assert torch.equal(lse[b : b + 1], want_lse)
    assert (out[1] == 0).all()
    assert (lse[1] == -torch.inf).all()


@pytest.mark.parametrize(("batch", "m", "n"), [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_empty_sets(batch, m, n):
    spec = make_spec(mask=MASKS["full"], head_dim_v=24)
    out, lse = evaluate(spec, *inputs(spec, batch, m, n))
    assert out.shape == (batch, 2, m, 24)
    assert lse.shape == (batch, 2, m)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_long_queries_are_cut_into_chunks(monkeypatch):
    spec = make_spec(heads=4, kv_heads=2, mask=MASKS["sliding_window"])
    q, k, v = inputs(spec, 2, 13, 17)
    whole = evaluate(spec, q, k, v)
    monkeypatch.setattr("kgen.reference.evaluate._CHUNK", 4 * 17 * 3)
    for a, b in zip(evaluate(spec, q, k, v), whole, strict=True):
        torch.testing.assert_close(a, b, atol=1e-14, rtol=0)


def test_extreme_logits_stay_finite():
    spec = make_spec(heads=1, head_dim=8, mask=MASKS["full"], sm_scale=1.0)
    q = torch.full((1, 1, 1, 8), 500.0)
    k = torch.stack([torch.full((8,), -62.5), torch.full((8,), 62.5)]).reshape(1, 1, 2, 8)
    v = torch.tensor([1.0, 2.0]).reshape(1, 1, 2, 1).expand(1, 1, 2, 8)
    out, lse = evaluate(spec, q, k, v)
    assert out.flatten().tolist() == [2.0] * 8
    assert lse.item() == 250_000.0
    assert evaluate(spec, q, k[:, :, :1], v[:, :, :1])[1].item() == -250_000.0


def test_what_the_reference_does_not_know_is_refused():
    spec = make_spec(sinks=True)
    with pytest.raises(InputError, match="sinks"):
        evaluate(spec, *inputs(spec, 1, 1, 1))
    with pytest.raises(InputError, match="ChunkedMask; it knows CausalMask, FullMask, SlidingWindowMask, WindowMask"):
        visible(ChunkedMask(kind="chunked", size=4), torch.zeros(1), torch.zeros(1))
