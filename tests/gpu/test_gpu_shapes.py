"""Layers that are not shipped, on a GPU: head dims of one and two blocks, wide groups, float32.

What a compiler gets wrong shows nowhere else: the interpreter runs no machine code.
"""

from __future__ import annotations

import pytest
import torch
import yaml

from kgen.spec.loader import load_text
from kgen.verify.modules import load_package
from tests.gpu.support import assert_passed, the_gpu
from tests.verify_support import MASKS, load_spec, write

pytestmark = pytest.mark.gpu

WINDOW = {"kind": "sliding_window", "size": 100}
LAYERS = [
    {"heads": 4, "kv_heads": 2, "head_dim": 40},
    {"heads": 2, "kv_heads": 1, "head_dim": 80, "mask": MASKS["full"]},
    {"heads": 6, "kv_heads": 2, "head_dim": 112},
    {"heads": 4, "kv_heads": 1, "head_dim": 120, "mask": WINDOW},
    {"heads": 4, "kv_heads": 2, "head_dim": 160},
    {"heads": 4, "kv_heads": 4, "head_dim": 192, "head_dim_v": 128},
    {"heads": 2, "kv_heads": 1, "head_dim": 64, "head_dim_v": 512},
    {"heads": 8, "kv_heads": 2, "head_dim": 256},
    {"heads": 4, "kv_heads": 1, "head_dim": 512},
    {"heads": 24, "kv_heads": 1, "head_dim": 128},
    {"heads": 48, "kv_heads": 1, "head_dim": 96, "mask": WINDOW},
    {"heads": 128, "kv_heads": 1, "head_dim": 128},
    {"heads": 142, "kv_heads": 1, "head_dim": 72, "dtype": "float16"},
    {"heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "float32"},
    {"heads": 9, "kv_heads": 3, "head_dim": 8, "head_dim_v": 24, "dtype": "float16"},
]


def name(layer):
    dims = f"{layer['head_dim']}" + (f"-{layer['head_dim_v']}" if "head_dim_v" in layer else "")
    return f"{layer['heads']}-{layer['kv_heads']}-d{dims}"


@pytest.fixture(scope="module", autouse=True)
def gpu() -> torch.device:
    return the_gpu()


@pytest.mark.parametrize("kernel", ["prefill", "decode"])
@pytest.mark.parametrize("layer", LAYERS, ids=name)
def test_layer_passes_every_case(layer, kernel, tmp_path, gpu):
    loaded = load_spec(**{"dtype": "bfloat16", **layer})
    write(loaded, tmp_path)
    assert_passed(loaded.spec, kernel, load_package(tmp_path / loaded.spec.name)[kernel], gpu)


# Released widths, as one tensor-parallel rank holds them, and widths of one block; every layout.
LATENTS = [
    {"num_qo_heads": 16, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    {"num_qo_heads": 3, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
    {"num_qo_heads": 4, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256},
]
EXPANDED = [{}, {"layout": "bshd"}, {"layout": "ragged"}, {"padded": True}]


@pytest.mark.parametrize("prefill", EXPANDED, ids=["bhsd", "bshd", "ragged", "padded"])
@pytest.mark.parametrize("layer", LATENTS, ids=lambda layer: f"{layer['qk_nope_head_dim']}-{layer['v_head_dim']}")
def test_expanded_latent_layer_passes_every_case(layer, prefill, tmp_path, gpu):
    attention = {"kind": "latent", "mask": {"kind": "causal"}, **layer}
    data = {"name": "mla", "attention": attention, "dtype": "bfloat16", "kernels": {"prefill": prefill}}
    loaded = load_text(yaml.safe_dump(data), "specs/mla.yaml")
    write(loaded, tmp_path)
    assert_passed(loaded.spec, "prefill", load_package(tmp_path / "mla")["prefill"], gpu)


ABSORBED = [
    {"num_qo_heads": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    {"num_qo_heads": 40, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
    {"num_qo_heads": 5, "kv_lora_rank": 320, "qk_nope_head_dim": 64, "qk_rope_head_dim": 8, "v_head_dim": 64},
    {"num_qo_heads": 24, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
]
ABSORBED_DTYPES = ("bfloat16", "float16", "float32", "bfloat16")
CACHES = {
    "contiguous": {},
    "page1": {"kv": {"kind": "paged", "page_size": 1}},
    "page3": {"kv": {"kind": "paged", "page_size": 3}, "num_splits": 3},
    "page64": {"kv": {"kind": "paged", "page_size": 64}},
}


def latent(value):
    return value if isinstance(value, str) else f"{value['num_qo_heads']}-{value['kv_lora_rank']}"


@pytest.mark.parametrize("decode", CACHES)
@pytest.mark.parametrize(
    ("layer", "dtype"),
    list(zip(ABSORBED, ABSORBED_DTYPES, strict=True)),
    ids=lambda x: x if isinstance(x, str) else latent(x),
)
def test_absorbed_latent_layer_passes_every_case(layer, dtype, decode, tmp_path, gpu):
    attention = {"kind": "latent", "mask": {"kind": "causal"}, **layer}
    kernels = {"decode": CACHES[decode]}
    data = {"name": "mla", "attention": attention, "dtype": dtype, "kernels": kernels}
    loaded = load_text(yaml.safe_dump(data), "specs/mla.yaml")
    write(loaded, tmp_path)
    assert_passed(loaded.spec, "decode", load_package(tmp_path / "mla")["decode"], gpu)


CHUNKS = {
    1: {"heads": 8, "kv_heads": 2, "head_dim": 128},
    16: {"heads": 6, "kv_heads": 2, "head_dim": 72, "head_dim_v": 40},
    64: {"heads": 4, "kv_heads": 1, "head_dim": 128, "mask": WINDOW},
    100: {"heads": 4, "kv_heads": 4, "head_dim": 192, "head_dim_v": 128, "mask": MASKS["full"]},
    128: {"heads": 8, "kv_heads": 2, "head_dim": 64, "dtype": "float16"},
    2048: {"heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": "float32", "mask": MASKS["window"]},
}


@pytest.mark.parametrize("page_size", CHUNKS)
def test_chunks_of_a_paged_cache_pass_every_case(page_size, tmp_path, gpu):
    prefill = {"layout": "ragged", "kv": {"kind": "paged", "page_size": page_size}}
    loaded = load_spec(**{"dtype": "bfloat16", **CHUNKS[page_size]}, kernels={"prefill": prefill})
    write(loaded, tmp_path)
    module = load_package(tmp_path / loaded.spec.name)["prefill"]
    assert_passed(loaded.spec, "prefill", module, gpu)


ROTARY = [
    {"heads": 8, "kv_heads": 2, "head_dim": 128, "head_dim_pe": 64},
    {"heads": 3, "kv_heads": 1, "head_dim": 64, "head_dim_pe": 32, "mask": WINDOW},
    {"heads": 2, "kv_heads": 2, "head_dim": 96, "head_dim_pe": 72, "head_dim_v": 40, "mask": MASKS["full"]},
    {"heads": 4, "kv_heads": 2, "head_dim": 256, "head_dim_pe": 64, "dtype": "float16"},
]
KEYS = {
    "bhsd": {},
    "bshd": {"layout": "bshd", "padded": True},
    "ragged": {"layout": "ragged"},
    "page16": {"layout": "ragged", "kv": {"kind": "paged", "page_size": 16}},
    "page128": {"layout": "ragged", "kv": {"kind": "paged", "page_size": 128}},
}


@pytest.mark.parametrize("prefill", KEYS)
@pytest.mark.parametrize("layer", ROTARY, ids=lambda layer: f"{layer['head_dim']}-{layer['head_dim_pe']}")
def test_rotary_part_of_its_own_passes_every_case(layer, prefill, tmp_path, gpu):
    loaded = load_spec(**{"dtype": "bfloat16", **layer}, kernels={"prefill": KEYS[prefill]})
    write(loaded, tmp_path)
    module = load_package(tmp_path / loaded.spec.name)["prefill"]
    assert_passed(loaded.spec, "prefill", module, gpu)


@pytest.mark.parametrize("decode", CACHES)
@pytest.mark.parametrize("layer", ROTARY, ids=lambda layer: f"{layer['head_dim']}-{layer['head_dim_pe']}")
def test_decode_with_a_rotary_part_passes_every_case(layer, decode, tmp_path, gpu):
    loaded = load_spec(**{"dtype": "bfloat16", **layer}, kernels={"decode": CACHES[decode]})
    write(loaded, tmp_path)
    module = load_package(tmp_path / loaded.spec.name)["decode"]
    assert_passed(loaded.spec, "decode", module, gpu)


MERGES = [
    {"heads": 128, "kv_heads": 1, "head_dim_v": 512, "dtype": "bfloat16"},
    {"heads": 71, "kv_heads": 1, "head_dim_v": 72, "dtype": "float16"},
    {"heads": 1, "kv_heads": 1, "head_dim_v": 8, "dtype": "float32"},
]


@pytest.mark.parametrize("layout", ["bhd", "bhsd", "bshd", "ragged"])
@pytest.mark.parametrize("layer", MERGES, ids=lambda layer: f"{layer['heads']}-d{layer['head_dim_v']}")
def test_merge_passes_every_case(layer, layout, tmp_path, gpu):
    loaded = load_spec(**layer, kernels={"merge_states": {"layout": layout}})
    write(loaded, tmp_path)
    module = load_package(tmp_path / loaded.spec.name)["merge_states"]
    assert_passed(loaded.spec, "merge_states", module, gpu)
