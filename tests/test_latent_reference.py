"""A latent layer, computed by hand with keys and values of each head, and both forms of the reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kgen.errors import InputError
from kgen.reference import latent
from kgen.reference.evaluate import eager, evaluate
from kgen.runtime.mla import LatentWeights, absorb, expand
from kgen.spec import views
from tests.latent_support import WIDTHS, make_latent, random
from tests.verify_support import MASKS, make_spec

MODEL_WIDTH, Q_LORA_RANK = 40, 24

# Which keys a query at position i sees, as another library would write it.
PREDICATES = {
    "full": lambda i, j: (i - j).abs() >= 0,
    "causal": lambda i, j: j <= i,
    "sliding_window": lambda i, j: (j <= i) & (i - j < 5),
    "window": lambda i, j: (i - j <= 3) & (j - i <= 2),
    "window_left": lambda i, j: i - j <= 4,
    "window_right": lambda i, j: j - i <= 1,
}


def normed(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


def rotated(x, positions):
    """Rotary embedding of ``x[.., tokens, P]`` at ``positions[tokens]``, halves as pairs."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * 100.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


@dataclass(frozen=True)
class Layer:
    """One call of a latent layer: its weights as a checkpoint has them, and its tensors."""

    spec: object
    weights: LatentWeights
    o_proj: torch.Tensor
    kv_b_proj: torch.Tensor
    x: torch.Tensor  # [B, M, X]: what the query projection takes
    q_nope: torch.Tensor  # [B, H, M, nope]
    q_pe: torch.Tensor  # [B, H, M, P]
    c: torch.Tensor  # [B, N, R]
    k_pe: torch.Tensor  # [B, N, P]


def make_layer(spec, m, n, *, low_rank=False, batch=2):
    a = spec.attention
    h, nope, rope = a.num_qo_heads, a.qk_nope_head_dim, a.qk_rope_head_dim
    queries, tokens = (random(batch, length, MODEL_WIDTH, seed=s) * 12 for length, s in ((m, 1), (n, 2)))
    x = normed(queries @ random(Q_LORA_RANK, MODEL_WIDTH, seed=3).T) if low_rank else queries
    q_proj = random(h * (nope + rope), x.shape[-1], seed=4) * 2
    kv_b_proj = random(h * (nope + a.v_head_dim), a.kv_lora_rank, seed=5)
    o_proj = random(MODEL_WIDTH, h * a.v_head_dim, seed=6)
    q = (x @ q_proj.T).unflatten(-1, (h, nope + rope)).transpose(1, 2)
    kv_a = tokens @ random(a.kv_lora_rank + rope, MODEL_WIDTH, seed=7).T
    return Layer(
        spec=spec,
        weights=LatentWeights.from_projections(a, q_proj=q_proj, kv_b_proj=kv_b_proj, o_proj=o_proj),
        o_proj=o_proj,
        kv_b_proj=kv_b_proj,
        x=x,
        q_nope=q[..., :nope],
        q_pe=rotated(q[..., nope:], torch.arange(m) + n - m),
        c=normed(kv_a[..., : a.kv_lora_rank]),
        k_pe=rotated(kv_a[..., a.kv_lora_rank :], torch.arange(n)),
    )


def by_hand(layer, mask, scale, cap=None):
    """The layer's result ``[B, M, D]`` and LSE ``[B, H, M]``: a plain softmax a head, on the checkpoint's matrices."""
    a = layer.spec.attention
    m, n, nope = layer.x.shape[1], layer.c.shape[1], a.qk_nope_head_dim
    seen = PREDICATES[mask](torch.arange(m)[:, None] + n - m, torch.arange(n)[None, :])
    outs, lses = [], []
    for head, up in enumerate(layer.kv_b_proj.chunk(a.num_qo_heads)):
        kv = layer.c @ up.T
        k, v = torch.cat([kv[..., :nope], layer.k_pe], -1), kv[..., nope:]
        q = torch.cat([layer.q_nope[:, head], layer.q_pe[:, head]], -1)
        scores = scale * (q @ k.mT)
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(~seen, -torch.inf)
        outs.append(scores.softmax(-1).masked_fill(~seen, 0.0) @ v)
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs, -1) @ layer.o_proj.T, torch.stack(lses, 1)


