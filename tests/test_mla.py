"""The absorbed and the expanding products themselves: values by hand, roundings, layouts and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kgen.errors import InputError
from kgen.runtime.mla import LatentWeights, absorb, expand
from tests.latent_support import make_latent, random
from tests.verify_support import make_spec

# H, nope, X, R, v, D: all different, so that no two axes can change places.
H, NOPE, X, R, V, D = 3, 16, 20, 64, 24, 40


def make_weights(dtype: torch.dtype = torch.float64) -> LatentWeights:
    return LatentWeights(
        W_Q=random(H, NOPE, X, seed=1, dtype=dtype),
        W_UK=random(H, NOPE, R, seed=2, dtype=dtype),
        W_UV=random(H, V, R, seed=3, dtype=dtype),
        W_O=random(D, H, V, seed=4, dtype=dtype),
    )


def test_two_heads_by_hand() -> None:
    # Head 0 is 2 and 3, head 1 is 5 and 7, everything one wide: products of two numbers.
    def ones(*values: float) -> torch.Tensor:
        return torch.tensor(values).reshape(2, 1, 1)

    weights = LatentWeights(ones(2.0, 5.0), ones(3.0, 7.0), ones(11.0, 13.0), ones(17.0, 19.0).reshape(1, 2, 1))
    absorbed = absorb(weights)
    assert absorbed.W_Q_abs.tolist() == [[[6.0]], [[35.0]]]
    assert absorbed.W_O_abs.tolist() == [[[187.0], [247.0]]]
    K, values = expand(torch.tensor([[2.0], [4.0]]), weights)
    assert K.tolist() == [[[6.0], [12.0]], [[14.0], [28.0]]]
    assert values.tolist() == [[[22.0], [44.0]], [[26.0], [52.0]]]


def test_a_score_and_an_output_either_way() -> None:
    weights = make_weights()
    x, c = random(2, X, seed=5), random(5, R, seed=6)
    K, values = expand(c, weights)
    absorbed = absorb(weights)
    q = torch.einsum("hdx,mx->hmd", weights.W_Q, x)
    q_abs = torch.einsum("hrx,mx->hmr", absorbed.W_Q_abs, x)
    torch.testing.assert_close(q_abs @ c.T, q @ K.mT, atol=1e-13, rtol=0)
    p = random(H, 2, 5, seed=7)
    want = torch.einsum("hmv,dhv->md", p @ values, weights.W_O)
    torch.testing.assert_close(torch.einsum("hmr,dhr->md", p @ c, absorbed.W_O_abs), want, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_are_the_exact_products_cast_once(dtype: torch.dtype) -> None:
    weights = make_weights(dtype)
    W_Q, W_UK, W_UV, W_O = (w.double() for w in (weights.W_Q, weights.W_UK, weights.W_UV, weights.W_O))
    absorbed = absorb(weights)
    assert torch.equal(absorbed.W_Q_abs, torch.einsum("hdr,hdx->hrx", W_UK, W_Q).to(dtype))
    assert torch.equal(absorbed.W_O_abs, torch.einsum("dhv,hvr->dhr", W_O, W_UV).to(dtype))
    c = random(2, 5, R, seed=8, dtype=dtype)
    for got, up in zip(expand(c, weights), (W_UK, W_UV), strict=True):
        assert got.dtype == dtype
        want = torch.einsum("bnr,hdr->bhnd", c.double(), up)
        # Half a unit in the last place, and what float32 sums of 16-bit products may add to it.
        unit = torch.finfo(dtype).eps / 2
        slack = 0.0 if dtype == torch.float32 else 1e-6
        assert ((got.double() - want).abs() <= want.abs() * unit + slack * want.abs().max()).all()


@pytest.mark.parametrize("lead", [(), (2,), (2, 0), (0,), (3, 2, 5)])
def test_a_latent_has_any_axes_before_its_tokens(lead: tuple[int, ...]) -> None:
    weights = make_weights()
    c = random(*lead, 4, R, seed=9)
    K, values = expand(c, weights)
    assert K.shape == (*lead, H, 4, NOPE)
    assert values.shape == (*lead, H, 4, V)
    torch.testing.assert_close(K, torch.einsum("...nr,hdr->...hnd", c, weights.W_UK))
    torch.testing.assert_close(values, torch.einsum("...nr,hdr->...hnd", c, weights.W_UV))
    assert expand(c[..., :0, :], weights)[0].shape == (*lead, H, 0, NOPE)


def test_gradients_pass_through_expansion_and_not_through_absorption() -> None:
    weights = make_weights()
    W_UK = weights.W_UK.clone().requires_grad_()
    weights = replace(weights, W_UK=W_UK)
    c = random(5, R, seed=10).requires_grad_()
    K, _ = expand(c, weights)
    K.sum().backward()
    torch.testing.assert_close(W_UK.grad, c.detach().sum(0).expand(H, NOPE, R))
    torch.testing.assert_close(c.grad, W_UK.detach().sum((0, 1)).expand(5, R))
    assert not absorb(weights).W_Q_abs.requires_grad


def test_ranks_that_hold_some_of_the_heads_add_up() -> None:
    weights = make_weights()
    parts = [
        absorb(LatentWeights(weights.W_Q[h], weights.W_UK[h], weights.W_UV[h], weights.W_O[:, h]))
        for h in (slice(0, 2), slice(2, 3))
    ]
    whole = absorb(weights)
    assert torch.equal(torch.cat([part.W_Q_abs for part in parts]), whole.W_Q_abs)
    assert torch.equal(torch.cat([part.W_O_abs for part in parts], 1), whole.W_O_abs)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_checkpoint_is_split_without_a_copy(transposed: bool) -> None:
    layer = make_latent((R, 8, NOPE, V), heads=H).attention
    q_proj, kv_b_proj, o_proj = (
        random(*reversed(shape), seed=s).T if transposed else random(*shape, seed=s)
        for s, shape in enumerate([(H * (NOPE + 8), X), (H * (NOPE + V), R), (D, H * V)])
    )
    weights = LatentWeights.from_projections(layer, q_proj=q_proj, kv_b_proj=kv_b_proj, o_proj=o_proj)
    for h in range(H):
        q0, kv0, o0 = h * (NOPE + 8), h * (NOPE + V), h * V
        assert torch.equal(weights.W_Q[h], q_proj[q0 : q0 + NOPE])
        assert torch.equal(weights.W_UK[h], kv_b_proj[kv0 : kv0 + NOPE])
        assert torch.equal(weights.W_UV[h], kv_b_proj[kv0 + NOPE : kv0 + NOPE + V])
        assert torch.equal(weights.W_O[:, h], o_proj[:, o0 : o0 + V])
    for view, matrix in ((weights.W_Q, q_proj), (weights.W_UV, kv_b_proj), (weights.W_O, o_proj)):
        assert view.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("W_Q", torch.zeros(H, 24, X), f"W_Q is [3, 24, 20]; expected [H, nope, X], here [3, {NOPE}, X]"),
        ("W_Q", torch.zeros(2, NOPE, X), f"W_Q is [2, 16, 20]; expected [H, nope, X], here [3, {NOPE}, X]"),
        ("W_Q", torch.zeros(H * NOPE, X), "W_Q is [48, 20]; expected 3 dimensions"),
        ("W_UK", torch.zeros(H, NOPE, 32), "W_UV is [3, 24, 64]; expected [H, v, R], here [3, v, 32]"),
        ("W_UV", torch.zeros(2, V, R), "W_UV is [2, 24, 64]; expected [H, v, R], here [3, v, 64]"),
        ("W_O", torch.zeros(D, V, H), "W_O is [40, 24, 3]; expected [D, H, v], here [D, 3, 24]"),
        ("W_O", torch.zeros(D, H, V).half(), "W_O is torch.float16 on cpu; expected torch.float32 on cpu"),
        ("W_O", torch.zeros(D, H, V, device="meta"), "W_O is torch.float32 on meta; expected torch.float32 on cpu"),
        ("W_UK", torch.zeros(H, NOPE, R).int(), "W_UK is int32; expected float16, bfloat16, float32 or float64"),
        ("W_UK", None, "W_UK is NoneType; expected a torch.Tensor"),
        ("W_Q", [1.0], "W_Q is list; expected a torch.Tensor"),
    ],
)
def test_weights_that_do_not_fit_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(make_weights(torch.float32), **{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q_proj", (H * NOPE, X), "q_proj is [48, 20]; expected [H * (nope + rope), X], here [72, X]"),
        ("kv_b_proj", (H * (NOPE + V), 32), "kv_b_proj is [120, 32]; expected [H * (nope + v), R], here [120, 64]"),
        ("o_proj", (H * V, D), "o_proj is [72, 40]; expected [D, H * v], here [D, 72]"),
        ("o_proj", (D, H, V), "o_proj is [40, 3, 24]; expected 2 dimensions"),
    ],
)
def test_matrices_of_another_layer_are_named(name: str, shape: tuple[int, ...], message: str) -> None:
    layer = make_latent((R, 8, NOPE, V), heads=H).attention
    shapes = {"q_proj": (H * (NOPE + 8), X), "kv_b_proj": (H * (NOPE + V), R), "o_proj": (D, H * V)}
    matrices = {key: torch.zeros(size) for key, size in (shapes | {name: shape}).items()}
    with pytest.raises(InputError) as caught:
        LatentWeights.from_projections(layer, **matrices)
    assert str(caught.value) == message


def test_a_layer_of_another_kind_is_refused() -> None:
    spec = make_spec()
    matrices = {name: torch.zeros(8, 8) for name in ("q_proj", "kv_b_proj", "o_proj")}
    for layer, found in ((spec.attention, "grouped"), (spec, "SpecFile")):
        with pytest.raises(InputError, match=rf"^layer is {found}; it must be the attention of a latent layer's spec"):
            LatentWeights.from_projections(layer, **matrices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("latent", "message"),
    [
        (torch.zeros(5, 72), "latent is [5, 72]; expected [.., N, R] with R = 64"),
        (torch.zeros(R), "latent is [64]; expected [.., N, R] with R = 64"),
        (torch.zeros(5, R).half(), "latent is torch.float16 on cpu; expected torch.float32 on cpu"),
    ],
)
def test_a_latent_that_does_not_fit_is_named(latent: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError) as caught:
        expand(latent, make_weights(torch.float32))
    assert str(caught.value) == message
