"""The cache of rendered output: what a key depends on, and that no state of the disk breaks or falsifies a build."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
from pathlib import Path

import pytest

from kgen import cache
from kgen.cache import RenderCache
from kgen.store import ABANDONED, ENVIRONMENT, RENDERED

FILES = {"a/__init__.py": "x = 1\n", "a/prefill.py": "ü = '−'\n"}
KEY = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache/rendered"


def test_what_is_put_comes_back(folder: Path) -> None:
    renders = RenderCache.open()
    assert renders.get(KEY) is None
    renders.put(KEY, FILES)
    assert renders.get(KEY) == FILES
    assert RenderCache.open().get(KEY) == FILES
    assert [path.name for path in folder.iterdir()] == [f"{KEY}.json"]


def test_the_folder_is_private(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    RenderCache.open().put(KEY, FILES)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, mode: int) -> None:
    RenderCache.open().put(KEY, FILES)
    folder.chmod(mode)
    assert RenderCache.open().get(KEY) is None, "others may have planted it"
    assert RENDERED.info().problem == "others may write to it; delete it"
    assert RENDERED.clear() == 0
    shutil.rmtree(folder)
    RenderCache.open().put(KEY, FILES)
    assert RenderCache.open().get(KEY) == FILES


@pytest.mark.parametrize("cut", [0, 1, 40, 64, 65, 80, -1])
def test_a_truncated_entry_is_replaced(folder: Path, cut: int) -> None:
    renders = RenderCache.open()
    renders.put(KEY, FILES)
    entry = folder / f"{KEY}.json"
    entry.write_bytes(entry.read_bytes()[:cut])
    assert renders.get(KEY) is None
    renders.put(KEY, FILES)
    assert renders.get(KEY) == FILES


def test_a_changed_byte_is_noticed(folder: Path) -> None:
    renders = RenderCache.open()
    renders.put(KEY, FILES)
    entry = folder / f"{KEY}.json"
    entry.write_bytes(entry.read_bytes().replace(b"x = 1", b"x = 2"))
    assert renders.get(KEY) is None


def test_the_entry_of_another_key_is_not_taken(folder: Path) -> None:
    renders = RenderCache.open()
    renders.put(KEY, FILES)
    shutil.copy(folder / f"{KEY}.json", folder / f"{'cd' * 32}.json")
    assert renders.get("cd" * 32) is None


def as_link(entry: Path, good: Path) -> None:
    entry.symlink_to(good)


def as_folder(entry: Path, good: Path) -> None:
    entry.mkdir()


def as_pipe(entry: Path, good: Path) -> None:
    os.mkfifo(entry)


def as_noise(entry: Path, good: Path) -> None:
    entry.write_bytes(b"\xff" * 1000)


@pytest.mark.parametrize("make", [as_link, as_folder, as_pipe, as_noise])
def test_foreign_things_in_the_place_of_an_entry(folder: Path, tmp_path: Path, make: object) -> None:
    assert callable(make)
    renders = RenderCache.open()
    renders.put(KEY, FILES)
    good = tmp_path / "good"
    (folder / f"{KEY}.json").rename(good)
    make(folder / f"{KEY}.json", good)
    assert renders.get(KEY) is None
    renders.put(KEY, FILES)
    assert renders.get(KEY) in (FILES, None), "a folder in the way stays, everything else is replaced"
    assert not list(folder.glob(".*"))


def test_no_home_and_no_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file/below", Path("/proc/kgen"), Path("x" * 5000), Path("a\0b")):
        monkeypatch.setattr(os, "environ", {**os.environ, ENVIRONMENT: str(place)})
        renders = RenderCache.open()
        assert renders.store is None
        renders.put(KEY, FILES)
        assert renders.get(KEY) is None
        assert RENDERED.info().problem
        assert RENDERED.clear() == 0


def test_another_users_folder_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RenderCache.open().put(KEY, FILES)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert RenderCache.open().store is None
    assert "another user" in str(RENDERED.info().problem)


def test_a_link_for_a_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert RenderCache.open().store is None


def test_a_full_disk_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renders = RenderCache.open()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    renders.put(KEY, FILES)
    assert renders.get(KEY) is None
    assert list(folder.iterdir()) == []


def test_the_oldest_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgen.store.MOST_ENTRIES", 3)
    for number in range(5):
        key = f"{number:064x}"
        renders = RenderCache.open()
        renders.put(key, FILES)
        os.utime(folder / f"{key}.json", (number, number))
    RenderCache.open().put(KEY, FILES)
    assert sorted(path.stem for path in folder.iterdir()) == [f"{3:064x}", f"{4:064x}", KEY]


def test_info_and_clear_touch_entries_alone(folder: Path) -> None:
    renders = RenderCache.open()
    renders.put(KEY, FILES)
    (folder / "notes.txt").write_text("mine")
    assert (RENDERED.info().entries, RENDERED.info().problem) == (1, None)
    assert RENDERED.info().size == (folder / f"{KEY}.json").stat().st_size
    assert RENDERED.clear() == 1
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def age(path: Path, seconds: float) -> None:
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def test_what_a_dead_process_left_goes_and_what_is_being_written_stays(folder: Path) -> None:
    RenderCache.open().put(KEY, FILES)
    dead, alive, own = (folder / f".{digit * 16}.tmp" for digit in "abc")
    for path in (dead, alive):
        path.write_bytes(b"half")
    own.mkdir()
    (own / "prefill.py").write_text("")
    (folder / ".notes").write_text("mine")
    for path in (dead, own, folder / ".notes", folder / f"{KEY}.json"):
        age(path, ABANDONED + 1)
    RenderCache.open().put("cd" * 32, FILES)
    assert {path.name for path in folder.iterdir()} == {
        alive.name,
        ".notes",
        f"{KEY}.json",
        f"{'cd' * 32}.json",
    }
    assert RENDERED.clear() == 2
    assert [path.name for path in folder.iterdir()] == [".notes"]


def put_many(number: int) -> None:
    renders = RenderCache.open()
    for turn in range(40):
        key = f"{turn % 4:064x}"
        found = renders.get(key)
        assert found is None or found == {"a/x.py": f"{turn % 4}\n" * 1000}
        renders.put(key, {"a/x.py": f"{turn % 4}\n" * 1000})


def test_eight_processes_on_one_folder(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=put_many, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert not list(folder.glob(".*"))
    assert RENDERED.info().entries == 4


def test_the_key_depends_on_the_tools_the_spec_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    renders = RenderCache(None)
    keys = set()
    for tools in ("one", "two"):
        monkeypatch.setattr(cache, "toolchain_digest", lambda tools=tools: tools)
        keys |= {renders.key(name, data) for name in ("specs/a.yaml", "specs/b.yaml") for data in (b"", b"a", b"a\n")}
    assert len(keys) == 12
    assert renders.key("specs/a.yaml", b"a") == RenderCache(None).key("specs/a.yaml", b"a")


@pytest.fixture
def tools(tmp_path: Path) -> tuple[Path, Path]:
    package, templates = tmp_path / "kgen", tmp_path / "templates"
    (package / "plan/tuned").mkdir(parents=True)
    (templates / "parts").mkdir(parents=True)
    (package / "plan/lower.py").write_text("x = 1\n")
    (package / "plan/tuned/sm_90.json").write_text("{}")
    (templates / "parts/load.py.j2").write_text("load\n")
    return package, templates


@pytest.mark.parametrize("name", ["kgen/plan/lower.py", "kgen/plan/tuned/sm_90.json", "templates/parts/load.py.j2"])
def test_an_edit_changes_the_digest_and_a_touch_does_not(tools: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    before = cache.digest_of_files(*tools)
    (tmp_path / name).touch()
    os.utime(tmp_path / name, (1, 1))
    assert cache.digest_of_files(*tools) == before
    text = (tmp_path / name).read_text()
    (tmp_path / name).write_text(text + " ")
    assert cache.digest_of_files(*tools) != before
    (tmp_path / name).write_text(text)
    assert cache.digest_of_files(*tools) == before
    (tmp_path / name).rename((tmp_path / name).with_name("renamed" + Path(name).suffix))
    assert cache.digest_of_files(*tools) != before


def test_moving_bytes_between_files_changes_the_digest(tools: tuple[Path, Path]) -> None:
    package, templates = tools
    (package / "a.py").write_text("12")
    (package / "b.py").write_text("3")
    before = cache.digest_of_files(package, templates)
    (package / "a.py").write_text("1")
    (package / "b.py").write_text("23")
    assert cache.digest_of_files(package, templates) != before


def test_the_releases_of_the_libraries_count() -> None:
    found = " ".join(cache._releases()).lower()
    for library in ("python 3", "jinja2-", "pydantic-", "pydantic_core-", "pyyaml-", "markupsafe-"):
        assert library in found
