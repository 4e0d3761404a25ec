"""The product of what a spec may say: all of it loads, plans and renders; samples compile and run."""

from __future__ import annotations

import ast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.aot import compile_modules
from kgen.errors import SpecError
from kgen.plan.blocks import lanes
from kgen.plan.lower import DTYPE_BYTES, lower
from kgen.plan.shared_memory import shared_bytes
from kgen.plan.targets import TARGET_INFO
from kgen.render.emit import render
from kgen.spec.loader import load_text
from kgen.spec.model import TARGETS
from tests.verify_support import document, failures, generate, load_spec, write

HEAD_DIMS = st.integers(1, 64).map(lambda n: 8 * n)
GROUPS = st.sampled_from([1, 2, 3, 5, 6, 7, 9, 10, 12, 16, 24, 29, 32, 48, 64, 71, 128, 142])
REACH = st.integers(-1, 300)
MASKS = st.one_of(
    st.just({"kind": "full"}),
    st.just({"kind": "causal"}),
    st.builds(lambda size: {"kind": "sliding_window", "size": size}, st.integers(1, 2**30)),
    st.builds(lambda left, right: {"kind": "window", "left": left, "right": right}, REACH, REACH).filter(
        lambda mask: (mask["left"], mask["right"]) != (-1, -1)
    ),
)

PAGE_SIZES = st.sampled_from([1, 2, 3, 16, 17, 64, 100, 256, 2048]) | st.integers(1, 2**20)


@st.composite
def facts(draw: st.DrawFn) -> dict[str, object]:
    """Keyword arguments of ``document``: any layer, dtype, targets and splits."""
    kv_heads = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(["float16", "bfloat16", "float32"]))
    rotary = draw(st.just({}) | st.builds(lambda dim: {"head_dim_pe": dim}, HEAD_DIMS))
    decodes = {
        "decode": {"num_splits": draw(st.just("auto") | st.integers(1, 64))},
        "decode_long": {"kind": "decode", "num_splits": 32},
        "decode_paged": {"kind": "decode", "kv": {"kind": "paged", "page_size": draw(PAGE_SIZES)}},
    }
    return {
        "heads": kv_heads * draw(GROUPS),
        "kv_heads": kv_heads,
        "head_dim": draw(HEAD_DIMS),
        "head_dim_v": draw(st.none() | HEAD_DIMS),
        **rotary,
        "mask": draw(MASKS),
        "dtype": dtype,
        "kernels": {
            "prefill": {},
            "prefill_paged": {
                "kind": "prefill",
                "layout": "ragged",
                "kv": {"kind": "paged", "page_size": draw(PAGE_SIZES)},
            },
            **decodes,
        },
    }


WIDTHS = st.integers(1, 32).map(lambda n: 8 * n)


@st.composite
def latents(draw: st.DrawFn) -> dict[str, object]:
    """A latent layer with both of its forms as the data of a spec file."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    layer = {"kind": "latent", "num_qo_heads": draw(st.integers(1, 160)), **{name: draw(WIDTHS) for name in names}}
    return {
        "name": "example",
        "attention": {**layer, "kv_lora_rank": draw(HEAD_DIMS), "mask": draw(MASKS)},
        "dtype": draw(st.sampled_from(["float16", "bfloat16", "float32"])),
        "kernels": {
            "prefill": {"layout": draw(st.sampled_from(["bhsd", "bshd", "ragged"]))},
            "decode": {"num_splits": draw(st.just("auto") | st.integers(1, 64))},
            "decode_paged": {"kind": "decode", "kv": {"kind": "paged", "page_size": draw(PAGE_SIZES)}},
        },
    }


def unaligned_bytes(plan, target):
    """Shared memory of the form for rows that do not start on 16 bytes, which is the same on every target."""
    tile = plan.unaligned
    widths = lanes((*plan.qk_blocks, *plan.pe_blocks)), lanes(plan.v_blocks)
    options = DTYPE_BYTES[plan.dtype], tile.num_stages, tile.num_warps
    return shared_bytes(target, tile.block_m, tile.block_n, *widths, *options, values_are_keys=plan.values_are_keys)


@settings(max_examples=150, deadline=None)
@given(
    facts().map(lambda options: document(**options)) | latents(),
    st.lists(st.sampled_from(TARGETS), min_size=1, unique=True),
)
def test_every_spec_plans_and_renders_or_is_refused_with_the_numbers(data, targets):
    data = data | {"targets": targets}
    loaded = load_text(yaml.safe_dump(data), "specs/example.yaml")
    try:
        plans = lower(loaded)
    except SpecError as error:
        for diagnostic in error.diagnostics:
            assert diagnostic.code == "KG401"
            assert "bytes of shared memory" in diagnostic.message
        return
    assert [plan.kernel for plan in plans] == sorted(data["kernels"])
    for plan in plans:
        source = render(plan)
        compile(source, plan.kernel, "exec")
        names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        assert len(names) == len(set(names))
        assert [target for target, _ in plan.launch] == targets
        for target in targets:
            assert unaligned_bytes(plan, target) <= TARGET_INFO[target].shared_bytes


# One of each template path off the powers of two: dtype, dims, group, mask.
SAMPLES = [
    {"heads": 6, "kv_heads": 2, "head_dim": 40, "mask": {"kind": "full"}, "dtype": "float32"},
    {"heads": 5, "kv_heads": 1, "head_dim": 72, "head_dim_v": 24, "mask": {"kind": "window", "left": 7, "right": 2}},
    {"heads": 29, "kv_heads": 1, "head_dim": 16, "mask": {"kind": "sliding_window", "size": 3}, "dtype": "bfloat16"},
    {"heads": 2, "kv_heads": 2, "head_dim": 8, "head_dim_v": 96, "mask": {"kind": "window", "left": -1, "right": 0}},
]


KERNELS = {"prefill": {}, "decode": {}, "decode_three": {"kind": "decode", "num_splits": 3}}


def sample_id(options):
    return f"{options['heads']}-{options['head_dim']}-{options['mask']['kind']}"


@pytest.mark.triton
def test_samples_of_the_product_compile(tmp_path):
    requests = []
    for options in SAMPLES[:3]:
        loaded = load_spec(**options, kernels=KERNELS)
        root = tmp_path / sample_id(options)
        write(loaded, root)
        requests += [(root / "example" / f"{kernel}.py", "sm_90") for kernel in KERNELS]
    report = compile_modules(requests)
    assert report.failures == ()
    assert len({(kernel.launch.module, kernel.launch.kernel) for kernel in report.kernels}) >= len(requests)


@pytest.mark.triton
@pytest.mark.parametrize("options", SAMPLES, ids=sample_id)
def test_a_sample_of_the_product_is_right(options, tmp_path):
    loaded = load_spec(**options, kernels=KERNELS)
    modules = generate(loaded, tmp_path)
    for kernel, module in modules.items():
        assert failures(loaded, kernel, module, first=False) == []
