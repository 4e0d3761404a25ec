"""``kgen.load``: the module is what its spec renders, whatever the disk holds; and what is said where there is none."""

from __future__ import annotations

import copy
import errno
import inspect
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

import kgen
from kgen.errors import InputError, MissingDependencyError, SpecError
from kgen.project import project as project_of
from kgen.reference.evaluate import evaluate
from kgen.runtime import imports, load, packages
from kgen.spec.loader import load_text
from kgen.spec.plain import text_of
from kgen.store import ABANDONED, ENVIRONMENT, PACKAGES
from kgen.verify import interpreter
from tests.verify_support import document

REPOSITORY = Path(__file__).resolve().parent.parent
DECODE = {"decode": {}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of one test, in a process that has loaded nothing."""
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache/packages"


def forget() -> None:
    """As in a new process: nothing is imported, and no warning was told."""
    imports._importer.packages.clear()
    for name in [name for name in sys.modules if name.startswith("_kgen_")]:
        del sys.modules[name]
    load._warn_once.cache_clear()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec of a small decode in a specs folder."""
    path = tmp_path / "specs/small.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(document(kernels=DECODE) | {"name": "small"}, sort_keys=False))
    return path


def rendered(path: Path) -> dict[str, str]:
    """What kgen build writes for a spec, by file name."""
    files = project_of([load_text(path.read_bytes(), f"specs/{path.name}")])
    return {name.partition("/")[2]: text for name, text in files.items()}


def assert_is(module: ModuleType, path: Path) -> None:
    """The module, and what inspect says of it, is the source that the spec renders."""
    source = rendered(path)["decode.py"]
    assert inspect.getsource(module) == source
    function = inspect.getsource(module.attention)
    assert function.startswith("def attention(")
    assert function in source
    assert module.SPEC["name"] == path.stem


def test_what_is_loaded_is_what_build_writes(spec: Path, folder: Path) -> None:
    module = kgen.load(spec)
    assert_is(module, spec)
    (entry,) = folder.iterdir()
    assert {path.name: path.read_text() for path in entry.iterdir()} == rendered(spec)
    assert module.__file__ == str(entry / "decode.py")
    assert entry.name == f"small-{packages.digest(rendered(spec))}"
    assert entry.stat().st_mode & 0o777 == folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.triton
def test_a_loaded_decode_equals_the_reference(spec: Path) -> None:
    interpreter.require()
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 2, 16, generator=generator).half()
    k, v = (torch.randn(2, 1, 21, 16, generator=generator).half() for _ in range(2))
    seq_lens = torch.tensor([21, 5], dtype=torch.int32)
    out, lse = kgen.load(spec).attention(q, k, v, seq_lens=seq_lens, return_lse=True)
    want, want_lse = evaluate(load_text(spec.read_bytes(), "s").spec, q[:, :, None], k, v, seq_lens=seq_lens)
    torch.testing.assert_close(out.double(), want[:, :, 0], rtol=0, atol=2e-3)
    torch.testing.assert_close(lse.double(), want_lse[:, :, 0], rtol=0, atol=1e-5)


@pytest.mark.triton
def test_the_example_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    (example,) = re.findall(r"^```python\n(import kgen\n.*?)^```", Path("README.md").read_text(), re.M | re.S)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 32, 128, generator=generator).bfloat16()
    k, v = (torch.randn(1, 8, 3, 128, generator=generator).bfloat16() for _ in range(2))
    names: dict[str, Any] = {"q": q, "k": k, "v": v, "seq_lens": torch.tensor([3], dtype=torch.int32)}
    with interpreter.interpreting():
        exec(example, names)
    want, _ = evaluate(load_text(Path("specs/llama3_8b.yaml").read_bytes(), "s").spec, q[:, :, None], k, v)
    torch.testing.assert_close(names["out"].double(), want[:, :, 0], rtol=1e-2, atol=1e-2)


