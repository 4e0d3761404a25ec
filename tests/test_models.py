"""Attention layers of published models (data/models.json): each builds, or is refused by the name of what is missing.

``pytest -m models`` also runs every distinct layer in the interpreter; a few of them run always.
"""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from kgen.errors import SpecError
from kgen.plan.lower import lower
from kgen.project import project
from kgen.spec.loader import LoadedSpec, load_text
from kgen.spec.model import TARGETS
from kgen.verify.run import cases, check_case
from tests.verify_support import generate

LAYERS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data/models.json").read_text())["layers"]

# Facts of a layer that kgen does not generate yet, and how the refusal names them.
NOT_YET = {"sinks": "attention sinks", "logits_soft_cap": "soft cap of the logits", "alibi": "ALiBi"}
CHUNKED = "chunked mask"

# Windows are verified at a size that short requests reach, layers with few KV heads: the rest is more of the same.
WINDOW, KV_HEADS = 37, 2
CASES = {
    "prefill": ("every head", "tile + 1", "window over tiles", "beacons"),
    "decode": ("lengths", "lengths, 3 splits", "window, 3 splits", "beacons"),
    "paged": ("lengths", "page edges", "shared pages", "window, 3 splits"),
}
SAMPLE = ("qwen2-0.5b", "phi-3-mini-4k", "mimo-v2-flash-full", "minicpm3-4b")


def load(attention: dict[str, Any]) -> LoadedSpec:
    """The layer with prefill, and decode from a contiguous and a paged cache, for every target."""
    kernels = {
        "prefill": {},
        "decode": {},
        "paged": {"kind": "decode", "kv": {"kind": "paged", "page_size": 16}},
    }
    document = {"name": "layer", "attention": attention, "dtype": "bfloat16", "kernels": kernels}
    return load_text(yaml.safe_dump(document), "layer.yaml")


def missing(attention: dict[str, Any]) -> list[str]:
    """What kgen does not generate of a layer, as the refusal names it."""
    names = [name for field, name in NOT_YET.items() if field in attention]
    names += [CHUNKED] * (attention["mask"]["kind"] == "chunked")
    return sorted(names)


def distinct() -> dict[str, dict[str, Any]]:
    """Generated layers that differ in more than KV heads or the size of a window, by the first model of each."""
    found: dict[str, dict[str, Any]] = {}
    for layer in LAYERS:
        attention = copy.deepcopy(layer["attention"])
        if missing(attention):
            continue
        if attention["kind"] == "grouped":
            group = attention["num_qo_heads"] // attention["num_kv_heads"]
            attention["num_kv_heads"] = min(KV_HEADS, attention["num_kv_heads"])
            attention["num_qo_heads"] = group * attention["num_kv_heads"]
        if "size" in attention["mask"]:
            attention["mask"]["size"] = WINDOW
        if attention not in found.values():
            found[layer["model"]] = attention
    return found


def ids(layers: list[dict[str, Any]]) -> list[str]:
    return [layer["model"] for layer in layers]


def verify(attention: dict[str, Any], tmp_path: Path) -> None:
    """Short cases of each kernel, in clean and poisoned memory, against the reference."""
    loaded, device = load(attention), torch.device("cpu")
    for kernel, module in generate(loaded, tmp_path).items():
        chosen = [case for case in cases(loaded.spec, kernel, module, device) if case.name in CASES[kernel]]
        assert len(chosen) >= 3
        for number, case in enumerate(chosen):
            result = check_case(loaded.spec, kernel, module, case, device, number)
            assert result.passed, f"{kernel}, {case.name} ({case.shape}): {result.message}"


@pytest.mark.parametrize("layer", LAYERS, ids=ids(LAYERS))
def test_a_layer_builds_for_every_target_or_is_refused_by_what_is_missing(layer: dict[str, Any]) -> None:
    attention = layer["attention"]
    expected = missing(attention)
    if expected:
        with pytest.raises(SpecError) as refused:
            load(attention)
        named = [problem.message.removeprefix("not generated yet: ") for problem in refused.value.diagnostics]
        assert sorted(named) == expected
        return
    loaded = load(attention)
    for plan in lower(loaded):
        assert tuple(target for target, _ in plan.launch) == TARGETS
    sources = project([loaded])
    files = {f"layer/{name}.py" for name in ("__init__", "prefill", "decode", "paged")}
    assert files <= set(sources) <= files | {"layer/prefill_sm90.py"}
    for source in sources.values():
        ast.parse(source)


def test_the_table_of_models_is_whole() -> None:
    assert len({layer["model"] for layer in LAYERS}) == len(LAYERS) >= 87
    assert all(layer["source"] for layer in LAYERS)
    assert set(SAMPLE) <= set(distinct())


@pytest.mark.models
@pytest.mark.parametrize("model", distinct())
def test_a_distinct_layer_is_right(model: str, tmp_path: Path) -> None:
    verify(distinct()[model], tmp_path)


@pytest.mark.parametrize("model", SAMPLE)
def test_a_sample_of_the_layers_is_right(model: str, tmp_path: Path) -> None:
    verify(distinct()[model], tmp_path)
