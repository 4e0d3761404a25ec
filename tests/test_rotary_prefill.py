"""Prefill with a rotary block of its own: q_pe beside q, k_pe beside k, in every layout."""

from __future__ import annotations

import inspect

import pytest
import torch

from kgen.plan.lower import lower
from kgen.reference.evaluate import evaluate
from kgen.render.emit import render
from kgen.verify.interpreter import interpreting
from kgen.verify.modules import load_package
from tests.verify_support import MASKS, failures, generate, load_spec

pytestmark = pytest.mark.triton

PAGES = {"layout": "ragged", "kv": {"kind": "paged", "page_size": 16}}
# Rotary blocks narrower and wider than the rest, of one part and of two, with idle lanes, of one head and of several.
LAYERS = {
    "bhsd": {"heads": 4, "kv_heads": 2, "head_dim": 32, "head_dim_pe": 16},
    "padded bshd": {
        "heads": 3,
        "kv_heads": 1,
        "head_dim_pe": 40,
        "mask": MASKS["window"],
        "dtype": "bfloat16",
        "kernels": {"prefill": {"layout": "bshd", "padded": True}},
    },
    "ragged": {
        "heads": 2,
        "kv_heads": 2,
        "head_dim": 24,
        "head_dim_pe": 8,
        "mask": MASKS["full"],
        "dtype": "float32",
        "kernels": {"prefill": {"layout": "ragged"}},
    },
    "paged": {"heads": 2, "kv_heads": 2, "head_dim_v": 24, "head_dim_pe": 8, "kernels": {"prefill": PAGES}},
    "paged tile": {
        "heads": 2,
        "kv_heads": 1,
        "head_dim_pe": 72,
        "kernels": {"prefill": PAGES | {"kv": {"kind": "paged", "page_size": 128}}},
    },
}


def layer(name):
    return load_spec(**{"kernels": {"prefill": {}}, **LAYERS[name]})


@pytest.mark.parametrize("name", LAYERS)
def test_every_layout_passes(name, tmp_path):
    loaded = layer(name)
    module = generate(loaded, tmp_path)["prefill"]
    failed = failures(loaded, "prefill", module, first=False)
    assert not failed, "\n".join(f"{r.case.name} {r.case.shape}: {r.message}" for r in failed)


def test_its_lanes_count_for_the_tile_and_its_bytes_for_the_sections():
    (plan,) = lower(
        load_spec(heads=8, kv_heads=8, head_dim=128, head_dim_pe=64, dtype="bfloat16", kernels={"prefill": {}})
    )
    (whole,) = lower(
        load_spec(heads=8, kv_heads=8, head_dim=192, head_dim_v=128, dtype="bfloat16", kernels={"prefill": {}})
    )
    assert plan.sm_scale == whole.sm_scale == 192**-0.5
    assert plan.unaligned == whole.unaligned
    assert dict(plan.launch)["sm_90"].shared_bytes == 2 * 64 * (192 + 128) * 2 + 128 * 192 * 2 + 2048
    assert plan.kv_bytes_per_token == whole.kv_bytes_per_token == 2 * 320
    assert "head_dim_pe 64" in dict(plan.reasons)
    # The widest of all are refused with the numbers, or fit.
    wide = load_spec(head_dim=512, head_dim_pe=512, dtype="bfloat16", kernels={"prefill": {}})
    assert all(tile.block_n in (16, 32) for _, tile in lower(wide)[0].launch)


def test_the_docstring_says_what_is_scored():
    words = " ".join(render(lower(layer("paged"))[0]).split('"""')[1].split())
    assert f"scores are (q . k + q_pe . k_pe) * {24**-0.5!r}" in words
    assert "a rotary part of 8 columns in tensors of its own, q_pe and k_pe" in words
    assert "q_pe [Tq, 2, 8] float16" in words
    assert "k_pe_cache [pages, 16, 2, 8] float16" in words
    assert "q_pe" not in render(lower(load_spec(kernels={"prefill": PAGES}))[0])


