"""What each ``model_type`` means: one table, by the modelling code in ``transformers``.

A model type is added by an entry here and its defaults in ``defaults.json``; a meaning that no rule has yet is one
more function of ``rules.py`` or ``kinds.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgen.models.huggingface import kinds, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgen.models.huggingface.facts import Fact, Level


@dataclass(frozen=True)
class Family:
    """Layers of self-attention with queries, keys and values of their own. ``width`` and ``heads`` are keys, the
    first name first; an encoder has no cache to decode from; keys ``outside`` change what surrounds the kernel."""

    width: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: Callable[[Level, Fact, str], Fact] = rules.kv_heads
    head_dim: Callable[[Level, Sequence[str], Fact, str], Fact] = rules.head_dim
    has_v_head_dim: bool = False
    scale: Callable[[Level], Fact | None] = rules.default_scale
    kinds: kinds.Rule = kinds.every
    mask: Callable[[Level, str], Fact] = rules.causal_mask
    extras: Callable[[Level, str], dict[str, Fact]] = rules.nothing
    decodes: bool = True
    outside: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Latent:
    """MLA."""

    note: str = ""


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder, and a decoder that attends to itself and to the encoder."""

    width: str = "d_model"


@dataclass(frozen=True)
class Composite:
    """A model of several: a text model, and perhaps an encoder of images, each an object of the file.

    ``text`` and ``vision`` are the model types where the objects do not say theirs. ``flat``: older files have the
    keys of the text model beside ``vision_config``.
    """

    text: str
    vision: str = ""
    flat: bool = False
    mask: dict[str, str] | None = None
    note: str = ""


@dataclass(frozen=True)
class Unsupported:
    """A model type that kgen knows and whose attention a spec cannot say: why, and the key that shows it."""

    why: str
    key: str = "model_type"


Entry = Family | Latent | EncoderDecoder | Composite | Unsupported

_DECODER = Family()
_MHA = Family(kv_heads=rules.mha, head_dim=rules.divided)
_WINDOW = Family(kinds=kinds.windowed)
_QWEN2 = Family(kinds=kinds.listed_or(kinds.window_from_layer))
_GRANITE = Family(scale=rules.attention_multiplier)
_GPT = replace(_MHA, width=("n_embd", "hidden_size"), heads=("n_head", "num_attention_heads"))
_GEMMA2 = Family(
    scale=rules.query_pre_attn_scalar,
    kinds=kinds.listed_or(kinds.pattern(2)),
    mask=rules.gemma_mask,
    extras=rules.soft_cap,
)
_BERT = replace(_MHA, mask=rules.bert_mask, decodes=False)
_ENCODER = replace(_MHA, mask=rules.bidirectional_mask, decodes=False)
_HEAD_DIM_ENCODER = replace(_ENCODER, head_dim=rules.head_dim)
_LATENT = Latent()
_QWEN3_NEXT = Family(
    kinds=kinds.listed_or(kinds.mixed(4, "full_attention_interval")),
    note="The model gates the output, after the kernel.",
)
_IMAGES = "Tokens of one image also see each other in prefill, which a spec does not say; text and decode are as below."

