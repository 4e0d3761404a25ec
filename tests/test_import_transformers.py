"""Configurations as transformers writes them: each class's own default, and what its modelling code makes of it.

The numbers are written down from reading ``modeling_*.py``; nothing here computes them as the import does.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kgen.models.huggingface import RefusedError, import_config, spec_text
from kgen.models.huggingface.facts import defaults
from kgen.spec.loader import load_text

CAUSAL, FULL, PREFIX = {"kind": "causal"}, {"kind": "full"}, {"kind": "prefix_lm"}


def window(size: int) -> dict[str, Any]:
    return {"kind": "sliding_window", "size": size}


def sides(left: int, right: int) -> dict[str, Any]:
    return {"kind": "window", "left": left, "right": right}


def chunked(size: int) -> dict[str, Any]:
    return {"kind": "chunked", "size": size}


# 192 ** -0.5, 96 ** -0.5 and so on, worked out by hand to ten digits.
D8, D64, D72, D80, D96, D128, D144, D192 = (
    *(0.3535533906, 0.125, 0.1178511302, 0.1118033989, 0.1020620726, 0.0883883476, 0.0833333333, 0.0721687836),
)

# (suffix, query heads, KV heads, width of keys, width of values, scale, mask)
GROUPED: dict[str, list[tuple[str, int, int, int, int, float, dict[str, Any]]]] = {
    "llama": [("", 32, 32, 128, 128, D128, CAUSAL)],
    "arcee": [("", 32, 32, 80, 80, D80, CAUSAL)],
    "bitnet": [("", 20, 5, 128, 128, D128, CAUSAL)],
    "cohere": [("", 64, 64, 128, 128, D128, CAUSAL)],
    "ernie4_5": [("", 16, 2, 128, 128, D128, CAUSAL)],
    "ernie4_5_moe": [("", 20, 4, 128, 128, D128, CAUSAL)],
    "exaone": [("", 32, 8, 128, 128, D128, CAUSAL)],
    "glm": [("", 32, 2, 128, 128, D128, CAUSAL)],
    "helium": [("", 20, 20, 128, 128, D128, CAUSAL)],
    "internlm3": [("", 32, 2, 128, 128, D128, CAUSAL)],
    "minimax_m2": [("", 48, 8, 128, 128, D128, CAUSAL)],
    "nemotron": [("", 48, 48, 128, 128, D128, CAUSAL)],
    "olmo2": [("", 32, 32, 128, 128, D128, CAUSAL)],
    "olmoe": [("", 16, 16, 128, 128, D128, CAUSAL)],
    "phi": [("", 32, 32, 64, 64, D64, CAUSAL)],
    "seed_oss": [("", 80, 8, 128, 128, D128, CAUSAL)],
    "stablelm": [("", 32, 32, 80, 80, D80, CAUSAL)],
    "gpt_neox": [("", 64, 64, 96, 96, D96, CAUSAL)],
    "gpt2": [("", 12, 12, 64, 64, D64, CAUSAL)],
    "gptj": [("", 16, 16, 256, 256, 0.0625, CAUSAL)],
    "codegen": [("", 16, 16, 256, 256, 0.0625, CAUSAL)],
    "opt": [("", 12, 12, 64, 64, D64, CAUSAL)],
    "xglm": [("", 16, 16, 64, 64, D64, CAUSAL)],
    # One KV head, from flags
    "gpt_bigcode": [("", 12, 1, 64, 64, D64, CAUSAL)],
    "falcon": [("", 71, 1, 64, 64, D64, CAUSAL)],
    "dbrx": [("", 16, 1, 128, 128, D128, CAUSAL)],
    # Scales of their own: Granite's default multiplier is 1, GPT-Neo and Gemma 3n do not scale
    "granite": [("", 32, 32, 128, 128, 1.0, CAUSAL)],
    "gemma": [("", 16, 16, 256, 256, 0.0625, CAUSAL)],
    # Windows of every layer, and off
    "mistral": [("", 32, 8, 128, 128, D128, window(4096))],
    "mixtral": [("", 32, 8, 128, 128, D128, CAUSAL)],
    "ministral": [("", 32, 8, 128, 128, D128, window(4096))],
    "phi3": [("", 32, 32, 96, 96, D96, CAUSAL)],
    "starcoder2": [("", 24, 2, 128, 128, D128, CAUSAL)],
    "qwen2": [("", 32, 32, 128, 128, D128, CAUSAL)],
    "qwen2_moe": [("", 16, 16, 128, 128, D128, CAUSAL)],
    "qwen3": [("", 32, 32, 128, 128, D128, CAUSAL)],
    "qwen3_moe": [("", 32, 4, 64, 64, D64, CAUSAL)],
    "smollm3": [("", 16, 4, 128, 128, D128, CAUSAL)],
    "dots1": [("", 32, 32, 144, 144, D144, CAUSAL)],
    # Windows of some layers
    "gemma2": [("sliding", 8, 4, 256, 256, 0.0625, window(4096)), ("full", 8, 4, 256, 256, 0.0625, CAUSAL)],
    "gemma3_text": [("sliding", 8, 4, 256, 256, 0.0625, window(4096)), ("full", 8, 4, 256, 256, 0.0625, CAUSAL)],
    "gemma3n_text": [("sliding", 8, 2, 256, 256, 1.0, window(512)), ("full", 8, 2, 256, 256, 1.0, CAUSAL)],
    "gemma4_text": [("sliding", 8, 4, 256, 256, 1.0, window(512)), ("full", 8, 4, 512, 512, 1.0, CAUSAL)],
    "cohere2": [("sliding", 64, 64, 128, 128, D128, window(4096)), ("full", 64, 64, 128, 128, D128, CAUSAL)],
    "olmo3": [("sliding", 32, 32, 128, 128, D128, window(4096)), ("full", 32, 32, 128, 128, D128, CAUSAL)],
    "exaone4": [("sliding", 32, 32, 128, 128, D128, window(4096)), ("full", 32, 32, 128, 128, D128, CAUSAL)],
    "cwm": [("full", 48, 8, 128, 128, D128, CAUSAL), ("sliding", 48, 8, 128, 128, D128, window(8192))],
    "gpt_oss": [("sliding", 64, 8, 64, 64, D64, window(128)), ("full", 64, 8, 64, 64, D64, CAUSAL)],
    "mimo_v2_flash": [("full", 64, 4, 192, 128, D192, CAUSAL), ("sliding", 64, 8, 192, 128, D192, window(129))],
    "gpt_neo": [("full", 16, 16, 128, 128, 1.0, CAUSAL), ("sliding", 16, 16, 128, 128, 1.0, window(256))],
    "llama4_text": [("chunked", 40, 8, 128, 128, D128, chunked(8192)), ("full", 40, 8, 128, 128, D128, CAUSAL)],
    # Layers of attention among others
    "jamba": [("", 32, 8, 128, 128, D128, CAUSAL)],
    "lfm2": [("", 32, 8, 80, 80, D80, CAUSAL)],
    "qwen3_next": [("", 16, 2, 256, 256, 0.0625, CAUSAL)],
    "nemotron_h": [("", 32, 8, 128, 128, D128, CAUSAL)],
    # ALiBi
    "bloom": [("", 8, 8, 8, 8, D8, CAUSAL)],
    "mpt": [("", 16, 16, 128, 128, D128, CAUSAL)],
    # Encoders
    "bert": [("", 12, 12, 64, 64, D64, FULL)],
    "roberta": [("", 12, 12, 64, 64, D64, FULL)],
    "distilbert": [("", 12, 12, 64, 64, D64, FULL)],
    "electra": [("", 4, 4, 64, 64, D64, FULL)],
    "eurobert": [("", 12, 12, 64, 64, D64, FULL)],
    "modernbert": [("full", 12, 12, 64, 64, D64, FULL), ("sliding", 12, 12, 64, 64, D64, sides(64, 64))],
    "vit": [("", 12, 12, 64, 64, D64, FULL)],
    "dinov2": [("", 12, 12, 64, 64, D64, FULL)],
    "wav2vec2": [("", 12, 12, 64, 64, D64, FULL)],
    "siglip_vision_model": [("", 12, 12, 64, 64, D64, FULL)],
    # Encoders with decoders
    "whisper": [
        *[("encoder", 6, 6, 64, 64, D64, FULL), ("decoder", 6, 6, 64, 64, D64, CAUSAL)],
        ("cross", 6, 6, 64, 64, D64, FULL),
    ],
    "bart": [
        *[("encoder", 16, 16, 64, 64, D64, FULL), ("decoder", 16, 16, 64, 64, D64, CAUSAL)],
        ("cross", 16, 16, 64, 64, D64, FULL),
    ],
    # Models of several
    "clip": [("text", 8, 8, 64, 64, D64, CAUSAL), ("vision", 12, 12, 64, 64, D64, FULL)],
    "siglip": [("text", 12, 12, 64, 64, D64, FULL), ("vision", 12, 12, 64, 64, D64, FULL)],
    "llava": [("", 32, 32, 128, 128, D128, CAUSAL), ("vision", 16, 16, 64, 64, D64, FULL)],
    "paligemma": [("", 8, 1, 256, 256, 0.0625, PREFIX), ("vision", 16, 16, 72, 72, D72, FULL)],
    "gemma3": [
        *[("sliding", 8, 4, 256, 256, 0.0625, window(4096)), ("full", 8, 4, 256, 256, 0.0625, CAUSAL)],
        ("vision", 12, 12, 64, 64, D64, FULL),
    ],
}

# (query heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, scale)
LATENT = {
    "deepseek_v2": (32, 512, 128, 64, 128, D192),
    "deepseek_v3": (128, 512, 128, 64, 128, D192),
    "glm4_moe_lite": (20, 512, 192, 64, 256, 0.0625),
    "longcat_flash": (64, 512, 128, 64, 128, D192),
    "minicpm3": (40, 256, 64, 32, 64, D96),
    "youtu": (16, 512, 128, 64, 128, D192),
}
ENCODERS = {
    *("bert", "roberta", "distilbert", "electra", "eurobert", "modernbert", "vit", "dinov2", "wav2vec2"),
    *("siglip_vision_model", "clip", "siglip"),
}
LEFT_OUT = {
    "gemma3n": ["audio_config", "vision_config"],
    "internvl": ["vision_config"],
    "llama4": ["vision_config"],
    "mistral3": ["vision_config"],
    "qwen2_vl": ["vision_config"],
}
# The key that the reason names.
REFUSED = {
    "bamba": "linear_attention",
    "deepseek_v32": "index_topk",
    "deberta-v2": "model_type",
    "glm4_moe": "hidden_size",
    "longformer": "model_type",
    "mamba2": "model_type",
    "mllama": "text_config",
    "mpnet": "model_type",
    "pixtral": "model_type",
    "t5": "relative_attention_num_buckets",
    "xlnet": "model_type",
}


def written(model_type: str) -> dict[str, Any]:
    """The default configuration of a class as ``save_pretrained`` writes it to ``config.json``."""
    config: dict[str, Any] = json.loads(CONFIG_MAPPING[model_type]().to_json_string())
    return config


def attention(layer: Any) -> Any:
    """The layer as its spec file says it."""
    return load_text(spec_text(layer, "layer"), "layer.yaml", ungenerated="allowed").spec.attention


def test_enough_classes_are_covered() -> None:
    assert len({*GROUPED, *LATENT, *REFUSED}) >= 30


@pytest.mark.parametrize("model_type", GROUPED)
def test_a_default_configuration_gives_the_layers_of_the_model(model_type: str) -> None:
    found = import_config(written(model_type), "bfloat16")
    assert not found.left_out
    layers = [(layer.suffix, attention(layer)) for layer in found.layers]
    told = [
        (
            suffix,
            a.num_qo_heads,
            a.num_kv_heads,
            a.head_dim_qk,
            a.head_dim_v,
            round(a.sm_scale, 10),
            a.mask.model_dump(),
        )
        for suffix, a in layers
    ]
    assert told == GROUPED[model_type]
    assert {layer.decodes for layer in found.layers if layer.suffix not in ("vision", "encoder")} <= {
        model_type not in ENCODERS
    }
    assert not any(layer.decodes for layer in found.layers if layer.suffix in ("vision", "encoder"))
    sinks = {"gpt_oss": {"sliding", "full"}, "mimo_v2_flash": {"sliding"}}.get(model_type, set())
    assert {suffix for suffix, a in layers if a.sinks} == sinks
    assert {a.logits_soft_cap for _, a in layers} == ({50.0} if model_type == "gemma2" else {None})
    assert {a.alibi for _, a in layers} == {model_type in ("bloom", "mpt")}


@pytest.mark.parametrize("model_type", LATENT)
def test_a_default_configuration_gives_the_latent_layer_of_the_model(model_type: str) -> None:
    (layer,) = import_config(written(model_type), "bfloat16").layers
    a = attention(layer)
    told = (a.num_qo_heads, a.kv_lora_rank, a.qk_nope_head_dim, a.qk_rope_head_dim, a.v_head_dim, round(a.sm_scale, 10))
    assert told == LATENT[model_type]
    assert a.mask.kind == "causal"


@pytest.mark.parametrize("model_type", LEFT_OUT)
def test_a_part_that_kgen_does_not_know_is_left_out(model_type: str) -> None:
    found = import_config(written(model_type), "bfloat16")
    assert [part.part for part in found.left_out] == LEFT_OUT[model_type]
    assert all("model_type" in part.reason for part in found.left_out)
    assert all(layer.source in ("text_config", "") for layer in found.layers)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_default_configuration_is_refused_by_its_reason(model_type: str) -> None:
    with pytest.raises(RefusedError) as refused:
        import_config(written(model_type), "bfloat16")
    assert REFUSED[model_type] in refused.value.problem.message


@pytest.mark.parametrize("model_type", [name for name in defaults() if name != "kimi_k2"])
def test_the_defaults_are_those_of_the_classes(model_type: str) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[model_type])}
    assert defaults()[model_type] == {key: fields[key] for key in defaults()[model_type]}


def test_kimi_k2_has_the_defaults_of_the_code_that_it_runs() -> None:
    assert {key: value for key, value in defaults()["kimi_k2"].items() if key != "like"} == defaults()["deepseek_v3"]
