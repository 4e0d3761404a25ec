"""Files and folders of specs, digests, and what loading costs."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgen.diagnostics import Problem
from kgen.errors import InputError, SpecError
from kgen.spec.loader import digest, load_file, load_specs, load_text
from kgen.spec.model import TARGETS
from tests.spec_helpers import VALID, changed, load

SPECS = Path(__file__).parent.parent / "specs"


def test_the_values_of_a_spec_and_its_defaults() -> None:
    spec = load(VALID).spec
    assert spec.model_dump(mode="json") == {
        "name": "example",
        "attention": {
            "kind": "grouped",
            "num_qo_heads": 32,
            "num_kv_heads": 8,
            "head_dim_qk": 128,
            "head_dim_v": 128,
            "head_dim_pe": None,
            "sm_scale": 128**-0.5,
            "mask": {"kind": "causal"},
            "sinks": False,
            "logits_soft_cap": None,
            "alibi": False,
        },
        "dtype": "bfloat16",
        "allow_tf32": False,
        "targets": list(TARGETS),
        "kernels": {
            "prefill": {
                "kind": "prefill",
                "layout": "bhsd",
                "kv": {"kind": "contiguous"},
                "padded": False,
                "form": None,
            },
            "decode": {"kind": "decode", "kv": {"kind": "contiguous"}, "num_splits": "auto", "q_len": 1, "form": None},
        },
    }


def test_comments_spelling_defaults_and_the_order_of_keys_do_not_change_the_digest() -> None:
    other = """\