def by_expanded(layer):
    k_nope, v = expand(layer.c, layer.weights)
    k = torch.cat([k_nope, layer.k_pe.unsqueeze(1).expand(*k_nope.shape[:-1], -1)], -1)
    out, lse = latent.expanded(layer.spec, torch.cat([layer.q_nope, layer.q_pe], -1), k, v)
    return out.transpose(1, 2).flatten(2) @ layer.o_proj.T, lse


def by_absorbed(layer, spec=None):
    W_Q_abs, W_O_abs = absorb(layer.weights)
    q = torch.einsum("hrx,bmx->bhmr", W_Q_abs, layer.x)
    out, lse = latent.absorbed(spec or layer.spec, q, layer.q_pe, layer.c, layer.k_pe)
    return out.transpose(1, 2).flatten(2) @ W_O_abs.flatten(1).T, lse


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


@pytest.mark.parametrize("low_rank", [False, True], ids=["simplified", "low_rank"])
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize(("m", "n"), [(6, 6), (1, 9), (4, 11), (9, 4)])
def test_both_forms_are_the_layer(mask, m, n, low_rank):
    layer = make_layer(make_latent(mask=MASKS[mask]), m, n, low_rank=low_rank)
    out, lse = by_hand(layer, mask, 24**-0.5)
    assert lse[lse.isfinite()].std() > 0.05  # the logits tell keys apart
    assert_same(by_expanded(layer), (out, lse))
    assert_same(by_absorbed(layer), (out, lse))


@pytest.mark.parametrize("low_rank", [False, True], ids=["simplified", "low_rank"])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_widths(widths, heads, low_rank):
    layer = make_layer(make_latent(widths, heads=heads), 3, 7, low_rank=low_rank)
    _, rope, nope, _ = widths
    want = by_hand(layer, "causal", (nope + rope) ** -0.5)
    assert_same(by_expanded(layer), want)
    assert_same(by_absorbed(layer), want)


def test_a_scale_of_its_own_and_a_soft_cap_hold_in_both_forms():
    layer = make_layer(make_latent(sm_scale=0.7, logits_soft_cap=1.5), 4, 6)
    want = by_hand(layer, "causal", 0.7, cap=1.5)
    assert_same(by_expanded(layer), want)
    assert_same(by_absorbed(layer), want)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_the_scale_of_the_absorbed_width_is_wrong(widths):
    rank, rope, nope, _ = widths
    layer = make_layer(make_latent(widths), 4, 6)
    out, lse = by_hand(layer, "causal", (nope + rope) ** -0.5)
    wrong, wrong_lse = by_absorbed(layer, make_latent(widths, sm_scale=(rank + rope) ** -0.5))
    assert (wrong - out).abs().max() > 1e-2
    assert (wrong_lse - lse).abs().max() > 1e-2


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_seq_lens_cut_each_request(form):
    spec = make_latent(mask=MASKS["sliding_window"])
    layer = make_layer(spec, 1, 8, batch=4)
    lengths = [8, 0, 3, 1]
    c, k_pe = layer.c.clone(), layer.k_pe.clone()
    for b, length in enumerate(lengths):
        c[b, length:], k_pe[b, length:] = torch.nan, torch.nan

    def run(b, c, k_pe, seq_lens=None):
        if form == "absorbed":
            q = torch.einsum("hrx,bmx->bhmr", absorb(layer.weights).W_Q_abs, layer.x[b])
            return latent.absorbed(spec, q, layer.q_pe[b], c, k_pe, seq_lens=seq_lens)
        k, v = expand(c, layer.weights)
        k = torch.cat([k, k_pe.unsqueeze(1).expand(*k.shape[:-1], -1)], -1)
        q = torch.cat([layer.q_nope[b], layer.q_pe[b]], -1)
        return latent.expanded(spec, q, k, v, seq_lens=seq_lens)

    out, lse = run(slice(None), c, k_pe, torch.tensor(lengths, dtype=torch.int32))
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        want, want_lse = run(one, layer.c[one, :length], layer.k_pe[one, :length])
        torch.testing.assert_close(out[one], want, atol=1e-14, rtol=0)
        torch.testing.assert_close(lse[one], want_lse, atol=1e-14, rtol=0)
    assert (out[1] == 0).all()
    assert (lse[1] == -torch.inf).all()