def test_the_same_spec_is_the_same_module_and_another_is_not(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = kgen.load(spec)
    assert kgen.load(str(spec)) is module
    assert kgen.load(spec, "decode") is module
    monkeypatch.chdir(spec.parent)
    assert kgen.load("small.yaml") is module
    text = spec.read_text()
    spec.write_text(f"# A comment says nothing.\n{text}")
    assert kgen.load(spec) is module
    spec.write_text(text.replace("num_qo_heads: 2", "num_qo_heads: 4"))
    other = kgen.load(spec)
    assert other is not module
    assert (module.SPEC["attention"]["num_qo_heads"], other.SPEC["attention"]["num_qo_heads"]) == (2, 4)
    spec.write_text(text)
    assert kgen.load(spec) is module


def test_a_document_and_a_text_are_specs_too(spec: Path) -> None:
    text = spec.read_text()
    data = yaml.safe_load(text)
    before = copy.deepcopy(data)
    module = kgen.load(data)
    assert data == before
    assert kgen.loads(text) is module, "neither has a file that its header would name"
    assert kgen.loads(json.dumps(data)) is module
    assert module.SPEC == kgen.load(spec).SPEC
    assert inspect.getsource(module).startswith("# Code generated by kgen from <spec>. DO NOT EDIT.\n")


def test_a_part_that_stands_twice_in_a_document() -> None:
    cache = {"kind": "paged", "page_size": 16}
    kernels = {"one": {"kind": "decode", "kv": cache}, "two": {"kind": "decode", "kv": cache}}
    assert kgen.load(document(kernels=kernels), "two").SPEC["kernels"]["two"]["kv"] == cache


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -7, 1e-9, 1e300, 0.1352337788608801),
        *("", "no", "y", "~", "1e-3", "0x10", "2020-01-01", "a: b", "é\n '\""),
    ],
)
def test_text_of_a_document_reads_as_the_document(value: object) -> None:
    from kgen.spec.yaml_source import read

    data = {"name": value, "kernels": {"a": [value, {"b": value}], "c": {}, "no": (1, 2)}}
    found = read(text_of(data), "s.yaml")
    assert not found.problems
    assert found.data == {"name": value, "kernels": {"a": [value, {"b": value}], "c": {}, "no": [1, 2]}}


CIRCLE: dict[str, Any] = {}
CIRCLE["kernels"] = CIRCLE
BLOWN: dict[str, Any] = {"a": 1}
for _ in range(14):
    BLOWN = dict.fromkeys("abcdefgh", BLOWN)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (5, "takes the path of a spec file or its document, got a int"),
        (b"specs/a.yaml", "got a bytes"),
        ("missing.yaml", "missing.yaml: no such file or folder"),
        ("", ".: is a folder, expected a spec file"),
        ("a\0b", "control characters"),
        ("name: a\nkernels: {}\n", r"name: a\nkernels: {}\n: is no path of a spec file; kgen.loads takes the text"),
        ({"kernels": {"decode": {"kv": torch.float16}}}, "kernels.decode.kv: a value of type dtype cannot stand in a"),
        ({"kernels": [1, {2: 3}]}, "kernels.1: a key is a int, and keys are text"),
        ({"name": 1 << 200}, "name: the number is out of every range"),
        (CIRCLE, "nested too deeply"),
        (BLOWN, "too large"),
    ],
    ids=["int", "bytes", "missing", "empty", "nul", "text", "value", "key", "number", "circle", "blown"],
)
def test_what_is_no_spec(given: Any, told: str) -> None:
    with pytest.raises(InputError) as raised:
        kgen.load(given)
    assert told in str(raised.value)


def test_text_that_is_none() -> None:
    with pytest.raises(InputError, match=r"kgen\.loads takes the text of a spec, got a PosixPath"):
        kgen.loads(Path("a.yaml"))  # type: ignore[arg-type]


