"""The JSON Schema: the committed copy, and that it agrees with the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from kgen.spec import schema
from tests.spec_helpers import VALID, changed, heads

SPECS = Path(__file__).parent.parent / "specs"
VALIDATOR = Draft202012Validator(schema.json_schema())


def is_valid(text: str) -> bool:
    return bool(VALIDATOR.is_valid(yaml.safe_load(text)))


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (SPECS / "schema.json").read_text(encoding="utf-8")
    assert committed == schema.text(), "run `kgen schema > specs/schema.json`"


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema.json_schema())


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_specs_follow_the_schema(path: Path) -> None:
    errors = [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))]
    assert errors == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{layout: bhsd}", "{}"),
        ("{layout: bhsd}", "{kind: prefill}"),
        ("prefill: {layout: bhsd}", "prefill: {kind: decode}"),
        ("prefill: {layout: bhsd}", "other: {kind: prefill}"),
        ("{num_splits: auto}", "{num_splits: 4, kv: {kind: contiguous}}"),
        ("{num_splits: auto}", "{}\n  merge_states: {}\n  packed: {kind: merge_states, layout: ragged}"),
        ("128", "128\n  head_dim_v: 64\n  sm_scale: 1"),
        ("bfloat16", "float32\nallow_tf32: true\ntargets: [sm_80]"),
    ],
)
def test_both_accept(old: str, new: str) -> None:
    text = changed(old, new)
    assert heads(text) == []
    assert is_valid(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: example\n", ""),
        ("example", "Example"),
        ("example", "class"),
        ("example", "torch"),
        ("example", "x" * 65),
        ("example", "3"),
        ("kind: grouped", "kind: groupd"),
        ("  kind: grouped\n", ""),
        ("128", "12"),
        ("128", "520"),
        ("128", "'128'"),
        ("128", "true"),
        ("heads: 8", "heads: 0"),
        ("128", "128\n  head_dim: 3"),
        ("128", "128\n  sm_scale: 0"),
        ("128", "128\n  sm_scale: null"),
        ("{kind: causal}", "causal"),
        ("{kind: causal}", "{kind: causal, size: 3}"),
        ("{kind: causal}", "{kind: sliding_window}"),
        ("{kind: causal}", "{kind: window, left: -2, right: 0}"),
        ("bfloat16", "bf16"),
        ("bfloat16", "bfloat16\ntargets: []"),
        ("bfloat16", "bfloat16\ntargets: [sm_75]"),
        ("bfloat16", "bfloat16\nallow_tf32: 1"),
        ("bfloat16", "bfloat16\nextra: 1"),
        ("{layout: bhsd}", "{layout: bhds}"),
        ("{layout: bhsd}", ""),
        ("prefill: {layout: bhsd}", "other: {layout: bhsd}"),
        ("prefill: {layout: bhsd}", "prefill: {kind: decode, layout: bhsd}"),
        ("decode:", "decode_sm90:"),
        ("decode:", "Decode:"),
        ("decode: {num_splits: auto}", "lambda: {kind: decode}"),
        ("{num_splits: auto}", "{num_splits: 0}"),
        ("{num_splits: auto}", "{num_splits: all}"),
        ("{num_splits: auto}", "{kv: {}}"),
        ("{num_splits: auto}", "{kv: {kind: paged}}"),
        ("{num_splits: auto}", "{kv: {kind: contiguous, page_size: 3}}"),
    ],
)
def test_both_refuse(old: str, new: str) -> None:
    text = changed(old, new)
    assert heads(text) != []
    assert not is_valid(text)


def test_both_refuse_a_spec_without_kernels() -> None:
    text = VALID[: VALID.index("kernels:")] + "kernels: {}\n"
    assert heads(text) == ["9:1: [KG102]: kernels is an empty mapping, must be a mapping with at least one entry"]
    assert not is_valid(text)


def test_every_field_of_the_language_is_described() -> None:
    """An editor shows the description; the tag of a union needs none, nor does the layer itself."""

    def undescribed(node: Any, path: str) -> list[str]:
        found = []
        for name, field in node.get("properties", {}).items():
            if "description" not in field and name not in ("kind", "mask", "attention") and path != "kernels":
                found.append(f"{path}.{name}")
        return found

    made = schema.json_schema()
    missing = undescribed(made, "spec")
    for name, definition in made["$defs"].items():
        missing += undescribed(definition, name)
    assert missing == []
    assert json.loads(schema.text()) == made
