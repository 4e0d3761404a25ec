"""What a build depends on: the specs, kgen's sources and templates, and nothing else. And how long it takes."""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from kgen import resources as packaged
from kgen.errors import SpecError
from kgen.project import project as project_of
from kgen.spec.loader import digest, load_text
from kgen.spec.model import SpecFile
from tests.conftest import SPEC

REPOSITORY = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of this interpreter with kgen from this checkout."""
    path = os.pathsep.join((str(REPOSITORY), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


def test_the_committed_output_is_what_the_committed_specs_generate() -> None:
    found = run("-m", "kgen", "check", "specs/", "--format", "json", cwd=REPOSITORY)
    assert json.loads(found.stdout) == {"clean": True, "fix": None, "drifts": []}


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati"},
        {"PYTHONHASHSEED": "12345", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "TZ": "America/St_Johns", "PYTHONOPTIMIZE": "2"},
    ],
)
def test_a_build_is_the_same_everywhere(tmp_path: Path, environment: dict[str, str]) -> None:
    specs = tmp_path / "other place" / "specs"
    shutil.copytree(REPOSITORY / "specs", specs)
    order = sorted((str(path) for path in specs.glob("*.yaml")), key=lambda path: path[::-1])
    run("-m", "kgen", "build", *order, cwd=tmp_path, KGEN_CACHE_DIR=str(tmp_path / "cache"), **environment)
    assert tree(specs.parent / "generated") == tree(REPOSITORY / "generated")


def test_a_build_from_the_cache_is_the_same(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "specs", tmp_path / "specs")
    for _ in range(2):
        shutil.rmtree(tmp_path / "generated", ignore_errors=True)
        run("-m", "kgen", "build", cwd=tmp_path, KGEN_CACHE_DIR=str(tmp_path / "cache"))
        assert tree(tmp_path / "generated") == tree(REPOSITORY / "generated")
    entries = list((tmp_path / "cache/rendered").iterdir())
    assert len(entries) == len(list((REPOSITORY / "specs").glob("*.yaml")))


MODULES = """
import sys
from kgen.cli import main
code = None
try:
    main()
except SystemExit as exit:
    code = exit.code
print("MODULES", code, *sorted(sys.modules))
"""


def modules_of(verb: str, code: int, project: Path) -> set[str]:
    """The modules that a run of ``verb`` has imported when it ends with exit code ``code``."""
    found = run("-c", MODULES, *verb.split(), cwd=project, KGEN_CACHE_DIR=str(project / "cache"))
    ended, *modules = found.stdout.rpartition("MODULES ")[2].split()
    assert int(ended) == code, found.stderr
    return set(modules)


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        ("build", 0),
        ("check", 1),
        ("diff", 1),
        ("list", 0),
        ("explain", 0),
        ("cost", 0),
        ("schema", 0),
        ("bench --list", 0),
    ],
)
def test_no_torch_and_no_triton(project: Path, verb: str, code: int) -> None:
    modules = modules_of(verb, code, project)
    assert "kgen.cli.app" in modules
    assert not {module for module in modules if module.split(".")[0] in ("torch", "triton", "numpy")}


def test_importing_kgen_is_light() -> None:
    found = run("-c", "import sys, kgen; print(*sys.modules)", cwd=REPOSITORY)
    assert not {"torch", "triton", "numpy", "jinja2", "pydantic"} & set(found.stdout.split())


def test_a_build_from_the_cache_renders_nothing(project: Path) -> None:
    assert "kgen.render.emit" in modules_of("check", 1, project)
    assert not {"kgen.render.emit", "kgen.spec.model", "jinja2", "yaml"} & modules_of("check", 1, project)


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"kgen", "jinja2", "pydantic", "yaml", "typer", "rich", "platformdirs"}:
            raise ModuleNotFoundError(f"{name} is out of reach", name=name)

sys.meta_path.insert(0, Blocker())
import importlib
for name in sys.argv[1:]:
    package = importlib.import_module(f"generated.{name}")
    for kernel in package.__all__:
        module = getattr(package, kernel)
        (function,) = set(module.__all__) - {"SPEC", "form"}
        assert callable(getattr(module, function)), name
        assert module.SPEC["name"] == name
print("imported", len(sys.argv) - 1)
"""