# the same, said otherwise
"dtype": 'bfloat16'
kernels: {decode: {kind: decode}, prefill: {kv: {kind: contiguous}, padded: false}}
attention: {mask: {kind: causal}, head_dim_v: 128, head_dim_qk: 128, num_kv_heads: 8, num_qo_heads: 32, kind: grouped}
name: example
"""
    assert load(other).digest == load(VALID).digest == digest(load(VALID).spec)
    assert len(load(VALID).digest) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("example", "exampl"),
        ("num_qo_heads: 32", "num_qo_heads: 64"),
        ("num_kv_heads: 8", "num_kv_heads: 4"),
        ("head_dim_qk: 128", "head_dim_qk: 136"),
        ("head_dim_qk: 128", "head_dim_qk: 128\n  head_dim_v: 64"),
        ("head_dim_qk: 128", "head_dim_qk: 128\n  sm_scale: 0.0883883476483184"),
        ("{kind: causal}", "{kind: full}"),
        ("bfloat16", "float16"),
        ("bfloat16", "bfloat16\ntargets: [sm_90]"),
        ("decode:", "decode_2: {kind: decode}\n  decode:"),
        ("num_splits: auto", "num_splits: 4"),
    ],
)
def test_every_field_changes_the_digest(old: str, new: str) -> None:
    assert load(changed(old, new)).digest != load(VALID).digest


def test_the_order_of_targets_counts() -> None:
    texts = [changed("bfloat16", f"bfloat16\ntargets: [{order}]") for order in ("sm_80, sm_90", "sm_90, sm_80")]
    assert len({load(text).digest for text in texts}) == 2


def test_problems_found_later_get_their_place() -> None:
    loaded = load(VALID)
    problems = [
        Problem("KG401", ("kernels", "decode"), "second"),
        Problem("KG400", ("attention", "head_dim_v"), "a default, shown at its parent", "help"),
        Problem("KG402", ("targets", 2), "not in the file"),
    ]
    found = [(d.line, d.column, d.length, d.code, d.help) for d in loaded.diagnose(problems)]
    assert found == [(1, 1, 4, "KG402", None), (2, 1, 9, "KG400", "help"), (11, 3, 6, "KG401", None)]


def test_files_and_folders(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", ".hidden.yaml", "notes.txt"):
        (tmp_path / name).write_text(changed("example", "spec_" + name.strip(".")[0]))
    (tmp_path / "sub").mkdir()
    loaded = load_specs([tmp_path / "b.yaml", tmp_path, tmp_path / "sub" / ".." / "a.yml"])
    assert [(item.display, item.spec.name) for item in loaded] == [
        (str(tmp_path / "b.yaml"), "spec_b"),
        (str(tmp_path / "a.yml"), "spec_a"),
    ]
    assert load_file(tmp_path / "b.yaml", display="specs/b.yaml").display == "specs/b.yaml"


def test_all_errors_of_all_files_come_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(changed("bfloat16", "x"))
    (tmp_path / "b.yaml").write_text(VALID)
    (tmp_path / "c.yaml").write_text(VALID)
    (tmp_path / "d.yaml").write_text("")
    with pytest.raises(SpecError) as caught:
        load_specs([tmp_path])
    found = [(Path(d.path).name, d.line, d.column, d.code) for d in caught.value.diagnostics]
    assert found == [("a.yaml", 8, 8, "KG102"), ("c.yaml", 1, 7, "KG213"), ("d.yaml", 1, 1, "KG001")]
    assert f"name example is taken by {tmp_path / 'b.yaml'}" in str(caught.value)


def test_paths_that_cannot_be_loaded_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError) as caught:
        load_specs([tmp_path / "missing", tmp_path / "empty", tmp_path / "pipe.yaml", tmp_path / "bad\x1bname"])
    assert not isinstance(caught.value, SpecError)
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/missing: no such file or folder",
        f"{tmp_path}/empty: the folder holds no spec (*.yaml or *.yml); `kgen init` writes a first one",
        f"{tmp_path}/pipe.yaml: is not a regular file",
        f"{tmp_path}/bad\\x1bname: the path holds control characters; rename it",
    ]


def test_a_folder_or_a_null_byte_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, expected a spec file"):
        load_file(tmp_path)
    with pytest.raises(InputError, match="control characters"):
        load_file(Path("a\0b"))
    with pytest.raises(InputError, match=r"x{20}: cannot be read: File name too long"):
        load_file(tmp_path / ("x" * 300))


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(SpecError, match="larger than 65,536 bytes"):
        load_file(path)


def test_the_shipped_specs_say_what_the_models_configs_say() -> None:
    rows = {}
    widths = {
        "grouped": ("num_kv_heads", "head_dim_qk", "head_dim_v"),
        "latent": ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    }
    for item in load_specs([SPECS]):
        layer = item.spec.attention.model_dump()
        shape = tuple(layer[key] for key in ("num_qo_heads", *widths[layer["kind"]]))
        rows[item.spec.name] = (*shape, layer["mask"], layer["sm_scale"], sorted(item.spec.kernels))
        assert item.path is not None
        assert item.path.stem == item.spec.name
        assert item.spec.dtype == ("float16" if item.spec.name.startswith("whisper") else "bfloat16")
    causal, both = {"kind": "causal"}, ["decode", "prefill"]
    serving = ["decode_page1", "decode_page16", "prefill_page16"]
    # DeepSeek's yarn multiplies the scale by (0.1 * mscale_all_dim * ln(factor) + 1) ** 2.
    v2_lite, v3, k2 = (
        192**-0.5 * (0.1 * m * math.log(factor) + 1) ** 2 for m, factor in ((0.707, 40), (1.0, 40), (1.0, 32))
    )
    assert rows == {
        "deepseek_v2_lite": (16, 512, 128, 64, 128, causal, v2_lite, both),
        "deepseek_v3": (128, 512, 128, 64, 128, causal, v3, ["decode", "prefill", "prefill_ragged"]),
        "falcon_7b": (71, 1, 64, 64, causal, 0.125, both),
        "gemma3_27b_full": (32, 16, 128, 128, causal, 168**-0.5, both),
        "gemma3_27b_sliding": (32, 16, 128, 128, {"kind": "sliding_window", "size": 1024}, 168**-0.5, both),
        "kimi_k2": (64, 512, 128, 64, 128, causal, k2, both),
        "llama3_405b": (128, 8, 128, 128, causal, 128**-0.5, both),
        "llama3_8b": (32, 8, 128, 128, causal, 128**-0.5, both),
        "llama3_8b_paged": (32, 8, 128, 128, causal, 128**-0.5, serving),
        "llama3_8b_prefix": (32, 8, 128, 128, {"kind": "full"}, 128**-0.5, ["merge_states", "prefix", "suffix"]),
        "minicpm3": (40, 256, 64, 32, 64, causal, 96**-0.5, both),
        "mistral_7b": (32, 8, 128, 128, {"kind": "sliding_window", "size": 4096}, 128**-0.5, both),
        "phi3_mini": (32, 32, 96, 96, {"kind": "sliding_window", "size": 2048}, 96**-0.5, both),
        "qwen2_5_7b": (28, 4, 128, 128, causal, 128**-0.5, both),
        "siglip": (16, 16, 72, 72, {"kind": "full"}, 72**-0.5, ["prefill"]),
        "whisper_large_v3_cross": (20, 20, 64, 64, {"kind": "full"}, 0.125, ["prefill"]),
    }


def test_loading_is_fast() -> None:
    load_text(VALID, "s.yaml")
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        load_text(VALID, "s.yaml")
        best = min(best, time.perf_counter() - start)
    assert best < 0.005


def test_loading_imports_neither_torch_nor_triton() -> None:
    code = "import sys, kgen.spec.loader; print(sorted({'torch', 'triton', 'numpy', 'jinja2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SPECS.parent)
    assert done.stdout.strip() == "[]"
