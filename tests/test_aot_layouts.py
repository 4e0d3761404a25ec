"""Every layout of a prefill and a merge, and every form of decode, compiles for a GPU of each family as planned."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from kgen.aot import compile_modules
from kgen.plan.lower import lower
from kgen.spec.loader import LoadedSpec
from tests.aot_support import NARROW_LOADS, WIDE_LOADS, assert_vectorised
from tests.verify_support import load_latent, load_spec, write

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
    kernels = {"prefill": {"layout": "bshd"}}
    loaded = load_latent(heads=128, widths=(512, 64, 128, 128), dtype="bfloat16", kernels=kernels)
    write(loaded, tmp_path)
    assert_compiled(loaded, tmp_path)


PAGED = {"kind": "decode", "kv": {"kind": "paged", "page_size": 3}}
PAGE64 = {"kv": {"kind": "paged", "page_size": 64}}
DECODES = {
    "few heads": load_latent(heads=16, widths=(512, 64, 128, 128), dtype="bfloat16", kernels={"paged": PAGED | PAGE64}),
    "rotary": load_spec(heads=32, kv_heads=8, head_dim=128, head_dim_pe=64, dtype="bfloat16", kernels={"paged": PAGED}),
}


@pytest.mark.parametrize("name", DECODES)
def test_decode_of_latents_and_with_a_rotary_part_compiles(name: str, tmp_path: Path) -> None:
    write(DECODES[name], tmp_path)
    assert_compiled(DECODES[name], tmp_path)


def assert_compiled(loaded: LoadedSpec, folder: Path) -> None:
    """The attention kernels of a spec compile for every target: wide loads, spills and shared memory as planned."""
    paths = {name: folder / "example" / f"{name}.py" for name in loaded.spec.kernels}
    requests = [(path, target) for path in paths.values() for target in TARGETS]
    report = compile_modules(requests, keep=lambda launch: launch.is_aligned)
    assert report.failures == ()
    plans = {str(paths[plan.kernel]): plan for plan in lower(loaded)}
    aligned = [k for k in report.kernels if k.launch.is_aligned]
    assert {(k.launch.module, k.target) for k in aligned} == {(str(p), t) for p in paths.values() for t in TARGETS}
    for kernel in aligned:
        where = f"{Path(kernel.launch.module).stem} for {kernel.target}"
        if kernel.resources.count("HMMA", "HGMMA", "v_mfma"):
            assert_vectorised(kernel)
        tile = plans[kernel.launch.module].tile(kernel.target, is_aligned=True, form=kernel.launch.form)
        assert kernel.resources.spill_bytes <= tile.spill_bytes, where
        assert kernel.resources.shared_bytes <= tile.shared_bytes, where


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
