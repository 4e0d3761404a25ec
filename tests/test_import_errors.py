"""What ``kgen import`` refuses: one reason a file, at its key, and nothing written."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.errors import SpecError
from kgen.models.huggingface import RefusedError, import_config, read, spec_text
from kgen.spec.loader import load_text
from tests.import_support import MISTRAL, config, kgen, mla, put
from tests.test_import import PUBLISHED

GPT2 = {"model_type": "gpt2", "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}
BASE = {"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096, "torch_dtype": "bfloat16"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in BASE.items() if key not in keys}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "error[KG501]: the file is not JSON"),
        ("{model_type: llama}", "bad.json:1:2: error[KG501]: the file is not JSON"),
        ("[1, 2]", "error[KG501]: the file is JSON and holds no object"),
        ('{"a": 1, "a": 2}', "error[KG501]: key a is there twice"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "error[KG501]: objects and lists are nested more than 64 deep"),
        ('{"a": ' + "9" * 5000 + "}", "error[KG501]"),
        ('{"a": "' + "x" * 9_000_000 + '"}', "error[KG501]: the file has more than 8,388,608 bytes"),
        (without("model_type"), "error[KG503]: model_type is missing"),
        ({**BASE, "model_type": ["llama"]}, "error[KG502]: model_type must be a name"),
        ({**BASE, "model_type": "lama"}, "error[KG504]: model_type is lama, whose attention kgen does not know"),
        ({**BASE, "model_type": "\x1b[31m"}, "model_type is \\x1b[31m"),
        (without("num_attention_heads"), "error[KG503]: num_attention_heads is missing"),
        (without("hidden_size"), "error[KG503]: hidden_size is missing"),
        (without("torch_dtype"), "error[KG503]: neither torch_dtype nor dtype"),
        ({**BASE, "torch_dtype": "float8_e4m3fn"}, "error[KG502]: torch_dtype is float8_e4m3fn"),
        ({**BASE, "num_attention_heads": -32}, "bad.json:3:3: error[KG502]: num_attention_heads is -32"),
        ({**BASE, "num_attention_heads": "32"}, 'error[KG502]: num_attention_heads is "32", expected a whole number'),
        ({**BASE, "num_attention_heads": True}, "error[KG502]: num_attention_heads is true"),
        ({**BASE, "num_attention_heads": 32.5}, "error[KG502]: num_attention_heads is 32.5"),
        ({**BASE, "num_attention_heads": 10**6}, "error[KG502]: num_attention_heads is 1000000, expected <= 4,096"),
        ({**BASE, "num_attention_heads": [32, 16]}, "error[KG502]: num_attention_heads is a list of 2"),
        ({**BASE, "num_attention_heads": 31}, "KG502]: hidden_size 4096 is not a multiple of num_attention_heads 31"),
        ({**BASE, "num_key_value_heads": 5}, "KG502]: num_key_value_heads 5 does not divide num_attention_heads 32"),
        ({**BASE, "num_key_value_heads": 64}, "error[KG502]: num_key_value_heads 64 does not divide"),
        ({**BASE, "head_dim": 100}, "error[KG505]: head_dim 100 gives head_dim_qk 100"),
        ({**BASE, "head_dim": 1024}, "error[KG505]: head_dim 1024 gives head_dim_qk 1024"),
        # Keys that this model type does not have, and that change attention in others
        ({**BASE, "sliding_window": 4096}, "error[KG505]: sliding_window is 4096, which kgen does not know"),
        ({**BASE, "attn_logit_softcapping": 50.0}, "error[KG505]: attn_logit_softcapping is 50.0"),
        ({**BASE, "my_attention_window": 3}, "error[KG505]: my_attention_window is 3"),
        ({**BASE, "layer_types": ["full_attention"]}, "error[KG505]: layer_types is a list of 1"),
        ({**BASE, "is_causal": False}, "error[KG505]: is_causal is false"),
        (config("gemma2", 8, 4, 2304, num_hidden_layers=10**9), "error[KG502]: num_hidden_layers is 1000000000"),
        (config("gemma2", 8, 4, 2304, layer_types=["full_attention", {}]), "error[KG505]: layer_types[1] is {}"),
        (config("gemma2", 8, 4, 2304, layer_types=["indexed_attention"]), "layer_types[0] is indexed_attention"),
        (config("gemma2", 8, 4, 2304, layer_types=["full_attention"], num_hidden_layers=2), "lists 1 layers"),
        (config("gemma2", 8, 4, 2304, num_hidden_layers=2, sliding_window=None), "KG503]: sliding_window is missing"),
        (config("granite", 8, 4, 2304, attention_multiplier=10**400), "error[KG502]: attention_multiplier is 1"),
        (config("granite", 8, 4, 2304, attention_multiplier=1e-50), "error[KG203]: sm_scale is 1e-50"),
        (config("bert", 12, None, 768, position_embedding_type="relative_key"), "KG505]: position_embedding_type"),
        (config("bert", 12, 4, 768), "error[KG505]: num_key_value_heads 4"),
        (config("stablelm", 32, 32, 2560, head_dim=64), "error[KG505]: head_dim 64, and stablelm has heads of"),
        (config("t5", 8, None, 512, relative_attention_num_buckets=32), "KG505]: relative_attention_num_buckets: "),
        (mla("deepseek_v3", 8, 512, 512, 64, 128), "error[KG215]"),
        (mla("deepseek_v3", 8, 512, 128, 64, 128, rope_scaling={"type": "yarn", "mscale_all_dim": 1.0}), "[KG503]"),
        (mla("deepseek_v32", 8, 512, 128, 64, 128, index_topk=2048), "error[KG505]: index_topk: an indexer picks"),
        ({"model_type": "llava", "text_config": 3, "torch_dtype": "float16"}, "error[KG502]: text_config is 3"),
        ({"model_type": "llava", "torch_dtype": "float16"}, "error[KG503]: text_config is missing"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True},
         "error[KG505]: scale_attn_by_inverse_layer_idx is true"),
        ({"model_type": "mpt", "n_heads": 16, "d_model": 2048, "dtype": "float32", "attn_config": {"alibi": False}},
         "error[KG505]: alibi is false"),
        ({"model_type": "bloom", "n_head": 16, "num_attention_heads": 8, "hidden_size": 1024, "dtype": "float32"},
         "error[KG502]: num_attention_heads is 8, and n_head is 16"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_told_once(folder: Path, text: object, expected: str) -> None:
    # A good file beside it is not written either.
    found = kgen("import", put("good.json", MISTRAL), put("bad.json", text))
    assert (found.exit_code, found.stdout) == (2, "")
    assert expected in found.stderr
    assert found.stderr.count("error[KG") == 1
    assert "\x1b" not in found.stderr
    assert not Path("specs").exists()


def test_files_that_are_not_there(folder: Path) -> None:
    Path("models").mkdir()
    Path("latin.json").write_bytes(b'{"model_type": "ll\xe4ma"}')
    for path, reason in (
        ("none.json", "no such file"),
        ("models", "expected a config.json"),
        ("latin.json", "not UTF-8"),
    ):
        found = kgen("import", path)
        assert found.exit_code == 2
        assert reason in found.stderr
    assert kgen("import").exit_code == 2


def test_the_faults_of_all_files_come_at_once_as_json_too(folder: Path) -> None:
    found = kgen("import", put("a.json", {**BASE, "head_dim": 9}), put("b.json", "["), "--format", "json")
    assert [(row["path"], row["code"]) for row in json.loads(found.stdout)["errors"]] == [
        ("a.json", "KG505"),
        ("b.json", "KG501"),
    ]


HOSTILE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just([{}]),
    st.integers(min_value=10**20, max_value=10**400), st.lists(st.integers(), max_size=3),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_value_of_any_key_is_a_fault_of_kgen(data: st.DataObject) -> None:
    facts = copy.deepcopy(data.draw(st.sampled_from([facts for _, _, facts in PUBLISHED])))
    inner = facts.get("text_config", facts)
    key = data.draw(st.sampled_from([*inner, "rope_scaling", "per_layer_config", "layer_types", "attention_types"]))
    inner[key] = data.draw(HOSTILE)
    try:
        document = read(json.dumps(facts).encode(), "x.json")
        for layer in import_config(document.data).layers:
            load_text(spec_text(layer, "x"), "x.yaml", ungenerated="allowed")
    except RefusedError as refusal:
        told = document.diagnostic(refusal.problem).text()
    except SpecError as error:  # told at the line of the spec
        told = str(error)
    else:
        return
    assert "error[KG" in told


def test_places_in_a_file() -> None:
    text = '{"a": [{"b": 1}, "x\\"}"],\n "text_config": {"b": 2,\n  "head_dim": 9}}'
    document = read(text.encode(), "x.json")
    with pytest.raises(RefusedError) as refused:
        import_config({**BASE, "head_dim": 9})
    shown = document.diagnostic(replace(refused.value.problem, loc=("text_config", "head_dim")))
    assert (shown.line, shown.column, shown.length) == (3, 3, len('"head_dim"'))
