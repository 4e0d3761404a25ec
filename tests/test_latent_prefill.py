"""The expanded form of a latent layer: plans, docstrings, checks, and kernels of every layout against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgen.plan import tiles
from kgen.plan.lower import lower
from kgen.plan.model import Block, KernelPlan
from kgen.reference.latent import expanded
from kgen.render.emit import render
from kgen.spec.loader import LoadedSpec, load_text
from kgen.verify.interpreter import interpreting
from kgen.verify.modules import load_package
from tests.verify_support import failures, generate

pytestmark = pytest.mark.triton

LAYER = """\
name: mla
attention:
  kind: latent
  num_qo_heads: {heads}
  kv_lora_rank: 64
  qk_nope_head_dim: {nope}
  qk_rope_head_dim: {rope}
  v_head_dim: {v}
  mask: {mask}
dtype: {dtype}
kernels:
  prefill: {prefill}
"""


def latent(
    prefill: str = "{}",
    *,
    heads: int = 2,
    nope: int = 32,
    rope: int = 8,
    v: int = 16,
    mask: str = "{kind: causal}",
    dtype: str = "float16",
) -> LoadedSpec:
    text = LAYER.format(heads=heads, nope=nope, rope=rope, v=v, mask=mask, dtype=dtype, prefill=prefill)
    return load_text(text, "specs/mla.yaml")


def plan_of(loaded: LoadedSpec) -> KernelPlan:
    (plan,) = lower(loaded)
    assert isinstance(plan, KernelPlan)
    return plan


def test_every_head_has_keys_of_nope_and_rope_and_the_scale_of_both() -> None:
    plan = plan_of(latent(heads=128, nope=128, rope=64, v=128, dtype="bfloat16"))
    assert (plan.num_qo_heads, plan.num_kv_heads) == (128, 128)
    assert (plan.head_dim_qk, plan.head_dim_pe, plan.head_dim_v) == (192, None, 128)
    assert plan.qk_blocks == (Block(0, 128, 128), Block(128, 64, 64))
    assert plan.sm_scale == 192**-0.5
    assert plan.kv_bytes_per_token == 2 * (192 + 128)
    words = " ".join(render(plan).split('"""')[1].split())
    assert "192 columns of q and of k the first 128 are the content (nope), the last 64 the rotary part (rope)" in words
    assert f"scores are q . k * {192**-0.5!r}" in words
    assert "128 heads, each with keys and values of its own (MHA)" in words


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "ragged"])
def test_the_words_of_the_expanded_form_stand_in_every_layout_and_in_no_other_layer(layout: str) -> None:
    source = render(plan_of(latent(f"{{layout: {layout}}}")))
    assert "of a latent layer (MLA)" in source
    assert "40 columns of q and of k the first 32" in source
    grouped = load_text(
        "name: g\nattention: {kind: grouped, num_qo_heads: 2, num_kv_heads: 2, head_dim_qk: 40, mask: {kind: causal}}\n"
        f"dtype: float16\nkernels: {{prefill: {{layout: {layout}}}}}\n",
        "specs/g.yaml",
    )
    assert "latent" not in render(plan_of(grouped))


# As prefill kernels of other layers are tried in every layout, two are enough here.
@pytest.mark.parametrize(
    "loaded",
    [
        latent(),
        latent("{layout: bshd, padded: true}", heads=1, v=40, mask="{kind: full}", dtype="float32"),
    ],
    ids=["bhsd", "padded bshd"],
)
def test_layers_pass(loaded: LoadedSpec, tmp_path: Path) -> None:
    module = generate(loaded, tmp_path)["prefill"]
    failed = failures(loaded, "prefill", module, first=False)
    assert not failed, "\n".join(f"{r.case.name} {r.case.shape}: {r.message}" for r in failed)


def test_the_contract_is_that_of_heads_with_keys_of_their_own(tmp_path: Path) -> None:
    loaded = latent(heads=3)
    module = generate(loaded, tmp_path)["prefill"]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, d, generator=generator).half() for n, d in ((5, 40), (9, 40), (9, 16)))
    with interpreting():
        out, lse = module.attention(q, k, v, return_lse=True)
        want, want_lse = expanded(loaded.spec, q, k, v)
        assert out.shape == (2, 3, 5, 16)
        torch.testing.assert_close(out.double(), want, atol=2e-3, rtol=0)
        torch.testing.assert_close(lse.double(), want_lse, atol=1e-4, rtol=0)
        with pytest.raises(ValueError, match=r"^attention: q must have shape \[B, 3, M, 40\], got \[2, 3, 5, 16\]"):
            module.attention(q[..., :16], k, v)
        with pytest.raises(ValueError, match=r"^attention: k must have shape \[2, 3, N, 40\], got \[2, 1, 9, 40\]"):
            module.attention(q, k[:, :1], v)
        with pytest.raises(ValueError, match=r"^attention: v must have shape \[2, 3, 9, 16\], got \[2, 3, 9, 40\]"):
            module.attention(q, k, k)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The classic mistakes: the scale of the absorbed width, the rotary part left out, read from the content.
        ("_SCALE_LOG2 = tl.constexpr(", f"_SCALE_LOG2 = tl.constexpr({(64 + 8) ** -0.5 / 40**-0.5} * "),
        ("qk = tl.dot(q_hi, k_hi.T, qk)", "qk = qk"),
        ("offs_d_hi = 32 + tl", "offs_d_hi = tl"),
    ],
    ids=["absorbed scale", "no rotary part", "rotary part at 0"],
)
def test_mistakes_are_caught(old: str, new: str, tmp_path: Path) -> None:
    loaded = latent()
    generate(loaded, tmp_path)
    path = tmp_path / "mla/prefill.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    caught = failures(loaded, "prefill", load_package(path.parent)["prefill"], first=True)
    assert caught
    assert "raised" not in (caught[0].message or "")


def test_keys_of_192_and_values_of_128_have_a_tile_of_their_own_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = {(128, 64, 128): 1, (128, 64, 192): 0, (128, 32, 128): 0, (64, 64, 128): 0}
    layers = [latent(nope=nope, rope=rope, v=v, dtype="bfloat16") for nope, rope, v in widths]
    before = [dict(plan_of(layer).launch) for layer in layers]
    (row,) = (row for row in tiles._table()["prefill"] if row.get("lanes") == [192, 128])
    monkeypatch.setitem(row, "tiles", [[64, 32, 4, 2]])
    for own, old, layer in zip(widths.values(), before, layers, strict=True):
        changed = [target for target, tile in plan_of(layer).launch if tile != old[target]]
        assert changed == ["sm_90"] * own