def test_generated_packages_need_neither_kgen_nor_its_dependencies(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "generated", tmp_path / "generated")
    names = sorted(path.stem for path in (REPOSITORY / "specs").glob("*.yaml"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", BLOCKED, *names]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout == f"imported {len(names)}\n"


def test_generated_files_import_torch_and_triton_alone() -> None:
    for path in (REPOSITORY / "generated").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {"."} if node.level == 1 else {str(node.module).split(".")[0]}
            else:
                continue
            assert roots <= {"torch", "triton", "."}, path


# Every field of the spec language, flipped in a spec that has it. A tuple is (start, edits): edits of the base spec
# that give the field its place, and then its other value, each by the path of its keys.
BASE: dict[str, Any] = {
    "name": "one",
    "attention": {
        "kind": "grouped",
        "num_qo_heads": 8,
        "num_kv_heads": 2,
        "head_dim_qk": 64,
        "mask": {"kind": "sliding_window", "size": 100},
    },
    "dtype": "float32",
    "kernels": {"prefill": {}, "decode": {}},
}
LATENT = {
    "attention": {
        "kind": "latent",
        "num_qo_heads": 16,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mask": {"kind": "causal"},
    }
}
MASK = "attention.mask"
PAGED = {"kernels.decode.kv": {"kind": "paged", "page_size": 16}}
BACKWARD = {"kernels.backward": {}}
MERGE = {"kernels.merge_states": {}}
FLIPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SpecFile.name": ({}, {"name": "two"}),
    "SpecFile.attention": ({}, LATENT),
    "SpecFile.dtype": ({}, {"dtype": "float16"}),
    "SpecFile.allow_tf32": ({}, {"allow_tf32": True}),
    "SpecFile.targets": ({}, {"targets": ["sm_90", "sm_80"]}),
    "SpecFile.kernels": ({}, {"kernels": {"prefill": {}}}),
    "GroupedAttention.kind": ({}, LATENT),
    "GroupedAttention.num_qo_heads": ({}, {"attention.num_qo_heads": 6}),
    "GroupedAttention.num_kv_heads": ({}, {"attention.num_kv_heads": 4}),
    "GroupedAttention.head_dim_qk": ({"attention.head_dim_v": 64}, {"attention.head_dim_qk": 72}),
    "GroupedAttention.head_dim_v": ({}, {"attention.head_dim_v": 40}),
    "GroupedAttention.head_dim_pe": ({}, {"attention.head_dim_pe": 64}),
    "GroupedAttention.sm_scale": ({}, {"attention.sm_scale": 0.5}),
    "GroupedAttention.mask": ({}, {MASK: {"kind": "full"}}),
    "GroupedAttention.sinks": ({}, {"attention.sinks": True}),
    "GroupedAttention.logits_soft_cap": ({}, {"attention.logits_soft_cap": 30.0}),
    "GroupedAttention.alibi": ({}, {"attention.alibi": True}),
    "LatentAttention.kind": (LATENT, {"attention": BASE["attention"]}),
    "LatentAttention.num_qo_heads": (LATENT, {"attention.num_qo_heads": 32}),
    "LatentAttention.kv_lora_rank": (LATENT, {"attention.kv_lora_rank": 256}),
    "LatentAttention.qk_nope_head_dim": (LATENT, {"attention.qk_nope_head_dim": 64}),
    "LatentAttention.qk_rope_head_dim": (LATENT, {"attention.qk_rope_head_dim": 32}),
    "LatentAttention.v_head_dim": (LATENT, {"attention.v_head_dim": 256}),
    "LatentAttention.sm_scale": (LATENT, {"attention.sm_scale": 0.5}),
    "LatentAttention.mask": (LATENT, {MASK: {"kind": "full"}}),
    "LatentAttention.sinks": (LATENT, {"attention.sinks": True}),
    "LatentAttention.logits_soft_cap": (LATENT, {"attention.logits_soft_cap": 30.0}),
    "FullMask.kind": ({MASK: {"kind": "full"}}, {MASK: {"kind": "causal"}}),
    "CausalMask.kind": ({MASK: {"kind": "causal"}}, {MASK: {"kind": "full"}}),
    "SlidingWindowMask.kind": ({}, {MASK: {"kind": "chunked", "size": 100}}),
    "SlidingWindowMask.size": ({}, {MASK: {"kind": "sliding_window", "size": 101}}),
    "WindowMask.kind": ({MASK: {"kind": "window", "left": 9, "right": 2}}, {MASK: {"kind": "full"}}),
    "WindowMask.left": ({MASK: {"kind": "window", "left": 9, "right": 2}}, {f"{MASK}.left": 8}),
    "WindowMask.right": ({MASK: {"kind": "window", "left": 9, "right": 2}}, {f"{MASK}.right": 3}),
    "ChunkedMask.kind": ({MASK: {"kind": "chunked", "size": 9}}, {MASK: {"kind": "sliding_window", "size": 9}}),
    "ChunkedMask.size": ({MASK: {"kind": "chunked", "size": 9}}, {f"{MASK}.size": 10}),
    "PrefixLMMask.kind": ({MASK: {"kind": "prefix_lm"}}, {MASK: {"kind": "causal"}}),
    "ExpressionMask.kind": ({MASK: {"kind": "expression", "visible": "q_pos > 0"}}, {MASK: {"kind": "causal"}}),
    "ExpressionMask.visible": (
        {MASK: {"kind": "expression", "visible": "q_pos > 0"}},
        {f"{MASK}.visible": "q_pos > 1"},
    ),
    "PrefillKernel.kind": ({"kernels.other": {"kind": "prefill"}}, {"kernels.other": {"kind": "decode"}}),
    "PrefillKernel.layout": ({}, {"kernels.prefill.layout": "bshd"}),
    "PrefillKernel.kv": ({}, {"kernels.prefill.kv": {"kind": "paged", "page_size": 16}}),
    "PrefillKernel.padded": ({}, {"kernels.prefill.padded": True}),
    "PrefillKernel.form": ({}, {"kernels.prefill.form": "expanded"}),
    "DecodeKernel.kind": ({"kernels.other": {"kind": "decode"}}, {"kernels.other": {"kind": "prefill"}}),
    "DecodeKernel.kv": ({}, PAGED),
    "DecodeKernel.num_splits": ({}, {"kernels.decode.num_splits": 3}),
    "DecodeKernel.q_len": ({}, {"kernels.decode.q_len": 2}),
    "DecodeKernel.form": ({}, {"kernels.decode.form": "absorbed"}),
    "MergeStatesKernel.kind": (MERGE, {"kernels.merge_states": {"kind": "prefill"}}),
    "MergeStatesKernel.layout": (MERGE, {"kernels.merge_states.layout": "bshd"}),
    "MergeStatesKernel.form": (LATENT | MERGE, {"kernels.merge_states.form": "expanded"}),
    "ContiguousCache.kind": ({}, PAGED),
    "PagedCache.kind": (PAGED, {"kernels.decode.kv": {"kind": "contiguous"}}),
    "PagedCache.page_size": (PAGED, {"kernels.decode.kv.page_size": 17}),
    "BackwardKernel.kind": (BACKWARD, {"kernels.backward": {"kind": "decode"}}),
    "BackwardKernel.deterministic": (BACKWARD, {"kernels.backward.deterministic": False}),
}
GENERATED = [
    "SpecFile.dtype",
    "SpecFile.allow_tf32",
    "SpecFile.targets",
    "GroupedAttention.num_qo_heads",
    "GroupedAttention.num_kv_heads",
    "GroupedAttention.head_dim_qk",
    "GroupedAttention.head_dim_v",
    "GroupedAttention.sm_scale",
    "GroupedAttention.mask",
    "FullMask.kind",
    "CausalMask.kind",
    "SlidingWindowMask.size",
    "WindowMask.kind",
    "WindowMask.left",
    "WindowMask.right",
    "PrefillKernel.layout",
    "PrefillKernel.padded",
    "DecodeKernel.num_splits",
    "MergeStatesKernel.layout",
]


def edited(spec: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    spec = copy.deepcopy(spec)
    for path, value in edits.items():
        *parents, last = path.split(".")
        place = spec
        for key in parents:
            place = place[key]
        place[last] = copy.deepcopy(value)
    return spec


def models(kind: Any) -> Iterator[type[BaseModel]]:
    """Every model that a field's type reaches."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from models(field.annotation)
    for part in get_args(kind):
        yield from models(part)


def test_every_field_has_its_flip() -> None:
    fields = {f"{model.__name__}.{name}" for model in models(SpecFile) for name in model.model_fields}
    assert set(FLIPS) == fields


@pytest.mark.parametrize("field", FLIPS)
def test_flipping_a_field_changes_the_digest(field: str) -> None:
    start, edits = FLIPS[field]
    base = edited(BASE, start)
    one, two = SpecFile.model_validate(base), SpecFile.model_validate(edited(base, edits))
    assert one != two
    assert digest(one) != digest(two)


def code_of(files: dict[str, str]) -> dict[str, str]:
    """What a module computes: neither its header, its words nor its record of the spec."""
    found = {}
    for path, text in files.items():
        module = ast.parse(text)
        kept = [node for node in module.body if not (isinstance(node, ast.Assign) and "SPEC" in ast.unparse(node)[:5])]
        module.body = kept
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        found[path] = ast.unparse(module)
    return found


@pytest.mark.parametrize("field", FLIPS)
def test_flipping_a_field_changes_the_output_or_is_refused(field: str) -> None:
    start, edits = FLIPS[field]
    before = output_of(edited(BASE, start))
    after = output_of(edited(edited(BASE, start), edits))
    if field in GENERATED:
        assert code_of(before) != code_of(after), "the field is recorded, and has no effect"
    else:
        assert before != after or not before, "neither refused nor generated"


def output_of(spec: dict[str, Any]) -> dict[str, str]:
    """The files of a spec, none where kgen refuses it."""
    try:
        return project_of([load_text(yaml.safe_dump(spec), "specs/one.yaml")])
    except SpecError:
        return {}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """kgen with its templates in a folder of its own, whose sources a test may edit."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(packaged.PACKAGE, tmp_path / "home/kgen", ignore=ignore)
    shutil.copytree(packaged.templates_dir(), tmp_path / "home/templates", ignore=ignore)
    (tmp_path / "work/specs").mkdir(parents=True)
    (tmp_path / "work/specs/one.yaml").write_text(SPEC.format(name="one", heads=8))
    return tmp_path


def test_a_template_edit_is_built_and_a_touch_is_not(copied: Path) -> None:
    def build() -> tuple[dict[str, bytes], int]:
        run(
            "-m",
            "kgen",
            "build",
            cwd=copied / "work",
            PYTHONPATH=str(copied / "home"),
            KGEN_CACHE_DIR=str(copied / "cache"),
        )
        return tree(copied / "work/generated"), len(list((copied / "cache/rendered").iterdir()))

    first = build()
    template = copied / "home/templates/kernels/prefill.py.j2"
    os.utime(template, (1, 1))
    for path in (copied / "home").rglob("*.py"):
        os.utime(path, (2, 2))
    assert build() == first
    assert first[1] == 1
    text = template.read_text()
    template.write_text(text + "# edited\n")
    second = build()
    assert second[1] == 2
    assert second[0]["one/prefill.py"].endswith(b"# edited\n")
    assert second[0]["one/decode.py"] == first[0]["one/decode.py"]
    template.write_text(text)
    assert build() == (first[0], 2)


def seconds_of(command: list[str], cwd: Path, cache: Path, *, fresh: bool) -> float:
    """Processor time of the fastest of three runs; unlike wall clock it is the same on a busy machine, or nearly."""
    times = []
    for _ in range(3):
        if fresh:
            shutil.rmtree(cache, ignore_errors=True)
            shutil.rmtree(cwd / "generated", ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(*command, cwd=cwd, KGEN_CACHE_DIR=str(cache))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def test_fifty_specs_from_scratch_and_again(tmp_path: Path) -> None:
    """Under 1 s and 0.3 s on an idle machine; a slow one is granted three times as much."""
    (tmp_path / "specs").mkdir()
    for number in range(50):
        text = SPEC.format(name=f"s{number}", heads=2 * (number % 10 + 1)).replace("64", str(8 * (number % 16 + 1)))
        (tmp_path / f"specs/s{number}.yaml").write_text(text)
    build = ["-m", "kgen", "build", "specs/"]
    assert seconds_of(build, tmp_path, tmp_path / "cache", fresh=True) < 3.0
    # Of the head dimensions 8 to 128, nine are 64, 96 or 128, which have a form for sm_90.
    assert len(tree(tmp_path / "generated")) == 150 + 9
    assert seconds_of(build, tmp_path, tmp_path / "cache", fresh=False) < 0.9


def test_help_is_quick(tmp_path: Path) -> None:
    assert seconds_of(["-m", "kgen", "--help"], tmp_path, tmp_path / "cache", fresh=False) < 0.6


def test_the_readme_quotes_the_spec_and_the_source_that_are_there() -> None:
    text = (REPOSITORY / "README.md").read_text()
    spec, loop, *_ = (part.partition("\n```")[0] for part in re.split(r"\n```(?:yaml|python)\n", text)[1:])
    assert spec == (REPOSITORY / "specs/llama3_8b.yaml").read_text().rstrip()
    assert loop.startswith("    # Tiles below")
    assert loop in (REPOSITORY / "generated/llama3_8b/decode.py").read_text(), "quote the loop of decode.py again"
