"""Fields that are each valid but do not fit together (KG2xx). Every rule is tried, so all problems come at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.diagnostics import Problem, joined
from kgen.spec.cache import PagedCache
from kgen.spec.mask import WindowMask
from kgen.spec.model import (
    HEAD_DIMS,
    BackwardKernel,
    DecodeKernel,
    GroupedAttention,
    LatentAttention,
    MergeStatesKernel,
    PrefillKernel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgen.spec.model import SpecFile

# Kernels hold the scale and the cap in float32; below this they lose bits, and soon become 0.
_SMALLEST_FLOAT32 = 1.17549435e-38
_LARGEST_FLOAT32 = 3.4028234e38


def check(spec: SpecFile) -> list[Problem]:
    """Every rule that ``spec`` breaks."""
    return [problem for rule in _RULES for problem in rule(spec)]


def _heads_divide(spec: SpecFile) -> Iterator[Problem]:
    layer = spec.attention
    if not isinstance(layer, GroupedAttention) or layer.num_qo_heads % layer.num_kv_heads == 0:
        return
    heads = layer.num_qo_heads
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    below = max((n for n in divisors if n < layer.num_kv_heads), default=None)
    above = min((n for n in divisors if n > layer.num_kv_heads), default=None)
    nearest = [str(n) for n in (below, above) if n is not None]
    message = f"num_kv_heads is {layer.num_kv_heads}, which does not divide num_qo_heads ({heads})"
    yield Problem("KG201", ("attention", "num_kv_heads"), message, f"the nearest that divide it: {joined(nearest)}")


def _window_limits_something(spec: SpecFile) -> Iterator[Problem]:
    mask = spec.attention.mask
    if isinstance(mask, WindowMask) and mask.left == mask.right == -1:
        message = "a window without a limit on either side hides nothing"
        yield Problem("KG202", ("attention", "mask"), message, "write mask: {kind: full}")


def _float32_holds(spec: SpecFile) -> Iterator[Problem]:
    layer = spec.attention
    for name, value in (("sm_scale", layer.sm_scale), ("logits_soft_cap", layer.logits_soft_cap)):
        if value is not None and not _SMALLEST_FLOAT32 <= value <= _LARGEST_FLOAT32:
            message = f"{name} is {value:g}, which float32 cannot hold"
            limits = f"kernels compute scores in float32: {_SMALLEST_FLOAT32:.3g} to {_LARGEST_FLOAT32:.3g}"
            yield Problem("KG203", ("attention", name), message, limits)


def _tf32_is_for_float32(spec: SpecFile) -> Iterator[Problem]:
    if spec.allow_tf32 and spec.dtype != "float32":
        message = f"allow_tf32 says how float32 products are computed, and dtype is {spec.dtype}"
        yield Problem("KG204", ("allow_tf32",), message, "remove it")


def _targets_are_distinct(spec: SpecFile) -> Iterator[Problem]:
    for index, target in enumerate(spec.targets):
        if target in spec.targets[:index]:
            yield Problem("KG205", ("targets", index), f"target {target} is listed twice", "remove one")


def _form_is_for_latent(spec: SpecFile) -> Iterator[Problem]:
    if isinstance(spec.attention, LatentAttention):
        return
    for name, kernel in spec.kernels.items():
        if isinstance(kernel, PrefillKernel | DecodeKernel | MergeStatesKernel) and kernel.form is not None:
            message = f"form is {kernel.form}, and only latent layers have forms"
            yield Problem("KG206", ("kernels", name, "form"), message, "remove it")


def _paged_prefill_is_ragged(spec: SpecFile) -> Iterator[Problem]:
    for name, kernel in spec.kernels.items():
        if isinstance(kernel, PrefillKernel) and isinstance(kernel.kv, PagedCache) and kernel.layout != "ragged":
            message = f"kv is paged, and layout is {kernel.layout}; a paged prefill takes ragged queries"
            yield Problem("KG207", ("kernels", name, "kv", "kind"), message, "write layout: ragged")


def _padded_is_dense(spec: SpecFile) -> Iterator[Problem]:
    for name, kernel in spec.kernels.items():
        if isinstance(kernel, PrefillKernel) and kernel.padded and kernel.layout == "ragged":
            message = "padded is true, and a ragged layout has no padding"
            yield Problem("KG208", ("kernels", name, "padded"), message, "remove it, or write layout: bhsd or bshd")


def _expanded_keys_fit_a_head(spec: SpecFile) -> Iterator[Problem]:
    layer = spec.attention
    if not isinstance(layer, LatentAttention):
        return
    width = layer.qk_nope_head_dim + layer.qk_rope_head_dim
    for name, kernel in spec.kernels.items():
        if isinstance(kernel, PrefillKernel) and width not in HEAD_DIMS:
            message = f"kernel {name} is expanded: its keys are qk_nope_head_dim + qk_rope_head_dim = {width} wide"
            yield Problem("KG215", ("kernels", name), message, f"a head may be {HEAD_DIMS[-1]} wide at most", at="key")


def _query_tokens_are_causal(spec: SpecFile) -> Iterator[Problem]:
    for name, kernel in spec.kernels.items():
        if isinstance(kernel, DecodeKernel) and kernel.q_len > 1 and spec.attention.mask.kind == "full":
            message = f"q_len is {kernel.q_len}: the new tokens are causal among themselves, and the mask is full"
            yield Problem("KG209", ("kernels", name, "q_len"), message, "write mask: {kind: causal}, or q_len: 1")


def _backward_has_a_prefill(spec: SpecFile) -> Iterator[Problem]:
    prefills = {name: k for name, k in spec.kernels.items() if isinstance(k, PrefillKernel)}
    for name, kernel in spec.kernels.items():
        if not isinstance(kernel, BackwardKernel):
            continue
        if not prefills:
            message = f"kernel {name} has no prefill kernel in this spec to be the gradient of"
            yield Problem("KG210", ("kernels", name), message, "add prefill: {} to kernels", at="key")
        elif len(prefills) > 1 and "prefill" not in prefills:
            message = f"kernel {name} could be the gradient of {joined(tuple(prefills))}"
            yield Problem("KG211", ("kernels", name), message, "name one of them prefill", at="key")
        else:
            prefill = "prefill" if "prefill" in prefills else next(iter(prefills))
            if isinstance(prefills[prefill].kv, PagedCache):
                message = f"kernel {name} would be the gradient of {prefill}, whose cache is paged"
                yield Problem("KG212", ("kernels", name), message, "give prefill a contiguous cache", at="key")


def _merged_parts_have_no_sink(spec: SpecFile) -> Iterator[Problem]:
    for name, kernel in spec.kernels.items():
        if isinstance(kernel, MergeStatesKernel) and spec.attention.sinks:
            message = f"kernel {name} merges parts, each of whose LSE counts the sink: it would be counted once a part"
            yield Problem("KG214", ("kernels", name), message, "merge parts of a layer without sinks", at="key")


_RULES = (
    _heads_divide,
    _window_limits_something,
    _float32_holds,
    _tf32_is_for_float32,
    _targets_are_distinct,
    _form_is_for_latent,
    _paged_prefill_is_ragged,
    _padded_is_dense,
    _expanded_keys_fit_a_head,
    _query_tokens_are_causal,
    _backward_has_a_prefill,
    _merged_parts_have_no_sink,
)
