"""Generated text against the disk: every kind of drift, and what a build may and may not do about it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from kgen import sync
from kgen.errors import InputError, KgenError
from kgen.render.header import with_header
from kgen.sync import Kind, apply, compare, unified_diff

SPEC = "specs/a.yaml"


def source(body: str = "x = 1\n", *, spec: str = SPEC, kernel: str = "prefill", digest: str = "0" * 64) -> str:
    return with_header(body, spec_path=spec, kernel=kernel, spec_digest=digest)


WANTED = {"a/__init__.py": source("y = 2\n", kernel="__init__"), "a/prefill.py": source()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "generated"
    apply(WANTED, folder, "specs")
    return folder


def only(drifts: tuple[sync.Drift, ...]) -> sync.Drift:
    assert len(drifts) == 1, drifts
    return drifts[0]


def test_a_fresh_build_is_clean_and_exact(out: Path) -> None:
    assert compare(WANTED, out, "specs") == ()
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.py")} == set(WANTED)
    for path, text in WANTED.items():
        assert (out / path).read_bytes() == text.encode()
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


def test_missing(out: Path) -> None:
    (out / "a/prefill.py").unlink()
    drift = only(compare(WANTED, out, "specs"))
    assert (drift.path, drift.kind, drift.fails) == ("a/prefill.py", Kind.MISSING, True)
    assert unified_diff(drift, "generated/a/prefill.py").startswith("--- /dev/null\n+++ b/generated/a/prefill.py\n")


def test_missing_output_folder(tmp_path: Path) -> None:
    assert [drift.kind for drift in compare(WANTED, tmp_path / "none", "specs")] == [Kind.MISSING] * 2


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (source("x = 2\n"), "other source"),
        (source(digest="1" * 64), "the spec says something else"),
        (source(spec="specs/other.yaml"), "only its header"),
    ],
)
def test_changed(out: Path, text: str, detail: str) -> None:
    (out / "a/prefill.py").write_text(text)
    drift = only(compare(WANTED, out, "specs"))
    assert drift.kind is Kind.CHANGED
    assert detail in drift.detail


@pytest.mark.parametrize(
    ("data", "detail", "has_diff"),
    [
        (source().replace("x = 1", "x = 3").encode(), "not the one its header states", True),
        (source().replace("\n", "\r\n").encode(), "CRLF", False),
        (source("x = 2\n").replace("\n", "\r\n").encode(), "CRLF", True),
        (source().removesuffix("\n").encode(), "final newline", True),
        (source().replace("# kernel", "# kernels").encode(), "header is damaged", True),
        (b"\xef\xbb\xbf" + source().encode(), "byte-order mark", True),
        (source().encode() + b"\xff\n", "not UTF-8", True),
        (source().replace("x", "\rx").encode(), "not the one its header states", True),
    ],
)
def test_hand_edited(out: Path, data: bytes, detail: str, has_diff: bool) -> None:
    (out / "a/prefill.py").write_bytes(data)
    drift = only(compare(WANTED, out, "specs"))
    assert drift.kind is Kind.HAND_EDITED
    assert detail in drift.detail
    assert bool(unified_diff(drift, "a/prefill.py")) is has_diff
    apply(WANTED, out, "specs")
    assert compare(WANTED, out, "specs") == ()


def test_orphaned_file_is_pruned_by_the_whole_folder_alone(out: Path) -> None:
    less = {"a/__init__.py": WANTED["a/__init__.py"]}
    assert compare(less, out, None) == ()
    assert apply(less, out, None).pruned == ()
    assert (out / "a/prefill.py").exists()
    drift = only(compare(less, out, "specs"))
    assert (drift.kind, drift.path) == (Kind.ORPHANED, "a/prefill.py")
    assert unified_diff(drift, "x.py").startswith("--- a/x.py\n+++ /dev/null\n")
    assert [pruned.path for pruned in apply(less, out, "specs").pruned] == ["a/prefill.py"]
    assert not (out / "a/prefill.py").exists()


def test_an_orphaned_folder_goes_with_pythons_cache_but_not_with_a_foreign_file(out: Path) -> None:
    other = {"b/__init__.py": source(spec="specs/b.yaml")}
    apply({**WANTED, **other}, out, "specs")
    for name in "ab":
        (out / name / "__pycache__").mkdir()
        (out / name / "__pycache__/prefill.cpython-311.pyc").write_bytes(b"")
    (out / "a/notes.txt").write_text("mine")
    apply({"c/__init__.py": source(spec="specs/c.yaml")}, out, "specs")
    assert sorted(path.name for path in out.iterdir()) == ["a", "c"]
    assert sorted(path.name for path in (out / "a").iterdir()) == ["__pycache__", "notes.txt"]


def test_an_orphan_edited_by_hand_says_so(out: Path) -> None:
    (out / "a/prefill.py").write_text(source().replace("x", "z"))
    drift = only(compare({"a/__init__.py": WANTED["a/__init__.py"]}, out, "specs"))
    assert drift.kind is Kind.ORPHANED
    assert "not the one its header states" in drift.detail


def test_output_of_another_specs_folder_is_not_orphaned(out: Path) -> None:
    theirs = {"b/__init__.py": source(spec="more/b.yaml")}
    apply(theirs, out, "more")
    drift = only(compare(WANTED, out, "specs"))
    assert (drift.kind, drift.fails) == (Kind.FOREIGN, False)
    assert "more/b.yaml" in drift.detail
    apply(WANTED, out, "specs")
    assert (out / "b/__init__.py").exists()


def test_foreign_files_are_told_and_kept(out: Path) -> None:
    (out / "a/notes.txt").write_text("mine")
    (out / "a/lib").mkdir()
    (out / "a/__pycache__").mkdir()
    (out / "unrelated").mkdir()
    (out / "unrelated/file.py").write_text("mine")
    (out / "README.md").write_text("mine")
    drifts = compare(WANTED, out, "specs")
    assert [(drift.path, drift.kind, drift.fails) for drift in drifts] == [
        ("a/lib", Kind.FOREIGN, False),
        ("a/notes.txt", Kind.FOREIGN, False),
    ]
    apply(WANTED, out, "specs")
    assert (out / "a/notes.txt").read_text() == "mine"


def block_with_file(out: Path) -> None:
    (out / "a/prefill.py").write_text("mine = 1\n")


def block_with_folder(out: Path) -> None:
    (out / "a/prefill.py").unlink()
    (out / "a/prefill.py").mkdir()


def block_with_link(out: Path) -> None:
    (out / "a/prefill.py").rename(out.parent / "elsewhere.py")
    (out / "a/prefill.py").symlink_to(out.parent / "elsewhere.py")


def block_with_linked_folder(out: Path) -> None:
    (out / "a").rename(out.parent / "elsewhere")
    (out / "a").symlink_to(out.parent / "elsewhere")


def block_with_file_for_folder(out: Path) -> None:
    shutil.rmtree(out / "a")
    (out / "a").write_text("mine")


def block_with_pipe(out: Path) -> None:
    (out / "a/prefill.py").unlink()
    os.mkfifo(out / "a/prefill.py")


@pytest.mark.parametrize(
    "block",
    [
        block_with_file,
        block_with_folder,
        block_with_link,
        block_with_linked_folder,
        block_with_file_for_folder,
        block_with_pipe,
    ],
)
def test_what_is_not_kgens_is_never_overwritten(out: Path, block: object) -> None:
    assert callable(block)
    block(out)
    changed = {path: text.replace("sha256:0", "sha256:1") for path, text in WANTED.items()}

    def state() -> list[tuple[str, str, bytes]]:
        found = []
        for path in sorted(out.parent.rglob("*")):
            data = path.read_bytes() if path.is_file() else b""
            found.append((path.as_posix(), oct(path.lstat().st_mode), data))
        return found

    before = state()
    drifts = compare(changed, out, "specs")
    assert any(drift.blocks and drift.fails for drift in drifts)
    with pytest.raises(InputError, match="overwrites nothing"):
        apply(changed, out, "specs")
    assert state() == before, "nothing is written when anything is in the way"


def test_a_folder_elsewhere_is_not_reached_through_a_link(out: Path) -> None:
    elsewhere = out.parent / "elsewhere"
    apply({"b/__init__.py": source()}, elsewhere, "specs")
    (out / "b").symlink_to(elsewhere / "b")
    assert compare(WANTED, out, "specs") == ()
    apply(WANTED, out, "specs")
    assert (elsewhere / "b/__init__.py").exists()


def test_the_output_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "generated").symlink_to("real")
    apply(WANTED, tmp_path / "generated", "specs")
    assert (tmp_path / "real/a/prefill.py").exists()


@pytest.mark.parametrize("link", [False, True])
def test_the_output_folder_is_a_file_or_a_broken_link(tmp_path: Path, link: bool) -> None:
    out = tmp_path / "generated"
    out.symlink_to("nowhere") if link else out.write_text("mine")
    with pytest.raises(InputError, match="file or a broken link"):
        apply(WANTED, out, "specs")


def test_only_what_differs_is_written(out: Path) -> None:
    past = time.time_ns() - 10**12
    for path in WANTED:
        os.utime(out / path, ns=(past, past))
    (out / "a/prefill.py").write_text(source("x = 2\n"))
    applied = apply(WANTED, out, "specs")
    assert [drift.path for drift in applied.written] == ["a/prefill.py"]
    assert applied.unchanged == 1
    assert (out / "a/__init__.py").stat().st_mtime_ns == past
    assert (out / "a/prefill.py").stat().st_mtime_ns != past


def test_a_new_file_gets_the_users_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        apply(WANTED, tmp_path / "generated", "specs")
    finally:
        os.umask(old)
    assert (tmp_path / "generated/a/prefill.py").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_disk_that_refuses_leaves_the_old_file(
    out: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    old = (out / "a/prefill.py").read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sync.os, "replace", refuse)
    with pytest.raises(InputError, match=words):
        apply({**WANTED, "a/prefill.py": source("x = 2\n")}, out, "specs")
    assert (out / "a/prefill.py").read_bytes() == old
    assert not list(out.rglob(".kgen-*")), "the temporary file is gone"


def test_a_temporary_file_counts_once_it_is_old(out: Path) -> None:
    leftover = out / "a/.kgen-0011223344556677"
    leftover.write_text(source())
    assert compare(WANTED, out, "specs") == (), "another build may be writing it"
    os.utime(leftover, (0, 0))
    assert only(compare(WANTED, out, "specs")).kind is Kind.ORPHANED
    apply(WANTED, out, "specs")
    assert not leftover.exists()


@pytest.mark.parametrize(
    "path", ["../a/b.py", "/a/b.py", "a/../b.py", "b.py", "a/b/c.py", "a/b.sh", "A/b.py", "a/b.py\n"]
)
def test_a_path_outside_the_output_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(KgenError, match="not a path that kgen may write to"):
        apply({path: source()}, tmp_path / "generated", "specs")
    assert not list(tmp_path.iterdir())


def test_the_diff_is_a_patch(out: Path) -> None:
    less = {"a/__init__.py": WANTED["a/__init__.py"], "a/decode.py": source("z = 1\n", kernel="decode")}
    (out / "a/__init__.py").write_text(source("y = 3", kernel="__init__"))
    patch = "".join(unified_diff(drift, f"generated/{drift.path}") for drift in compare(less, out, "specs"))
    subprocess.run(["git", "apply", "-"], cwd=out.parent, input=patch.encode(), check=True)
    assert compare(less, out, "specs") == ()


def test_a_file_that_gets_its_name_while_the_folder_is_read_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build renames its temporary file between the listing of the folder and the look at the file."""
    (tmp_path / "a").mkdir()
    temporary = tmp_path / "a/.kgen-0123"
    temporary.touch()
    scandir = os.scandir

    def listing(path: Path) -> list[os.DirEntry[str]]:
        entries = list(scandir(path))
        if Path(path).name == "a":
            temporary.unlink()
        return entries

    monkeypatch.setattr(os, "scandir", listing)
    assert [drift.kind for drift in compare({"a/x.py": "x = 1\n"}, tmp_path, "specs")] == [Kind.MISSING]
