"""Fields that do not fit together, and features that are not generated yet: each with its exact place."""

# ruff: noqa: E501 (tables, a case a line)

from __future__ import annotations

import pytest

from kgen.plan import features
from kgen.spec import rules
from kgen.spec.model import SpecFile
from tests.spec_helpers import changed, full, heads, load

LATENT = """\
name: mla
attention:
  kind: latent
  num_qo_heads: 16
  kv_lora_rank: 512
  qk_nope_head_dim: 128
  qk_rope_head_dim: 64
  v_head_dim: 128
  mask: {kind: causal}
dtype: bfloat16
kernels:
  prefill: {}
  decode: {}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("heads: 8", "heads: 7", ["5:17: [KG201]: num_kv_heads is 7, which does not divide num_qo_heads (32)"]),
        ("heads: 8", "heads: 33", ["5:17: [KG201]: num_kv_heads is 33, which does not divide num_qo_heads (32)"]),
        ("{kind: causal}", "{kind: window, left: -1, right: -1}", ["7:3: [KG202]: a window without a limit on either side hides nothing"]),
        ("128", "128\n  sm_scale: 1.0e-40", ["7:13: [KG203]: sm_scale is 1e-40, which float32 cannot hold"]),
        ("bfloat16", "bfloat16\nallow_tf32: true", ["9:13: [KG204]: allow_tf32 says how float32 products are computed, and dtype is bfloat16"]),
        ("bfloat16", "bfloat16\ntargets: [sm_90, sm_80, sm_90]", ["9:25: [KG205]: target sm_90 is listed twice"]),
        ("{num_splits: auto}", "{form: absorbed}", ["11:18: [KG206]: form is absorbed, and only latent layers have forms"]),
        ("{layout: bhsd}", "{form: expanded}", ["10:19: [KG206]: form is expanded, and only latent layers have forms"]),
        ("{layout: bhsd}", "{kv: {kind: paged, page_size: 3}}", ["10:24: [KG207]: kv is paged, and layout is bhsd; a paged prefill takes ragged queries"]),
        ("{layout: bhsd}", "{layout: ragged, padded: true}", ["10:37: [KG208]: padded is true, and a ragged layout has no padding"]),
        ("{num_splits: auto}", "{}\n  merge_states: {form: absorbed}", ["12:24: [KG206]: form is absorbed, and only latent layers have forms"]),
        ("prefill: {layout: bhsd}", "backward: {}", ["10:3: [KG210]: kernel backward has no prefill kernel in this spec to be the gradient of", "10:3: [KG315]: not generated yet: backward"]),
        ("prefill: {layout: bhsd}", "a: {kind: prefill}\n  b: {kind: prefill}\n  backward: {}", ["12:3: [KG211]: kernel backward could be the gradient of a or b", "12:3: [KG315]: not generated yet: backward"]),
        ("prefill: {layout: bhsd}", "a: {kind: prefill}\n  prefill: {}\n  backward: {}", ["12:3: [KG315]: not generated yet: backward"]),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_together(old: str, new: str, expected: list[str]) -> None:
    assert heads(changed(old, new)) == expected


def test_several_query_tokens_are_causal() -> None:
    text = changed("{kind: causal}", "{kind: full}").replace("num_splits: auto", "q_len: 4")
    assert (
        heads(text)[0] == "11:19: [KG209]: q_len is 4: the new tokens are causal among themselves, and the mask is full"
    )


def test_a_gradient_of_a_paged_prefill() -> None:
    text = changed("{layout: bhsd}", "{layout: ragged, kv: {kind: paged, page_size: 16}}") + "  backward: {}\n"
    assert "12:3: [KG212]: kernel backward would be the gradient of prefill, whose cache is paged" in heads(text)


def test_parts_that_count_a_sink_each_are_not_merged() -> None:
    text = changed("{num_splits: auto}", "{}\n  total: {kind: merge_states}").replace("128\n", "128\n  sinks: true\n")
    assert heads(text) == [
        "7:10: [KG306]: not generated yet: attention sinks",
        "13:3: [KG214]: kernel total merges parts, each of whose LSE counts the sink: it would be counted once a part",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{kind: causal}", "{kind: chunked, size: 8192}", ["7:16: [KG303]: not generated yet: chunked mask"]),
        ("{kind: causal}", "{kind: prefix_lm}", ["7:16: [KG304]: not generated yet: prefix-LM mask"]),
        ("{kind: causal}", '{kind: expression, visible: "q_pos >= kv_pos"}', ["7:16: [KG305]: not generated yet: masks by expression"]),
        ("128", "128\n  sinks: true", ["7:10: [KG306]: not generated yet: attention sinks"]),
        ("128", "128\n  logits_soft_cap: 50.0", ["7:20: [KG307]: not generated yet: soft cap of the logits"]),
        ("128", "128\n  alibi: true", ["7:10: [KG308]: not generated yet: ALiBi"]),
        ("num_splits: auto", "q_len: 2", ["11:19: [KG314]: not generated yet: several query tokens a request"]),
        ("{num_splits: auto}", "{num_splits: auto}\n  backward: {}", ["12:3: [KG315]: not generated yet: backward"]),
    ],
)  # fmt: skip
def test_features_that_are_not_generated_yet(old: str, new: str, expected: list[str]) -> None:
    assert heads(changed(old, new)) == expected


def test_a_latent_layer_is_generated_expanded_and_absorbed() -> None:
    assert heads(LATENT) == []
    assert heads(changed("128", "128\n  head_dim_pe: 64")) == []


def test_an_expanded_key_is_as_wide_as_a_head_may_be_at_most() -> None:
    text = LATENT.replace("  decode: {}\n", "").replace("nope_head_dim: 128", "nope_head_dim: 448")
    assert heads(text) == []
    wide = text.replace("nope_head_dim: 448", "nope_head_dim: 456")
    message = "kernel prefill is expanded: its keys are qk_nope_head_dim + qk_rope_head_dim = 520 wide"
    assert heads(wide) == [f"12:3: [KG215]: {message}"]
    assert "a head may be 512 wide at most" in full(wide)
    # The absorbed form has no such key.
    assert not any("KG215" in line for line in heads(wide.replace("prefill: {}", "decode: {}")))


def test_kernels_of_a_latent_layer_have_the_form_of_their_kind() -> None:
    data = {"prefill": {"form": None}, "decode": {}, "long": {"kind": "decode"}, "merge_states": {}}
    layer = {
        "kind": "latent",
        "num_qo_heads": 16,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mask": {"kind": "causal"},
    }
    spec = SpecFile.model_validate({"name": "mla", "attention": layer, "dtype": "bfloat16", "kernels": data})
    forms = {name: kernel.model_dump()["form"] for name, kernel in spec.kernels.items()}
    assert forms == {"prefill": "expanded", "decode": "absorbed", "long": "absorbed", "merge_states": "absorbed"}
    assert rules.check(spec) == []


@pytest.mark.parametrize(
    "change",
    [
        ("heads: 8", "heads: 1"),
        ("heads: 8", "heads: 32"),
        ("128", "72"),
        ("128", "192\n  head_dim_v: 128"),
        ("128", "128\n  sm_scale: 1"),
        ("128", "128\n  sinks: false\n  alibi: false\n  logits_soft_cap: null\n  head_dim_pe: null"),
        ("{kind: causal}", "{kind: full}"),
        ("{kind: causal}", "{kind: sliding_window, size: 1}"),
        ("{kind: causal}", "{kind: window, left: -1, right: 0}"),
        ("{kind: causal}", "{kind: window, left: 0, right: 3}"),
        ("bfloat16", "float16"),
        ("bfloat16", "float32\nallow_tf32: true"),
        ("bfloat16", "bfloat16\ntargets: [gfx942]"),
        ("{num_splits: auto}", "{num_splits: 1}\n  decode_long: {kind: decode, num_splits: 64}"),
        ("{num_splits: auto}", "{kv: {kind: contiguous}}"),
        ("{num_splits: auto}", "{kv: {kind: paged, page_size: 17}}"),
        ("{layout: bhsd}", "{layout: ragged, kv: {kind: paged, page_size: 1}}"),
        ("{num_splits: auto}", "{}"),
        ("{num_splits: auto}", "{}\n  merge_states: {}"),
        ("{num_splits: auto}", "{}\n  merge: {kind: merge_states, layout: ragged, form: null}"),
    ],
)
def test_what_is_generated_loads(change: tuple[str, str]) -> None:
    assert heads(changed(*change)) == []


def test_every_row_of_the_table_is_used_by_some_spec() -> None:
    """A row whose test never fires would refuse, or promise, nothing."""
    loaded = load(changed("head_dim_qk: 128", "head_dim_qk: 192\n  head_dim_v: 128")).spec
    paged = load(changed("num_splits: auto", "kv: {kind: paged, page_size: 16}")).spec
    masks = [{"kind": "full"}, {"kind": "sliding_window", "size": 4}, {"kind": "window", "left": 1, "right": 1}]
    data = loaded.model_dump()
    specs = [loaded, paged] + [
        SpecFile.model_validate(data | {"attention": data["attention"] | {"mask": m}}) for m in masks
    ]
    specs.append(SpecFile.model_validate(data | {"kernels": {"merge_states": {}}}))
    prefills: list[dict[str, object]] = [{"layout": "bshd"}, {"layout": "ragged"}, {"padded": True}]
    prefills.append({"layout": "ragged", "kv": {"kind": "paged", "page_size": 16}})
    specs += [SpecFile.model_validate(data | {"kernels": {"prefill": prefill}}) for prefill in prefills]
    rotary = data["attention"] | {"head_dim_pe": 64}
    specs.append(SpecFile.model_validate(data | {"attention": rotary}))
    specs.append(load(LATENT).spec)
    unused = [row.name for row in features.GENERATED if not any(list(row.uses(spec)) for spec in specs)]
    assert unused == []


def test_the_table_has_a_row_a_feature_and_unique_codes() -> None:
    rows = features.table().splitlines()
    assert rows[:2] == ["| feature | in a spec | generated |", "|---|---|---|"]
    assert "| causal mask | `mask: {kind: causal}` | yes |" in rows
    assert "| chunked mask | `mask: {kind: chunked, size: …}` | not yet |" in rows
    codes = [row.code for row in (*features.GENERATED, *features.NOT_YET)]
    assert len(rows) == 2 + len(codes) == 2 + len(set(codes))
    assert all(row.count("|") == 4 for row in rows)
