"""Processes load from one cache while some are killed and one spoils it: no wrong module, no crash, no litter."""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import warnings
from ctypes import c_int
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import kgen
from kgen.project import project as project_of
from kgen.runtime import imports
from kgen.spec.loader import load_text
from kgen.store import ABANDONED, ENVIRONMENT, PACKAGES, RENDERED
from tests.verify_support import document

PROCESSES, LOADS, KILLS = 16, 200, 40
FOREIGN = "raise SystemExit('a foreign file was imported')\n"
FORK = multiprocessing.get_context("fork")

Specs = dict[Path, dict[str, str]]


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specs:
    """Four specs with the files that each renders, and a cache of the test's own.

    Compiling takes most of the time of a load and depends on the text alone: here each text is compiled once.
    """
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache"))
    compile_once = functools.cache(imports._Importer.source_to_code)
    monkeypatch.setattr(imports._Importer, "source_to_code", staticmethod(compile_once))
    (tmp_path / "specs").mkdir()
    found = {write_spec(tmp_path, heads): {} for heads in range(1, 5)}
    for path, files in found.items():
        for name, text in project_of([load_text(path.read_bytes(), f"specs/{path.name}")]).items():
            files[name.partition("/")[2]] = text
        assert load_anew(path).__name__.endswith(".merge_states")
    return found


def write_spec(tmp_path: Path, heads: int) -> Path:
    path = tmp_path / f"specs/s{heads}.yaml"
    data = document(heads=heads, kernels={"merge_states": {}}) | {"name": path.stem}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def load_anew(path: Path) -> ModuleType:
    """As in a process that has loaded nothing."""
    for name in imports._importer.packages:
        sys.modules.pop(name, None)
        sys.modules.pop(f"{name}.merge_states", None)
    imports._importer.packages.clear()
    return kgen.load(path)


def load_many(specs: Specs, seed: int, done: c_int, calm: c_int) -> None:
    """Loads until ``LOADS`` are done, those of killed predecessors counted, and nobody is killed any more."""
    chance = random.Random(seed)
    warnings.simplefilter("error", RuntimeWarning)  # told where the cache cannot be used: here it always can
    while done.value < LOADS or not calm.value:
        path, files = chance.choice(list(specs.items()))
        module = load_anew(path)
        assert inspect.getsource(module) == files["merge_states.py"]
        assert module.SPEC["name"] == path.stem
        done.value += 1


def spoil(seed: int, parent: int) -> None:
    """Damages the cache until it is killed."""
    chance = random.Random(seed)
    while os.getppid() == parent:
        time.sleep(chance.uniform(0, 0.004))
        with contextlib.suppress(OSError, IndexError, ValueError):  # another process was first
            damage(chance)


def damage(chance: random.Random) -> None:
    """Damages an entry, puts something foreign in its place, or clears the cache."""
    entries = [path for path in PACKAGES.folder.iterdir() if not path.name.startswith(".")]
    entry = chance.choice(entries)
    file = chance.choice(list(entry.iterdir()))
    match chance.randrange(8):
        case 0:
            os.truncate(file, chance.randrange(file.stat().st_size))
        case 1:
            file.write_text(FOREIGN)
        case 2:
            file.unlink()
        case 3:
            (entry / "torch.py").write_text(FOREIGN)
        case 4:
            shutil.rmtree(entry)
            entry.write_text(FOREIGN)
        case 5:
            entry.rename(chance.choice(entries))
        case 6:
            os.truncate(chance.choice(list(RENDERED.folder.iterdir())), chance.randrange(500))
        case 7 if chance.random() < 0.1:
            PACKAGES.clear()
            RENDERED.clear()


def test_processes_that_are_killed_and_a_cache_that_is_spoilt(specs: Specs, tmp_path: Path) -> None:
    chance = random.Random(0)
    calm = FORK.Value("b", 0, lock=False)
    counts = [FORK.Value("i", 0, lock=False) for _ in range(PROCESSES)]

    def start(number: int, seed: int) -> BaseProcess:
        worker = FORK.Process(target=load_many, args=(specs, seed, counts[number], calm), daemon=True)
        worker.start()
        return worker

    spoiler = FORK.Process(target=spoil, args=(1, os.getpid()), daemon=True)
    spoiler.start()
    workers = [start(number, number) for number in range(PROCESSES)]
    codes = []
    for kill in range(KILLS):
        time.sleep(chance.uniform(0, 0.03))
        number = chance.randrange(PROCESSES)
        workers[number].kill()
        workers[number].join()
        codes.append(workers[number].exitcode)
        workers[number] = start(number, PROCESSES + kill)
    calm.value = 1
    for worker in workers:
        worker.join()
    spoiler.kill()
    spoiler.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    assert [*codes, spoiler.exitcode] == [-signal.SIGKILL] * (KILLS + 1), "none ended by itself"
    assert min(count.value for count in counts) >= LOADS
    assert_clean_after_a_prune(specs, tmp_path)


def assert_clean_after_a_prune(specs: Specs, tmp_path: Path) -> None:
    """One more load of each mends its entry; what dead processes left goes with the next that is written."""
    entries = {Path(str(load_anew(path).__file__)).parent: files for path, files in specs.items()}
    for entry in PACKAGES.folder.iterdir():
        if entry.name.startswith("."):
            os.utime(entry, (time.time() - ABANDONED - 1,) * 2)
    new = Path(str(load_anew(write_spec(tmp_path, 5)).__file__)).parent
    assert set(PACKAGES.folder.iterdir()) == {*entries, new}
    for entry, files in entries.items():
        assert {path.name: path.read_text() for path in entry.iterdir()} == files


def test_a_process_that_dies_while_it_writes_is_in_nobodys_way(
    specs: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PACKAGES.clear()
    path, files = next(iter(specs.items()))
    with monkeypatch.context() as dying:
        dying.setattr(os, "rename", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        process = FORK.Process(target=load_anew, args=(path,))
        process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = PACKAGES.folder.iterdir()
    assert left.name.startswith(".")
    assert {file.name for file in left.iterdir()} == set(files)
    before = time.monotonic()
    assert inspect.getsource(load_anew(path)) == files["merge_states.py"]
    assert time.monotonic() - before < 2, "nothing is waited for"
    assert left.exists(), "it might still be written"
    assert_clean_after_a_prune(specs, tmp_path)
    assert not left.exists()