FAMILIES: dict[str, Entry] = {
    # Causal decoders without windows
    **dict.fromkeys(
        (
            *("apertus", "arcee", "bitnet", "cohere", "ernie4_5", "ernie4_5_moe", "exaone", "flex_olmo"),
            *("glm", "glm4", "glm4_moe", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm3", "llama"),
            *("minimax_m2", "nemotron", "olmo", "olmo2", "olmoe", "phi", "qwen3_vl_text", "qwen3_vl_moe_text"),
            "seed_oss",
        ),
        _DECODER,
    ),
    "stablelm": Family(head_dim=rules.divided),
    **dict.fromkeys(("biogpt", "gpt_neox", "opt", "persimmon"), _MHA),
    **dict.fromkeys(("codegen", "gptj"), _GPT),
    "gpt2": replace(_GPT, scale=rules.scale_attn_weights),
    "gpt_bigcode": replace(_GPT, kv_heads=rules.multi_query, scale=rules.scale_attn_weights),
    "xglm": replace(_MHA, width=("d_model",), heads=("attention_heads",)),
    "dbrx": Family(("d_model",), ("n_heads",), rules.dbrx_kv_heads, rules.divided),
    "falcon": Family(
        ("hidden_size", "n_embed"), kv_heads=rules.falcon_kv_heads, head_dim=rules.divided, extras=rules.falcon_alibi
    ),
    "bloom": replace(
        _MHA, width=("hidden_size", "n_embed"), heads=("n_head", "num_attention_heads"), extras=rules.alibi
    ),
    "mpt": replace(_MHA, width=("d_model",), heads=("n_heads",), scale=rules.mpt_scale, extras=rules.mpt_alibi),
    "gemma": Family(mask=rules.gemma_mask),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), _GRANITE),
    "falcon_h1": Family(note="Each layer also has a Mamba branch, and keys are multiplied before the kernel."),
    # Windows of every layer
    **dict.fromkeys(("mistral", "mixtral", "phimoe", "starcoder2"), _WINDOW),
    "ministral3": replace(_WINDOW, note="Queries beyond a length are scaled, before the kernel."),
    "phi3": replace(
        _WINDOW,
        note="The window counts the query's own key, as transformers masks it; the code that Phi-3 was published with "
        "gives the number to FlashAttention, which counts the keys before: one more.",
    ),
    "qwen3_moe": Family(kinds=kinds.switched_window),
    # Windows of some layers
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text"), _QWEN2),
    "qwen2_moe": Family(kinds=kinds.listed_or(kinds.window_below_layer)),
    "dots1": Family(kinds=kinds.listed_or(kinds.window_from_layer_always)),
    "ministral": Family(kinds=kinds.listed_or(kinds.windowed)),
    "smollm3": Family(kinds=kinds.listed_or(kinds.window_without_rope)),
    "gemma2": _GEMMA2,
    "vaultgemma": replace(_GEMMA2, mask=rules.causal_mask),
    "gemma3_text": replace(
        _GEMMA2, kinds=kinds.listed_or(kinds.pattern(6, "sliding_window_pattern")), mask=rules.gemma3_mask
    ),
    "gemma3n_text": Family(scale=rules.unscaled, kinds=kinds.listed_or(kinds.pattern(5))),
    "gemma4_text": Family(
        kv_heads=rules.gemma4_kv_heads,
        head_dim=rules.gemma4_head_dim,
        scale=rules.unscaled,
        kinds=kinds.listed_or(kinds.pattern_and_last),
        mask=rules.gemma4_mask,
    ),
    "cohere2": Family(head_dim=rules.divided, kinds=kinds.listed_or(kinds.pattern(4, "sliding_window_pattern"))),
    "olmo3": Family(kinds=kinds.listed_or(kinds.pattern(4))),
    "exaone4": Family(kinds=kinds.listed_or(kinds.pattern(None, "sliding_window_pattern"))),
    "cwm": Family(kinds=kinds.listed_or(kinds.first_of(4))),
    "gpt_oss": Family(kinds=kinds.listed_or(kinds.pattern(2)), extras=rules.sinks),
    "mimo_v2_flash": Family(
        kv_heads=rules.kv_heads_doubled_in_windows,
        has_v_head_dim=True,
        kinds=kinds.listed_or(kinds.pattern_and_first),
        mask=rules.mimo_mask,
        extras=rules.sinks_in_windows,
        outside=("attention_value_scale",),
        note="The model scales values, before the kernel.",
    ),
    "gpt_neo": replace(
        _MHA, heads=("num_heads",), scale=rules.unscaled, kinds=kinds.global_and_local, mask=rules.gpt_neo_mask
    ),
    "llama4_text": Family(
        kinds=kinds.listed_or(kinds.chunks_with_rope),
        outside=("attn_scale",),
        note="Layers without rotary embedding scale queries by their position, before the kernel.",
    ),
    # Hybrids: layers of attention among others
    "jamba": Family(kinds=kinds.listed_or(kinds.period_and_offset)),
    "bamba": Family(
        kinds=kinds.listed_or(kinds.indices("attn_layer_indices", "linear_attention", missing="linear_attention"))
    ),
    "lfm2": Family(kinds=kinds.listed_or(kinds.indices("full_attn_idxs", "conv", missing=kinds.FULL))),
    "granitemoehybrid": replace(
        _GRANITE, kinds=kinds.listed_or(kinds.every, keys=("layer_types", "layers_block_type"))
    ),
    "nemotron_h": Family(kinds=kinds.listed_or(kinds.hybrid_pattern, keys=("layers_block_type", "layer_types"))),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN3_NEXT),
    "minimax": Family(kinds=kinds.listed_or(kinds.mixed(2, attends_last=False))),
    # MLA
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "minicpm3", "youtu"), _LATENT),
    "longcat_flash": Latent("The model scales queries and the latent, before the kernel."),
    # Encoders
    **dict.fromkeys(("bert", "camembert", "electra", "ernie", "esm", "roberta", "xlm-roberta"), _BERT),
    **dict.fromkeys(("data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl"), _BERT),
    "distilbert": replace(_ENCODER, width=("dim",), heads=("n_heads",)),
    "albert": _ENCODER,
    "eurobert": Family(mask=rules.bidirectional_mask, decodes=False),
    "nomic_bert": _HEAD_DIM_ENCODER,
    "modernbert": replace(
        _ENCODER,
        kinds=kinds.listed_or(kinds.first_of(3, "global_attn_every_n_layers")),
        mask=rules.modernbert_mask,
    ),
    **dict.fromkeys(("audio-spectrogram-transformer", "hubert", "videomae", "wav2vec2"), _ENCODER),
    **dict.fromkeys(("deit", "dinov2", "ijepa", "vit", "vit_mae", "vit_msn"), _HEAD_DIM_ENCODER),
    **dict.fromkeys(("clip_vision_model", "siglip_vision_model", "siglip2_vision_model"), _ENCODER),
    **dict.fromkeys(("siglip_text_model", "siglip2_text_model"), _ENCODER),
    "clip_text_model": replace(_MHA, decodes=False),
    # Encoders with decoders
    **dict.fromkeys(("bart", "m2m_100", "marian", "mbart", "pegasus", "plbart", "whisper"), EncoderDecoder()),
    # Models of several
    "clip": Composite("clip_text_model", "clip_vision_model"),
    "siglip": Composite("siglip_text_model", "siglip_vision_model"),
    "siglip2": Composite("siglip2_text_model", "siglip2_vision_model"),
    "gemma3": Composite("gemma3_text", "siglip_vision_model", note=_IMAGES),
    "gemma3n": Composite("gemma3n_text"),
    "gemma4": Composite("gemma4_text", note=_IMAGES),
    "paligemma": Composite("gemma", "siglip_vision_model", mask={"kind": "prefix_lm"}),
    **dict.fromkeys(("llava", "llava_next", "llava_next_video", "vipllava"), Composite("llama", "clip_vision_model")),
    "llava_onevision": Composite("qwen2", "siglip_vision_model"),
    "aya_vision": Composite("cohere2", "siglip_vision_model"),
    "cohere2_vision": Composite("cohere2", "siglip_vision_model"),
    "mistral3": Composite("mistral"),
    "internvl": Composite("qwen2"),
    **dict.fromkeys(("idefics3", "smolvlm", "voxtral"), Composite("llama")),
    "llama4": Composite("llama4_text"),
    "qwen2_vl": Composite("qwen2_vl_text", flat=True),
    "qwen2_5_vl": Composite("qwen2_5_vl_text", flat=True),
    "qwen3_vl": Composite("qwen3_vl_text"),
    "qwen3_vl_moe": Composite("qwen3_vl_moe_text"),
    "qwen3_5": Composite("qwen3_5_text"),
    "qwen3_5_moe": Composite("qwen3_5_moe_text"),
    "kimi_k25": Composite("deepseek_v3"),
    # Known, and not to be said in a spec
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pop2piano"),
        Unsupported(
            "scores have a learned bias by distance; of biases a spec knows ALiBi", "relative_attention_num_buckets"
        ),
    ),
    **dict.fromkeys(("mpnet",), Unsupported("scores have a learned bias by distance; of biases a spec knows ALiBi")),
    **dict.fromkeys(
        ("beit", "data2vec-vision", "swin", "swinv2", "donut-swin", "wavlm"),
        Unsupported("scores have a learned bias by position; of biases a spec knows ALiBi"),
    ),
    **dict.fromkeys(
        ("deberta", "deberta-v2", "xlnet", "funnel", "wav2vec2-conformer"),
        Unsupported("scores have terms of relative positions that a spec does not know"),
    ),
    **dict.fromkeys(
        ("longformer", "led", "big_bird", "bigbird_pegasus"), Unsupported("attention is sparse, in a way no mask says")
    ),
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa"),
        Unsupported("an indexer picks the keys of each query, which a spec does not say", "index_topk"),
    ),
    "deepseek_v4": Unsupported("layers attend to compressed keys, which a spec does not say"),
    "mllama": Unsupported("layers of cross-attention to images are not imported", "text_config"),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"), Unsupported("the model has no layers of attention")
    ),
}