def test_views_of_deepseek_v3():
    layer = make_latent((512, 64, 128, 128), heads=128, sm_scale=0.1352337788608801, logits_soft_cap=9.0).attention
    names = ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_pe", "head_dim_v")
    for view, widths in ((views.expanded, (128, 128, 192, None, 128)), (views.absorbed, (128, 1, 512, 64, 512))):
        assert tuple(getattr(view(layer), name) for name in names) == widths
    for view in (views.expanded(layer), views.absorbed(layer)):
        assert (view.sm_scale, view.logits_soft_cap, view.mask) == (0.1352337788608801, 9.0, layer.mask)


def test_the_default_scale_is_that_of_an_expanded_key():
    layer = make_latent((512, 64, 128, 128)).attention
    assert layer.sm_scale == views.expanded(layer).sm_scale == views.absorbed(layer).sm_scale == 192**-0.5


def test_an_expanded_key_may_be_too_wide():
    layer = make_latent((64, 64, 456, 16)).attention
    assert views.absorbed(layer).head_dim_qk == 64
    with pytest.raises(InputError, match=r"qk_nope_head_dim \+ qk_rope_head_dim = 520 wide; .* 512 wide at most"):
        views.expanded(layer)


def test_only_a_latent_layer_has_forms():
    spec, x = make_spec(), torch.zeros(1, 2, 1, 16)
    with pytest.raises(InputError, match="example has a grouped layer; only a latent layer has forms"):
        latent.expanded(spec, x, x, x)
    with pytest.raises(InputError, match="does not know the attention of 'latent'"):
        evaluate(make_latent(), x, x, x)


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("change", ["one column less", "another batch"])
def test_a_tensor_of_another_shape_is_refused(position, change):
    shapes = [(1, 3, 2, 64), (1, 3, 2, 8), (1, 5, 64), (1, 5, 8)]
    tensors = [torch.zeros(shape) for shape in shapes]
    latent.absorbed(make_latent(), *tensors)
    x = tensors[position]
    tensors[position] = x[..., 1:] if change == "one column less" else x.expand(2, *x.shape[1:])
    with pytest.raises(InputError, match="expects"):
        latent.absorbed(make_latent(), *tensors)


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_a_rotary_block_of_a_grouped_layer_is_the_end_of_a_wider_head(mask):
    facts = {"heads": 6, "kv_heads": 2, "head_dim_v": 24, "mask": MASKS[mask], "sm_scale": 0.6, "dtype": "float32"}
    apart, whole = make_spec(head_dim=16, head_dim_pe=8, **facts), make_spec(head_dim=24, **facts)
    q, k, v = (random(2, h, t, 24, seed=s) * 5 for s, (h, t) in enumerate([(6, 5), (2, 9), (2, 9)]))
    blocks = {"q_pe": q[..., 16:], "k_pe": k[..., 16:]}
    lengths = {"seq_lens": torch.tensor([9, 6])}
    got = evaluate(apart, q[..., :16], k[..., :16], v, **blocks, **lengths)
    assert_same(got, evaluate(whole, q, k, v, **lengths))
    q, k, v = q.float(), k.float(), v.float()
    blocks = {"q_pe": q[..., 16:], "k_pe": k[..., 16:]}
    plain = eager(apart, q[..., :16], k[..., :16], v, **blocks, **lengths)
    for a, b in zip(plain, got, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=0)
    with pytest.raises(InputError, match="head_dim_pe of 'example' is 8, so the reference takes q_pe and k_pe"):
        evaluate(apart, q[..., :16], k[..., :16], v, q_pe=q[..., 16:])
    with pytest.raises(InputError, match="is None, so the reference takes neither q_pe nor k_pe"):
        evaluate(whole, q, k, v, **blocks)
