"""``kgen import``: a config.json becomes specs whose every value names its key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgen.models.huggingface import Imported, import_config, spec_text
from kgen.spec.loader import load_text
from tests.import_support import MISTRAL, comment, config, kgen, mla, put, yarn

LAYERS = {
    layer["model"]: layer["attention"]
    for layer in json.loads((Path(__file__).parent / "data/models.json").read_text())["layers"]
}


GEMMA2 = {"head_dim": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0, "num_hidden_layers": 26}
GEMMA4 = {"num_hidden_layers": 60, "head_dim": 256, "global_head_dim": 512, "sliding_window": 1024}
QWEN2 = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28, "num_hidden_layers": 28}

# Model of data/models.json, suffix of its layer, and a config.json of the model's published facts.
PUBLISHED: list[tuple[str, str, dict[str, Any]]] = [
    ("llama2-7b", "", config("llama", 32, None, 4096)),
    ("llama2-70b", "", config("llama", 64, 8, 8192)),
    ("llama3.1-405b", "", config("llama", 128, 8, 16384)),
    ("tinyllama", "", config("llama", 32, 4, 2048)),
    ("qwen2-0.5b", "", config("qwen2", 14, 2, 896, **{**QWEN2, "num_hidden_layers": 24, "max_window_layers": 24})),
    ("qwen2.5-7b", "", config("qwen2", 28, 4, 3584, **QWEN2)),
    ("qwen3-0.6b", "", config("qwen3", 16, 8, 1024, head_dim=128, **QWEN2)),
    ("qwen3-235b", "", config("qwen3_moe", 64, 4, 4096, head_dim=128, **QWEN2)),
    ("mistral-7b-v0.1", "", config("mistral", 32, 8, 4096, sliding_window=4096)),
    ("mistral-large", "", config("mistral", 96, 8, 12288, sliding_window=None, head_dim=128)),
    ("mixtral-8x22b", "", config("mixtral", 48, 8, 6144, sliding_window=None)),
    ("phi-2", "", config("phi", 32, 32, 2560)),
    ("phi-4", "", config("phi3", 40, 10, 5120, sliding_window=None)),
    ("stablelm-3b", "", config("stablelm", 32, 32, 2560)),
    ("gptj-6b", "", {"model_type": "gptj", "n_head": 16, "n_embd": 4096, "torch_dtype": "float16"}),
    ("falcon-7b", "", config("falcon", 71, None, 4544, multi_query=True, alibi=False, new_decoder_architecture=False)),
    ("falcon-40b", "", config("falcon", 128, None, 8192, num_kv_heads=8, new_decoder_architecture=True, alibi=False)),
    ("gemma-2b", "", config("gemma", 8, 1, 2048, head_dim=256)),
    ("gemma2-2b", "sliding", config("gemma2", 8, 4, 2304, query_pre_attn_scalar=256, **GEMMA2)),
    ("gemma2-27b", "sliding", config("gemma2", 32, 16, 4608, query_pre_attn_scalar=144, **{**GEMMA2, "head_dim": 128})),
    ("gemma3-1b", "sliding", config("gemma3_text", 4, 1, 1152, head_dim=256, query_pre_attn_scalar=256,
                                    sliding_window=512, sliding_window_pattern=6, num_hidden_layers=26)),
    ("gemma4-31b-local", "sliding", config("gemma4_text", 32, 16, 5376, **GEMMA4)),
    ("gemma4-31b-global", "full", config("gemma4_text", 32, 16, 5376, attention_k_eq_v=True,
                                         num_global_key_value_heads=4, **GEMMA4)),
    ("granite-4.1-3b", "", config("granite", 40, 8, 2560, attention_multiplier=0.015625)),
    ("smollm3", "", config("smollm3", 16, 4, 2048, num_hidden_layers=36, no_rope_layers=[1, 1, 1, 0] * 9)),
    ("gpt-oss-20b", "sliding", config("gpt_oss", 64, 8, 2880, head_dim=64, sliding_window=128, num_hidden_layers=24,
                                      layer_types=["sliding_attention", "full_attention"] * 12)),
    ("llama4-scout", "chunked", {"model_type": "llama4", "text_config": config(
        "llama4_text", 40, 8, 5120, head_dim=128, attention_chunk_size=8192, num_hidden_layers=48)}),
    ("mimo-v2-flash-full", "full", config("mimo_v2_flash", 64, 4, 4096, head_dim=192, v_head_dim=128,
                                          sliding_window=128, num_hidden_layers=48)),
    ("dbrx", "", {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8},
                  "torch_dtype": "bfloat16"}),
    ("glm4-9b", "", config("glm", 32, 2, 4096, head_dim=128)),
    ("glm4.5-355b", "", config("glm4_moe", 96, 8, 5120, head_dim=128)),
    ("qwen3-next-80b", "", config("qwen3_next", 16, 2, 2048, head_dim=256, num_hidden_layers=48)),
    ("jamba-1.5-mini", "", config("jamba", 32, 8, 4096, num_hidden_layers=32, attn_layer_period=8,
                                  attn_layer_offset=4)),
    ("nemotron-h-56b", "", config("nemotron_h", 64, 8, 8192, head_dim=128, hybrid_override_pattern="M-M-M*-M-")),
    ("bloom-7b1", "", {"model_type": "bloom", "n_head": 32, "hidden_size": 4096, "torch_dtype": "float16"}),
    ("mpt-7b", "", {"model_type": "mpt", "n_heads": 32, "d_model": 4096, "attn_config": {"alibi": True},
                    "torch_dtype": "bfloat16"}),
    ("siglip-so400m", "vision", {"model_type": "siglip", "torch_dtype": "float32", "text_config": {
        "model_type": "siglip_text_model", "num_attention_heads": 16, "hidden_size": 1152}, "vision_config": {
        "model_type": "siglip_vision_model", "num_attention_heads": 16, "hidden_size": 1152}}),
    ("deepseek-v3", "", mla("deepseek_v3", 128, 512, 128, 64, 128, rope_scaling=yarn(40, 1.0))),
    ("kimi-k2", "", mla("kimi_k2", 64, 512, 128, 64, 128, rope_scaling=yarn(32, 1.0))),
    ("moonlight", "", mla("deepseek_v3", 16, 512, 128, 64, 128)),
    ("minicpm3-4b", "", mla("minicpm3", 40, 256, 64, 32, None, hidden=2560, rope_scaling={"type": "longrope"})),
]  # fmt: skip


def layer_of(found: Imported, suffix: str) -> Any:
    (layer,) = [layer for layer in found.layers if layer.suffix == suffix]
    return load_text(spec_text(layer, "x"), "x.yaml", ungenerated="allowed").spec.attention


@pytest.mark.parametrize(("model", "suffix", "facts"), PUBLISHED, ids=[model for model, _, _ in PUBLISHED])
def test_a_published_model_has_its_layer(model: str, suffix: str, facts: dict[str, Any]) -> None:
    document = {"name": "x", "attention": LAYERS[model], "dtype": "bfloat16", "kernels": {"prefill": {}}}
    expected = load_text(json.dumps(document), "x.yaml", ungenerated="allowed").spec.attention.model_dump()
    got = layer_of(import_config(facts), suffix).model_dump()
    assert got.pop("sm_scale") == pytest.approx(expected.pop("sm_scale"), rel=1e-14)
    assert got == expected


def test_the_committed_scale_of_deepseek_v2_lite() -> None:
    facts = mla("deepseek_v2", 16, 512, 128, 64, 128, rope_scaling=yarn(40, 0.707))
    assert layer_of(import_config(facts), "").sm_scale == 0.11472138679292611


# What keys mean


def masks(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {layer.suffix: layer.attention["mask"] for layer in import_config(facts).layers}


CAUSAL, FULL = {"kind": "causal"}, {"kind": "full"}


def window(size: int) -> dict[str, Any]:
    return {"kind": "sliding_window", "size": size}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # Missing is not null: the class of mistral has a window, and takes null for none.
        (config("mistral", 32, 8, 4096), {"": window(4096)}),
        (config("mistral", 32, 8, 4096, sliding_window=None), {"": CAUSAL}),
        (config("phi3", 32, 32, 3072, sliding_window=2047), {"": window(2047)}),
        # Qwen2: the window is switched on, and begins at a layer.
        (
            config("qwen2", 28, 4, 3584, **{**QWEN2, "use_sliding_window": True, "max_window_layers": 21}),
            {"full": CAUSAL, "sliding": window(131072)},
        ),
        (config("qwen2", 28, 4, 3584, **{**QWEN2, "use_sliding_window": True}), {"": CAUSAL}),
        (config("qwen3_moe", 32, 4, 2048, use_sliding_window=True, sliding_window=99), {"": window(99)}),
        (
            config("gemma3_text", 4, 1, 1152, num_hidden_layers=2, sliding_window_pattern=2),
            {"sliding": window(4096), "full": CAUSAL},
        ),
        # EmbeddingGemma: half a window on either side.
        (
            config("gemma3_text", 3, 1, 768, num_hidden_layers=6, sliding_window=512, use_bidirectional_attention=True),
            {"sliding": {"kind": "window", "left": 256, "right": 256}, "full": FULL},
        ),
        (config("cohere2", 32, 8, 4096, num_hidden_layers=3, sliding_window=10), {"": window(10)}),
        (
            config("smollm3", 16, 4, 2048, num_hidden_layers=4, use_sliding_window=True, sliding_window=8),
            {"full": CAUSAL, "sliding": window(8)},
        ),
        (
            {**config("llama4_text", 40, 8, 5120, num_hidden_layers=8, attention_chunk_size=None, no_rope_layers=[])},
            {"": CAUSAL},
        ),
        (
            config("mimo_v2_flash", 64, 4, 4096, num_hidden_layers=6, sliding_window_size=128),
            {"full": CAUSAL, "sliding": window(129)},
        ),
        (
            config("modernbert", 12, None, 768, num_hidden_layers=3, local_attention=127),
            {"full": FULL, "sliding": {"kind": "window", "left": 63, "right": 63}},
        ),
        (config("bert", 12, None, 768, is_decoder=True), {"": CAUSAL}),
        (config("gemma2", 8, 4, 2304, layer_types=["full_attention"] * 2), {"": CAUSAL}),
    ],
)  # fmt: skip
def test_masks(facts: dict[str, Any], expected: dict[str, dict[str, Any]]) -> None:
    assert masks(facts) == expected


def test_layers_of_each_kind_are_named() -> None:
    layers = import_config(config("gemma3_text", 4, 1, 1152, num_hidden_layers=8)).layers
    assert [layer.where for layer in layers] == [
        "the layers of sliding_attention: 0-4, 6-7 (7 of 8), by the model's code (the last of each 6 is full)",
        "the layers of full_attention: 5 (1 of 8), by the model's code (the last of each 6 is full)",
    ]
    (layer,) = import_config(config("jamba", 32, 8, 4096, num_hidden_layers=16)).layers
    assert layer.where.startswith("the layers of full_attention: 4, 12 (2 of 16)")
    assert layer.notes == (
        "Without a spec, as they do not attend: layers 0-3, 5-11, 13-15 (14 of 16) are linear_attention.",
    )


SWITCHED = {**QWEN2, "use_sliding_window": True, "sliding_window": 64}


@pytest.mark.parametrize(
    ("facts", "kind", "where"),
    [
        (config("qwen2", 28, 4, 3584, **{**SWITCHED, "max_window_layers": 21}), "sliding", "21-27 (7 of 28)"),
        (config("qwen2", 28, 4, 3584, **{**SWITCHED, "max_window_layers": 0}), "", "all 28 layers"),
        (config("qwen2_moe", 16, 16, 2048, **{**SWITCHED, "max_window_layers": 5}), "sliding", "0, 2, 4 (3 of 28)"),
        (config("dots1", 32, 32, 4096, num_hidden_layers=4, max_window_layers=3), "sliding", "3 (1 of 4)"),
        (config("gemma2", 8, 4, 2304, num_hidden_layers=5), "full", "1, 3 (2 of 5)"),
        (config("gemma3n_text", 8, 2, 2048, num_hidden_layers=7), "full", "4 (1 of 7)"),
        (config("gemma4_text", 8, 4, 2304, num_hidden_layers=8), "full", "5, 7 (2 of 8)"),
        (config("cohere2", 32, 8, 4096, num_hidden_layers=9, sliding_window_pattern=3), "full", "2, 5, 8 (3 of 9)"),
        (config("olmo3", 32, 8, 4096, num_hidden_layers=5), "full", "3 (1 of 5)"),
        (config("cwm", 48, 8, 6144, num_hidden_layers=6), "full", "0, 4 (2 of 6)"),
        (config("mimo_v2_flash", 64, 4, 4096, num_hidden_layers=8), "full", "0, 5 (2 of 8)"),
        (config("smollm3", 16, 4, 2048, **{**SWITCHED, "num_hidden_layers": 8}), "sliding", "3, 7 (2 of 8)"),
        (config("llama4_text", 40, 8, 5120, num_hidden_layers=8), "full", "3, 7 (2 of 8)"),
        (config("llama4_text", 40, 8, 5120, num_hidden_layers=2, no_rope_layers=[0, 1]), "full", "0 (1 of 2)"),
        (config("modernbert", 12, None, 768, num_hidden_layers=7), "full", "0, 3, 6 (3 of 7)"),
        (config("modernbert", 12, None, 768, num_hidden_layers=7, global_attn_every_n_layers=4), "full", "0, 4"),
        (config("qwen3_next", 16, 2, 2048, num_hidden_layers=8), "", "3, 7 (2 of 8)"),
        (config("qwen3_next", 16, 2, 2048, num_hidden_layers=8, full_attention_interval=3), "", "2, 5 (2 of 8)"),
        (config("minimax", 64, 8, 6144, num_hidden_layers=4), "", "0, 2 (2 of 4)"),
        (config("nemotron_h", 32, 8, 4096, hybrid_override_pattern="M-M*-*"), "", "3, 5 (2 of 6)"),
        (config("lfm2", 32, 8, 2048, num_hidden_layers=5, full_attn_idxs=[2, 4]), "", "2, 4 (2 of 5)"),
        (config("bamba", 32, 8, 4096, num_hidden_layers=5, attn_layer_indices=[1]), "", "1 (1 of 5)"),
        (config("granitemoehybrid", 32, 8, 4096, layers_block_type=["mamba", "attention"]), "", "1 (1 of 2)"),
        (config("gpt_neo", 16, None, 2048, num_heads=16, attention_types=[[["local", "global"], 2]]), "full", "1, 3"),
    ],
)  # fmt: skip
def test_which_layers_are_of_a_kind(facts: dict[str, Any], kind: str, where: str) -> None:
    (layer,) = [layer for layer in import_config(facts).layers if layer.suffix == kind]
    assert where in layer.where


@pytest.mark.parametrize(
    ("facts", "scale"),
    [
        (config("granite", 32, 8, 4096, attention_multiplier=0.0078125), 0.0078125),
        (config("gemma2", 8, 4, 2304, num_hidden_layers=1, query_pre_attn_scalar=224), 224**-0.5),
        ({"model_type": "gpt2", "n_head": 12, "n_embd": 768, "scale_attn_weights": False, "dtype": "float32"}, 1.0),
        ({"model_type": "mpt", "n_heads": 16, "d_model": 2048, "dtype": "float32",
          "attn_config": {"softmax_scale": 0.5}}, 0.5),
        (config("gpt_neo", 16, None, 2048, num_heads=16, attention_types=[[["global"], 2]]), 1.0),
        # Without mscale_all_dim, or a factor of 1, yarn leaves the scale.
        (mla("deepseek_v3", 16, 512, 128, 64, 128, rope_scaling={"type": "yarn", "factor": 40}), 192**-0.5),
        (mla("deepseek_v3", 16, 512, 128, 64, 128, rope_scaling=yarn(1, 1.0)), 192**-0.5),
        # transformers 5 writes rope_parameters
        (mla("deepseek_v3", 16, 512, 128, 64, 128,
             rope_parameters={"rope_type": "yarn", "factor": 40, "mscale_all_dim": 1.0}), 0.1352337788608801),
    ],
)  # fmt: skip
def test_scales(facts: dict[str, Any], scale: float) -> None:
    (layer, *_) = import_config(facts).layers
    assert layer_of(Imported((layer,)), layer.suffix).sm_scale == pytest.approx(scale, rel=1e-14)


def test_kv_heads_of_falcon_and_starcoder() -> None:
    def heads(facts: dict[str, Any]) -> int:
        return int(import_config(facts).layers[0].attention["num_kv_heads"])

    assert heads(config("falcon", 64, None, 4096, multi_query=False, num_kv_heads=None)) == 64
    assert heads(config("falcon", 64, None, 4096, multi_query=True, num_kv_heads=8)) == 1
    assert heads(config("falcon", 64, None, 4096, new_decoder_architecture=True, num_kv_heads=8)) == 8
    code = {"model_type": "gpt_bigcode", "n_head": 48, "n_embd": 6144, "torch_dtype": "float16"}
    assert heads(code) == 1
    assert heads({**code, "multi_query": False}) == 48
    assert heads(config("mistral", 32, None, 4096)) == 8  # the default of its class
    assert heads(config("mistral", 32, None, 4096, num_key_value_heads=None)) == 32


def test_alibi_of_falcon() -> None:
    (layer,) = import_config(config("falcon", 64, None, 4096, alibi=True)).layers
    assert layer.attention["alibi"] is True
    assert "alibi_slopes * head_dim ** -0.5" in comment(spec_text(layer, "x"))


# The files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_spec_is_written_with_the_keys_of_its_values(folder: Path) -> None:
    found = kgen("import", put("Mistral-7B-v0.1/config.json", MISTRAL))
    assert (found.exit_code, found.stdout, found.stderr) == (0, "wrote specs/mistral_7b_v0_1.yaml\n", "")
    assert Path("specs/mistral_7b_v0_1.yaml").read_text() == (
        "# Model type mistral, all 32 layers. From config.json: num_attention_heads 32, num_key_value_heads 8, "
        "head_dim =\n"
        "# hidden_size 4096 / 32, sliding_window 4096, torch_dtype bfloat16.\n"
        "name: mistral_7b_v0_1\n"
        "attention:\n"
        "  kind: grouped\n"
        "  num_qo_heads: 32\n"
        "  num_kv_heads: 8\n"
        "  head_dim_qk: 128\n"
        "  mask: {kind: sliding_window, size: 4096}\n"
        "dtype: bfloat16\n"
        "kernels:\n"
        "  prefill: {layout: bhsd}\n"
        "  decode: {kv: {kind: paged, page_size: 16}, num_splits: auto}\n"
    )


def test_what_is_written_builds(folder: Path) -> None:
    put("a/config.json", MISTRAL)
    put("b/config.json", mla("deepseek_v3", 128, 512, 128, 64, 128, rope_scaling=yarn(40, 1.0)))
    put("c/config.json", config("vit", 12, None, 768))
    facts = config("gemma3_text", 4, 1, 1152, num_hidden_layers=26, sliding_window=512)
    assert kgen("import", "a/config.json", "b/config.json", "c/config.json", put("d.json", facts)).exit_code == 0
    found = kgen("build")
    assert found.exit_code == 0
    assert sorted(path.parent.name for path in Path("generated").rglob("prefill.py")) == [
        *["a", "b", "c", "d_full", "d_sliding"]
    ]
    assert sorted(path.parent.name for path in Path("generated").rglob("decode.py")) == [
        "a",
        "b",
        "d_full",
        "d_sliding",
    ]
    assert "64" in Path("specs/b.yaml").read_text().splitlines()[-1]
    assert "(128 + 64) ** -0.5" in Path("specs/b.yaml").read_text()


def test_what_kgen_does_not_generate_yet_is_written_and_told(folder: Path) -> None:
    facts = config("gpt_oss", 64, 8, 2880, head_dim=64, num_hidden_layers=2)
    found = kgen("import", put("oss.json", facts), "--page-size", "32")
    assert found.exit_code == 0
    assert found.stderr.splitlines() == [
        "specs/oss_sliding.yaml: not generated yet: attention sinks",
        "specs/oss_full.yaml: not generated yet: attention sinks",
    ]
    assert "page_size: 32" in Path("specs/oss_full.yaml").read_text()
    refused = kgen("build")
    assert refused.exit_code == 2
    assert refused.stderr.count("KG306") == 2


def test_a_part_that_is_left_out_is_a_finding(folder: Path) -> None:
    text = {"num_attention_heads": 32, "hidden_size": 5120, "head_dim": 128, "model_type": "mistral"}
    facts = {
        "model_type": "mistral3",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"model_type": "pixtral"},
    }
    found = kgen("import", put("small.json", facts), "--format", "json")
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    assert [row["spec"] for row in told["specs"]] == ["small"]
    assert told["left_out"] == [
        {
            "config": "small.json",
            "part": "vision_config",
            "reason": "model_type is pixtral, whose attention kgen does not know",
        }
    ]
    said = comment(Path("specs/small.yaml").read_text())
    # Nested configurations are written without the values that are defaults.
    assert "num_key_value_heads 8 by default" in said
    assert "From text_config of config.json" in said
    assert "transformers has it so in mistral" in said


def test_a_users_file_is_kept(folder: Path) -> None:
    path = put("m.json", MISTRAL)
    kgen("import", path)
    spec = Path("specs/m.yaml")
    first = spec.read_text()
    assert kgen("import", path).stdout == "unchanged specs/m.yaml\n"
    spec.write_text("# mine\n" + first)
    other = put("n.json", MISTRAL)
    refused = kgen("import", other, path)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "specs/m.yaml" in refused.stderr
    assert "--force" in refused.stderr
    assert spec.read_text() == "# mine\n" + first
    assert not Path("specs/n.yaml").exists()
    assert kgen("import", path, "--force").stdout == "replaced specs/m.yaml\n"
    assert spec.read_text() == first


def test_what_is_no_regular_file_is_kept_by_force_too(folder: Path) -> None:
    path = put("m.json", MISTRAL)
    Path("specs").mkdir()
    Path("mine.yaml").write_text("mine")
    Path("specs/m.yaml").symlink_to("../mine.yaml")
    assert kgen("import", path, "--force").exit_code == 2
    assert Path("mine.yaml").read_text() == "mine"
    assert Path("specs/m.yaml").is_symlink()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hub/models--meta-llama--Llama-3.1-8B/snapshots/0123abc/config.json", "llama_3_1_8b"),
        ("Qwen2.5-7B/config.json", "qwen2_5_7b"),
        ("configs/phi-2.json", "phi_2"),
        ("configs/on.json", "on"),  # a word that YAML reads as true
    ],
)
def test_names(folder: Path, path: str, name: str) -> None:
    assert kgen("import", put(path, MISTRAL), "-o", "out").stdout == f"wrote out/{name}.yaml\n"


def test_a_name_can_be_given_and_must_be_one(folder: Path) -> None:
    path = put("0123/config.json", MISTRAL)
    refused = kgen("import", path)
    assert refused.exit_code == 2
    assert "--name" in refused.stderr
    assert kgen("import", path, "--name", "torch").exit_code == 2
    assert kgen("import", path, path, "--name", "two", put("m.json", MISTRAL)).exit_code == 2
    assert kgen("import", path, "--name", "mine").stdout == "wrote specs/mine.yaml\n"


def test_two_files_of_one_name(folder: Path) -> None:
    refused = kgen("import", put("a/m/config.json", MISTRAL), put("b/m/config.json", MISTRAL))
    assert refused.exit_code == 2
    assert "a/m/config.json and b/m/config.json" in refused.stderr
    assert not Path("specs").exists()


def test_the_type_can_be_given(folder: Path) -> None:
    facts = {key: value for key, value in MISTRAL.items() if key != "torch_dtype"}
    path = put("m.json", facts)
    refused = kgen("import", path)
    assert refused.exit_code == 2
    assert "--dtype" in refused.stderr
    assert kgen("import", path, "--dtype", "float8").exit_code == 2
    assert kgen("import", path, "--dtype", "float16").exit_code == 0
    text = Path("specs/m.yaml").read_text()
    assert "dtype: float16\n" in text
    assert "float16 as asked" in text


def test_importing_needs_neither_torch_nor_transformers(folder: Path) -> None:
    code = (
        "import sys\nfrom kgen.cli import app\n"
        f"app(['import', {put('m.json', MISTRAL)!r}], standalone_mode=False)\n"
        "assert not {'torch', 'triton', 'transformers', 'numpy'} & set(sys.modules)\nprint('clean')"
    )
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "wrote specs/m.yaml\nclean\n"
