"""The spec of one layer type: the facts once, and the kernels to generate from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kgen.spec.base import SpecModel
from kgen.spec.cache import ContiguousCache, KVCache
from kgen.spec.mask import Mask
from kgen.spec.names import ModuleName, PackageName

DType = Literal["float16", "bfloat16", "float32"]
Target = Literal["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942"]
TARGETS: tuple[Target, ...] = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
KERNEL_KINDS = ("prefill", "decode", "backward", "merge_states")
LATENT_FORMS = {"prefill": "expanded", "decode": "absorbed", "merge_states": "absorbed"}

HEAD_DIMS = range(8, 513, 8)

Heads = Annotated[int, Field(ge=1, le=4096)]
HeadDim = Annotated[int, Field(ge=HEAD_DIMS[0], le=HEAD_DIMS[-1], multiple_of=HEAD_DIMS.step)]


def _is_head_dim(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in HEAD_DIMS


class GroupedAttention(SpecModel):
    """MHA, GQA and MQA: query heads share KV heads, nothing is compressed."""

    kind: Literal["grouped"]
    num_qo_heads: Heads = Field(description="Query (and output) heads.")
    num_kv_heads: Heads = Field(description="KV heads; divides num_qo_heads.")
    head_dim_qk: HeadDim = Field(description="Width of a query and of a key, 8 to 512, a multiple of 8.")
    head_dim_v: HeadDim = Field(default=0, validate_default=False, description="Width of a value; default head_dim_qk.")
    head_dim_pe: HeadDim | None = Field(default=None, description="Width of a separate rotary block; default none.")
    sm_scale: float = Field(
        default=0.0,
        gt=0.0,
        le=1e6,
        validate_default=False,
        description="Factor of the scores; default (head_dim_qk + head_dim_pe) ** -0.5.",
    )
    mask: Mask
    sinks: bool = Field(default=False, description="A learned logit a head joins the softmax.")
    logits_soft_cap: float | None = Field(default=None, gt=0.0, description="cap * tanh(score / cap); default none.")
    alibi: bool = Field(default=False, description="Linear position bias with slopes given as an input.")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill the defaults that follow from other fields."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        head_dim, head_dim_pe = data.get("head_dim_qk"), data.get("head_dim_pe")
        if _is_head_dim(head_dim):
            data.setdefault("head_dim_v", head_dim)
            if head_dim_pe is None or _is_head_dim(head_dim_pe):
                data.setdefault("sm_scale", float(head_dim + (head_dim_pe or 0)) ** -0.5)
        return data

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.num_kv_heads


class LatentAttention(SpecModel):
    """MLA: keys and values are projections of one latent a token, plus a shared rotary key."""

    kind: Literal["latent"]
    num_qo_heads: Heads = Field(description="Query (and output) heads.")
    kv_lora_rank: HeadDim = Field(description="Width of the cached latent.")
    qk_nope_head_dim: HeadDim = Field(description="Content width of an expanded query and key.")
    qk_rope_head_dim: HeadDim = Field(description="Rotary width of a query and of the shared key.")
    v_head_dim: HeadDim = Field(description="Width of an expanded value.")
    sm_scale: float = Field(
        default=0.0,
        gt=0.0,
        le=1e6,
        validate_default=False,
        description="Factor of the scores in both forms; default (qk_nope_head_dim + qk_rope_head_dim) ** -0.5.",
    )
    mask: Mask
    sinks: bool = Field(default=False, description="A learned logit a head joins the softmax.")
    logits_soft_cap: float | None = Field(default=None, gt=0.0, description="cap * tanh(score / cap); default none.")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """The default scale belongs to the width of an expanded key, whichever form a kernel has."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        widths = [data.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
        if all(_is_head_dim(n) for n in widths):
            data.setdefault("sm_scale", float(sum(widths)) ** -0.5)
        return data


Attention = Annotated[GroupedAttention | LatentAttention, Field(discriminator="kind")]


class PrefillKernel(SpecModel):
    """Attention of many query tokens a sequence."""

    kind: Literal["prefill"]
    layout: Literal["bhsd", "bshd", "ragged"] = Field(default="bhsd", description="Layout of the queries.")
    kv: KVCache = Field(default=ContiguousCache(kind="contiguous"), description="Where keys and values lie.")
    padded: bool = Field(default=False, description="Sequences are padded to one length; seq_lens is an input.")
    form: Literal["expanded"] | None = Field(default=None, description="The form of a latent layer.")


class DecodeKernel(SpecModel):
    """Attention of the newest token(s) of each request against its KV cache."""

    kind: Literal["decode"]
    kv: KVCache = Field(default=ContiguousCache(kind="contiguous"), description="Where keys and values lie.")
    num_splits: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        default="auto", description="Equal ranges a request is cut into; auto balances the work over the device."
    )
    q_len: int = Field(default=1, ge=1, le=16, description="Query tokens a request.")
    form: Literal["absorbed"] | None = Field(default=None, description="The form of a latent layer.")


class BackwardKernel(SpecModel):
    """Gradients of the layer's prefill kernel."""

    kind: Literal["backward"]
    deterministic: bool = Field(default=True, description="Bitwise equal gradients on every run.")


class MergeStatesKernel(SpecModel):
    """Attention over a set of keys from attention over its parts: outputs and LSE merged."""

    kind: Literal["merge_states"]
    layout: Literal["bhd", "bhsd", "bshd", "ragged"] = Field(
        default="bhd", description="Layout of the parts: bhd is what decode returns, the others what prefill does."
    )
    form: Literal["absorbed", "expanded"] | None = Field(
        default=None, description="Whose outputs a latent layer merges, kv_lora_rank or v_head_dim wide."
    )


Kernel = Annotated[
    PrefillKernel | DecodeKernel | BackwardKernel | MergeStatesKernel,
    Field(discriminator="kind"),
]


class SpecFile(SpecModel):
    """One spec file: a layer type and the kernels to generate for it."""

    name: PackageName = Field(description="Name of the generated package.")
    attention: Attention
    dtype: DType = Field(description="Type of q, k, v and out.")
    allow_tf32: bool = Field(default=False, description="float32 products may use TF32; default IEEE float32.")
    targets: tuple[Target, ...] = Field(default=TARGETS, min_length=1, description="GPUs to generate for; default all.")
    kernels: dict[ModuleName, Kernel] = Field(min_length=1, description="What to generate, by the name of its file.")

    @field_validator("targets", mode="before")
    @classmethod
    def _targets_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="before")
    @classmethod
    def _kernel_defaults(cls, data: Any) -> Any:
        """``decode: {}`` is ``decode: {kind: decode}``; a latent layer's kernels have the form of their kind."""
        if not isinstance(data, dict) or not isinstance(data.get("kernels"), dict):
            return data
        attention = data.get("attention")
        is_latent = isinstance(attention, dict) and attention.get("kind") == "latent"
        kernels = {}
        for name, kernel in data["kernels"].items():
            if isinstance(kernel, dict):
                kind = {"kind": name} if name in KERNEL_KINDS else {}
                kernel = {**kind, **kernel}
                form = LATENT_FORMS.get(kernel["kind"]) if is_latent and isinstance(kernel.get("kind"), str) else None
                if form and kernel.get("form") is None:
                    kernel["form"] = form
            kernels[name] = kernel
        return {**data, "kernels": kernels}
