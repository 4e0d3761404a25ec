"""Every layout of a prefill and of a merge compiles for a GPU of each family: no spills, shared memory as planned."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from kgen.aot import compile_modules
from kgen.plan.lower import lower
from kgen.spec.loader import LoadedSpec, load_text
from tests.aot_support import NARROW_LOADS, WIDE_LOADS, assert_vectorised
from tests.verify_support import load_spec, write

pytestmark = pytest.mark.triton

TARGETS = ("sm_80", "sm_90", "gfx942")
KERNELS = {
    "tokens_first": {"kind": "prefill", "layout": "bshd"},
    "padded": {"kind": "prefill", "padded": True},
    "ragged": {"kind": "prefill", "layout": "ragged"},
    "page1": {"kind": "prefill", "layout": "ragged", "kv": {"kind": "paged", "page_size": 1}},
    "page128": {"kind": "prefill", "layout": "ragged", "kv": {"kind": "paged", "page_size": 128}},
}


def test_every_layout_compiles(tmp_path: Path) -> None:
    loaded = load_spec(heads=32, kv_heads=8, head_dim=128, dtype="bfloat16", kernels=KERNELS)
    write(loaded, tmp_path)
    assert_compiled(loaded, tmp_path)


def test_a_rotary_part_of_its_own_compiles(tmp_path: Path) -> None:
    facts = {"heads": 32, "kv_heads": 8, "head_dim": 128, "head_dim_pe": 64, "dtype": "bfloat16"}
    loaded = load_spec(**facts, kernels={"page1": KERNELS["page1"]})
    write(loaded, tmp_path)
    assert_compiled(loaded, tmp_path)


def test_the_expanded_form_of_a_latent_layer_compiles(tmp_path: Path) -> None:
    layer = {"kind": "latent", "num_qo_heads": 128, "kv_lora_rank": 512, "v_head_dim": 128, "mask": {"kind": "causal"}}
    layer |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    data = {"name": "example", "attention": layer, "dtype": "bfloat16", "kernels": {"prefill": {"layout": "bshd"}}}
    loaded = load_text(yaml.safe_dump(data), "specs/example.yaml")
    write(loaded, tmp_path)
    assert_compiled(loaded, tmp_path)


def assert_compiled(loaded: LoadedSpec, folder: Path) -> None:
    """The prefill kernels of a spec compile for every target: wide loads, no spills, shared memory as planned."""
    paths = {name: folder / "example" / f"{name}.py" for name in loaded.spec.kernels}
    report = compile_modules([(path, target) for path in paths.values() for target in TARGETS])
    assert report.failures == ()
    plans = {str(paths[plan.kernel]): plan for plan in lower(loaded)}
    aligned = [k for k in report.kernels if k.launch.is_aligned]
    assert {(k.launch.module, k.target) for k in aligned} == {(str(p), t) for p in paths.values() for t in TARGETS}
    for kernel in aligned:
        where = f"{Path(kernel.launch.module).stem} for {kernel.target}"
        assert_vectorised(kernel)
        assert (kernel.resources.spill_bytes, kernel.resources.stack_bytes) == (0, 0), where
        assert kernel.resources.shared_bytes <= dict(plans[kernel.launch.module].launch)[kernel.target].shared_bytes


# Widths with idle lanes, heads of no power of two and one head, and float32, whose rows take twice the bytes.
MERGES = {
    "bhd": {"heads": 128, "kv_heads": 1, "head_dim_v": 512, "dtype": "bfloat16"},
    "bhsd": {"heads": 71, "kv_heads": 1, "head_dim_v": 72, "dtype": "float32"},
    "bshd": {"heads": 5, "kv_heads": 1, "head_dim_v": 16, "dtype": "float16"},
    "ragged": {"heads": 1, "kv_heads": 1, "head_dim_v": 192, "dtype": "bfloat16"},
}


def test_every_layout_of_a_merge_compiles(tmp_path: Path) -> None:
    requests, plans = [], {}
    for layout, facts in MERGES.items():
        loaded = load_spec(**facts, kernels={"merge_states": {"layout": layout}})
        write(loaded, tmp_path / layout)
        path = tmp_path / layout / "example/merge_states.py"
        (plans[str(path)],) = lower(loaded)
        requests += [(path, target) for target in TARGETS]
    report = compile_modules(requests)
    assert report.failures == ()
    # Two kernels, for aligned rows and for others.
    assert len(report.kernels) == 4 * len(requests)
    for kernel in report.kernels:
        plan, resources = plans[kernel.launch.module], kernel.resources
        where = f"{plan.layout} {kernel.kernel} for {kernel.target}"
        assert resources.shared_bytes <= dict(plan.launch)[kernel.target].shared_bytes, where
        if kernel.launch.is_aligned:
            assert (resources.spill_bytes, resources.stack_bytes) == (0, 0), where
            assert resources.count(*WIDE_LOADS), where
            assert not resources.count(*NARROW_LOADS), where