def test_arguments_and_checks(tmp_path):
    loaded = layer("bhsd")
    module = generate(loaded, tmp_path)["prefill"]
    assert list(inspect.signature(module.attention).parameters) == ["q", "q_pe", "k", "k_pe", "v", "out", "return_lse"]
    shapes = {"q": (4, 5, 32), "q_pe": (4, 5, 16), "k": (2, 9, 32), "k_pe": (2, 9, 16), "v": (2, 9, 32)}
    tensors = {name: torch.randn(2, *shape).half() for name, shape in shapes.items()}
    with interpreting():
        out, lse = module.attention(**tensors, return_lse=True)
        want, want_lse = evaluate(loaded.spec, **tensors)
        torch.testing.assert_close(out.double(), want, atol=2e-3, rtol=0)
        torch.testing.assert_close(lse.double(), want_lse, atol=1e-4, rtol=0)
        for name, shape in (("q_pe", r"\[2, 4, 5, 16\]"), ("k_pe", r"\[2, 2, 9, 16\]")):
            wide = torch.zeros(*tensors[name].shape[:-1], 24).half()
            for bad in (wide, tensors[name][:, :1], tensors[name][:1]):
                with pytest.raises(ValueError, match=rf"^attention: {name} must have shape {shape}, got \["):
                    module.attention(**tensors | {name: bad})
            with pytest.raises(TypeError, match=rf"^attention: {name} must be torch.float16, got torch.float32"):
                module.attention(**tensors | {name: tensors[name].float()})
            with pytest.raises(ValueError, match=rf"^attention: {name} must be contiguous in its last dimension"):
                module.attention(**tensors | {name: wide.repeat(1, 1, 1, 2)[..., ::3]})
            with pytest.raises(ValueError, match=rf"^attention: {name} must be on cpu like q, got meta"):
                module.attention(**tensors | {name: tensors[name].to("meta")})
    # Slices of one wide projection, as models make them.
    wide_q, wide_k = (torch.cat([tensors[name], tensors[f"{name}_pe"]], -1) for name in "qk")
    slices = {"q": wide_q[..., :32], "q_pe": wide_q[..., 32:], "k": wide_k[..., :32], "k_pe": wide_k[..., 32:]}
    with interpreting():
        assert torch.equal(module.attention(**slices, v=tensors["v"]), out)


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("bhsd", "qk = tl.dot(q_pe, k_pe.T, qk)", "qk = qk"),
        ("bhsd", "k_pe = tl.load(k_ptrs_pe + start_n * stride_kpe_n", "k_pe = tl.load(k_ptrs_pe + start_n * stride_kn"),
        ("bhsd", "batch * stride_kpe_b + kv_head * stride_kpe_h", "batch * stride_kpe_b"),
        ("bhsd", "head * stride_qpe_h", "kv_head * stride_qpe_h"),
        ("bhsd", "_SCALE_LOG2 = tl.constexpr(", f"_SCALE_LOG2 = tl.constexpr({(32 / 48) ** -0.5} * "),
        ("paged", "k_pe_rows = page * stride_kpe_p", "k_pe_rows = page * stride_kp"),
        ("paged", "tl.cast(stride_kpe_p, tl.int64) * STRIDE_UNIT", "stride_kpe_p * STRIDE_UNIT"),
    ],
    ids=["not scored", "rows of k", "first head", "KV head of q_pe", "scale of k", "pages of k", "pages"],
)
def test_mistakes_are_caught(name, old, new, tmp_path):
    loaded = layer(name)
    generate(loaded, tmp_path)
    path = tmp_path / loaded.spec.name / "prefill.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    caught = failures(loaded, "prefill", load_package(path.parent)["prefill"], first=True)
    assert caught
    assert "raised" not in caught[0].message or "ForeignAccessError" in caught[0].message