def test_a_bad_spec_is_told_as_build_tells_it(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from kgen.cli import app

    monkeypatch.chdir(spec.parent.parent)
    spec.write_text(spec.read_text().replace("head_dim_qk: 16", "head_dim_kq: 16").replace("float16", "float61"))
    with pytest.raises(SpecError) as raised:
        kgen.load("specs/small.yaml")
    assert [d.code for d in raised.value.diagnostics] == ["KG103", "KG102"]
    assert CliRunner().invoke(app, ["build", "specs/small.yaml"]).stderr.startswith(f"{raised.value}\n")


def test_a_bad_document_is_shown_as_a_file_would_say_it() -> None:
    with pytest.raises(SpecError) as raised:
        kgen.load(document(kernels={"decode": {"kv": {"kind": "paged", "page_sise": 16}}}))
    (text,) = [d.text() for d in raised.value.diagnostics if "page_sise is not" in d.message]
    assert text.splitlines()[:3] == [
        "<spec>:15:7: error[KG103]: page_sise is not a field of kv",
        "          page_sise: 16",
        "          ^^^^^^^^^",
    ]
    with pytest.raises(SpecError, match="byte 0xed is not UTF-8"):
        kgen.loads("name: \ud800")
    with pytest.raises(SpecError, match="the file is empty"):
        kgen.loads("")


@pytest.mark.parametrize("kernel", ["prefil", "prefill_sm90", "__init__", "", "../x", 5])
def test_an_unknown_kernel_lists_the_kernels(kernel: Any) -> None:
    with pytest.raises(InputError) as raised:
        kgen.load(REPOSITORY / "specs/llama3_8b.yaml", kernel)
    assert str(raised.value).endswith(f"has no kernel {kernel!r}; it has decode and prefill")


def test_one_of_several_kernels_is_named() -> None:
    with pytest.raises(InputError, match=r"llama3_8b\.yaml has the kernels decode and prefill; name one of them"):
        kgen.load(REPOSITORY / "specs/llama3_8b.yaml")
    module = kgen.load(REPOSITORY / "specs/llama3_8b.yaml", "prefill")
    assert inspect.getsource(module) == (REPOSITORY / "generated/llama3_8b/prefill.py").read_text()


@pytest.mark.triton
def test_the_form_for_hopper_is_imported_from_the_same_text(folder: Path) -> None:
    module = kgen.load(REPOSITORY / "specs/llama3_8b.yaml", "prefill")
    (entry,) = folder.iterdir()
    for path in entry.iterdir():
        path.write_text("raise AssertionError('read from the disk')\n")
    form = __import__(f"{module.__name__}_sm90", fromlist=["attention"])
    assert inspect.getsource(form) == (REPOSITORY / "generated/llama3_8b/prefill_sm90.py").read_text()


def truncated(entry: Path) -> None:
    text = (entry / "decode.py").read_bytes()
    (entry / "decode.py").write_bytes(text[: len(text) // 2])


def emptied(entry: Path) -> None:
    for path in entry.iterdir():
        path.write_bytes(b"")


def edited(entry: Path) -> None:
    text = (entry / "decode.py").read_text()
    (entry / "decode.py").write_text(text.replace("SPEC", "SPCE"))


def one_too_many(entry: Path) -> None:
    (entry / "torch.py").write_text("raise SystemExit('a foreign file was imported')\n")


def one_missing(entry: Path) -> None:
    (entry / "decode.py").unlink()


def linked(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to(entry.with_name("elsewhere"))


def linked_file(entry: Path) -> None:
    (entry / "decode.py").rename(entry.parent.parent / "decode.py")
    (entry / "decode.py").symlink_to(entry.parent.parent / "decode.py")


def piped(entry: Path) -> None:
    (entry / "decode.py").unlink()
    os.mkfifo(entry / "decode.py")


def as_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("foreign")


def compiled(entry: Path) -> None:
    """Bytecode that Python's own importer would run in place of the source."""
    import importlib._bootstrap_external as machinery  # type: ignore[import-not-found]

    source = entry / "decode.py"
    path = Path(machinery.cache_from_source(str(source)))
    path.parent.mkdir()
    status = source.stat()
    code = compile("raise SystemExit('foreign bytecode ran')", str(source), "exec")
    path.write_bytes(machinery._code_to_timestamp_pyc(code, int(status.st_mtime), status.st_size))


DAMAGES = [truncated, emptied, edited, one_too_many, one_missing, linked, linked_file, piped, as_file, compiled]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_written_is_not_imported_and_is_replaced(
    spec: Path, folder: Path, damage: Callable[[Path], None]
) -> None:
    kgen.load(spec)
    (entry,) = folder.iterdir()
    damage(entry)
    forget()
    assert_is(kgen.load(spec), spec)
    assert {path.name: path.read_text() for path in entry.iterdir()} == rendered(spec)
    assert not entry.is_symlink()
    assert not list(folder.glob(".*"))


COMPILED = """
import inspect, linecache, os, sys
import kgen
from kgen.runtime import packages
place = packages.place
def edited_at_once(name, files):
    folder = place(name, files)
    for path in folder.iterdir():
        path.write_text("raise SystemExit('read from the disk')\\n" * 1000)
    return folder
packages.place = edited_at_once
for home, heads in ((sys.argv[1], 2), ("/proc/none", 4)):
    os.environ["KGEN_CACHE_DIR"] = home
    layer = {"kind": "grouped", "num_qo_heads": heads, "num_kv_heads": 2, "head_dim_qk": 16, "mask": {"kind": "full"}}
    module = kgen.load({"name": "small", "attention": layer, "dtype": "float16", "kernels": {"decode": {}}})
    linecache.checkcache()
    functions = [value for value in vars(module).values() if type(value).__name__ == "JITFunction"]
    lines = inspect.getsource(module).splitlines(keepends=True)
    for function in functions:
        start, source = function.starting_line_number - 1, function.raw_src
        assert lines[start : start + len(source)] == source, function
        function.parse()
    print(len(functions), module.__file__)
"""


@pytest.mark.triton
def test_triton_compiles_the_text_that_was_checked(tmp_path: Path) -> None:
    """Also where the files are edited between their check and the import, and where there is no file at all."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, str(tmp_path / "cache")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    on_disk, in_memory = (line.split() for line in ran.stdout.splitlines())
    assert int(on_disk[0]) == int(in_memory[0]) > 1
    assert on_disk[1].startswith(str(tmp_path / "cache/packages/small-"))
    assert in_memory[1].startswith("<kgen>/small-")


def test_a_cleared_cache_leaves_loaded_modules_as_they_are(spec: Path, folder: Path) -> None:
    module = kgen.load(spec)
    assert PACKAGES.clear() == 1
    assert not list(folder.iterdir())
    linecache.clearcache()
    assert_is(module, spec)
    assert kgen.load(spec) is module
    with pytest.raises(TypeError) as raised:
        module.attention(1, 2, 3, seq_lens=4)
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert frame.filename == module.__file__
    assert frame.line
    assert frame.line in rendered(spec)["decode.py"]


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize(
    ("name", "failure", "reason"),
    [
        ("mkdir", full, "it cannot be made: No space left on device"),
        ("rename", full, "No space left on device"),
        ("mkdir", read_only, "it cannot be made: Read-only file system"),
        ("geteuid", lambda: 12345, "it belongs to another user"),
        ("access", lambda *_: False, "it is not writable"),
    ],
    ids=["full", "full-rename", "read-only", "foreign", "not-writable"],
)
def test_a_cache_that_cannot_be_used_is_told_once(
    spec: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, failure: Callable[..., Any], reason: str
) -> None:
    with monkeypatch.context() as broken, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        broken.setattr(os, name, failure)
        module = kgen.load(spec)
        other = kgen.load(document(kernels=DECODE))
    (warning,) = told
    assert (warning.category, warning.filename) == (RuntimeWarning, __file__)
    assert str(warning.message) == (
        "the source of loaded kernels is kept in memory alone, where debuggers and profilers cannot show it: "
        f"{folder}: {reason}"
    )
    assert_is(module, spec)
    assert module.__file__ == f"<kgen>/small-{packages.digest(rendered(spec))}/decode.py"
    assert other.SPEC["name"] == "example"
    assert not folder.exists() or not list(folder.iterdir())
    assert kgen.load(spec) is module


def test_a_disk_that_is_full_after_some_bytes(spec: Path, tmp_path: Path) -> None:
    """Files may have 2,000 bytes in the process: the cache of packages and that of rendered output both run full."""
    script = """
import resource, sys, warnings, signal
import kgen, triton, torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    module = kgen.load(sys.argv[1])
assert ["File too large" in str(w.message) for w in told if w.category is RuntimeWarning] == [True], told
print(module.SPEC["name"], module.__file__)
"""
    environment = os.environ | {ENVIRONMENT: str(tmp_path / "full"), "PYTHONPATH": str(REPOSITORY)}
    ran = subprocess.run([sys.executable, "-c", script, str(spec)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("small <kgen>/small-")
    assert [path for path in (tmp_path / "full").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "full/packages").iterdir()) == []


@pytest.mark.parametrize("place", ["a file", "below a file", "nowhere"])
def test_no_home_and_no_place(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "file").write_text("")
    places = {"a file": tmp_path / "file", "below a file": tmp_path / "file/below", "nowhere": Path("/proc/kgen")}
    monkeypatch.setenv(ENVIRONMENT, str(places[place]))
    with pytest.warns(RuntimeWarning, match="it cannot be made"):
        module = kgen.load(spec)
    assert_is(module, spec)


def test_a_folder_that_others_may_write_to_is_not_used(spec: Path, folder: Path) -> None:
    kgen.load(spec)
    (entry,) = folder.iterdir()
    edited(entry)
    folder.chmod(0o777)
    forget()
    with pytest.warns(RuntimeWarning, match="others may write to it; delete it"):
        module = kgen.load(spec)
    assert_is(module, spec)
    assert not str(module.__file__).startswith(str(folder))
    assert "SPCE" in (entry / "decode.py").read_text(), "what others may own is left alone"


def test_a_cache_that_works_is_not_spoken_of(spec: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kgen.load(spec)


def test_the_packages_that_nobody_used_for_longest_go(
    spec: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgen.store.MOST_ENTRIES", 3)
    entries = {heads: entry_of(heads) for heads in (1, 2, 3)}
    for heads, entry in entries.items():
        os.utime(entry, (heads, heads))
    forget()
    assert entry_of(1) == entries[1], "which counts as used now"
    dead, alive = folder / f".{'a' * 16}.tmp", folder / f".{'b' * 16}.tmp"
    for path in (dead, alive):
        path.mkdir()
        (path / "decode.py").write_text("half a file")
    os.utime(dead, (dead.stat().st_mtime - ABANDONED - 1,) * 2)
    assert set(folder.iterdir()) == {dead, alive, *entries.values()}
    fourth = entry_of(4)
    assert set(folder.iterdir()) == {alive, entries[1], entries[3], fourth}


def entry_of(heads: int) -> Path:
    """The folder of a package in the cache."""
    return Path(str(kgen.load(document(heads=heads, kernels=DECODE)).__file__)).parent


def test_threads_get_one_module(spec: Path) -> None:
    found: list[ModuleType] = []
    threads = [threading.Thread(target=lambda: found.append(kgen.load(spec))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 8
    assert_is(found[0], spec)


LAZY = """
import sys
def heavy(): return sorted({"torch", "triton", "numpy"} & set(sys.modules))
import kgen
assert not {"kgen.runtime.load", "kgen.cache", "jinja2", "pydantic", "yaml", "hashlib"} & set(sys.modules), sys.modules
assert {"load", "loads"} <= set(dir(kgen))
from kgen import load
assert not heavy()
for bad in ((sys.argv[1], "prefill"), ("none.yaml",), ({"name": 1},)):
    try:
        load(*bad)
    except kgen.errors.InputError:
        assert not heavy(), bad
    else:
        raise SystemExit(f"{bad} was loaded")
class Absent:
    def __init__(self, name):
        self.name = name
    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in ("torch", "triton"):
    absent = Absent(name)
    sys.meta_path.insert(0, absent)
    try:
        load(sys.argv[1])
    except kgen.errors.MissingDependencyError as error:
        print(error)
    sys.meta_path.remove(absent)
assert load(sys.argv[1]).SPEC["name"] == "small"
assert {"torch", "triton"} <= set(heavy())
"""


def test_torch_and_triton_are_imported_with_the_module(spec: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", LAZY, str(spec)]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = [f"this needs {name}, which is not installed; `kgen doctor` tells what is" for name in ("torch", "triton")]
    assert ran.stdout.splitlines() == told


def test_an_error_of_the_import_is_not_taken_for_a_missing_library(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert issubclass(MissingDependencyError, kgen.errors.KgenError)

    def fails(_: object, module: ModuleType) -> None:
        raise ImportError("something else", name=module.__name__)

    with monkeypatch.context() as broken:
        broken.setattr(imports._Importer, "exec_module", fails)
        with pytest.raises(ImportError, match="something else"):
            kgen.load(spec)
    assert_is(kgen.load(spec), spec)


def test_kgen_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="module 'kgen' has no attribute 'laod'"):
        kgen.laod  # noqa: B018
