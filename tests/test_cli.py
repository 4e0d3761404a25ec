"""The command line: what it prints and where, its exit codes, and its manners."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kgen import __version__
from kgen.cli import app, environment, output
from kgen.cli.guard import guarded
from kgen.plan import lower

REPOSITORY = Path(__file__).resolve().parent.parent


def kgen(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    """The real program, in a process of its own."""
    command = [sys.executable, "-m", "kgen", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.Popen(command, env=environment, text=True, **options)  # type: ignore[call-overload,no-any-return]


def test_build_tells_what_it_wrote(project: Path) -> None:
    found = kgen("build", "specs/")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        "wrote generated/one/__init__.py",
        "wrote generated/one/decode.py",
        "wrote generated/one/prefill.py",
        "wrote generated/one/prefill_sm90.py",
        "wrote generated/two/__init__.py",
        "wrote generated/two/decode.py",
        "wrote generated/two/prefill.py",
        "wrote generated/two/prefill_sm90.py",
        "2 specs, 8 files: 8 written, 0 unchanged, 0 removed",
    ]
    assert found.stderr == ""
    assert kgen("build").stdout == "2 specs, 8 files: 0 written, 8 unchanged, 0 removed\n"
    (project / "specs/two.yml").unlink()
    lines = kgen("build").stdout.splitlines()
    assert lines[0] == "removed generated/two/__init__.py"
    assert lines[-1] == "1 spec, 4 files: 0 written, 4 unchanged, 4 removed"
    assert not (project / "generated/two").exists()


def test_an_edited_orphan_is_not_removed_without_a_word(project: Path) -> None:
    kgen("build")
    edited = project / "generated/two/decode.py"
    edited.write_text(edited.read_text() + "# mine\n")
    (project / "specs/two.yml").unlink()
    found = kgen("build")
    assert found.exit_code == 0
    assert "generated/two/decode.py was edited by hand and is removed" in found.stderr
    assert "prefill.py was edited" not in found.stderr


def test_a_broken_link_is_not_a_deleted_spec(project: Path) -> None:
    kgen("build")
    (project / "specs/two.yml").unlink()
    (project / "specs/two.yml").symlink_to("../elsewhere.yml")
    found = kgen("build")
    assert found.exit_code == 2
    assert "specs/two.yml: is a broken link" in found.stderr
    assert (project / "generated/two/decode.py").is_file()


def test_a_folder_named_like_a_spec_is_an_error(project: Path) -> None:
    (project / "specs/three.yaml").mkdir()
    found = kgen("build")
    assert found.exit_code == 2
    assert "specs/three.yaml: is a folder, expected a spec file" in found.stderr


def test_the_fix_for_a_file_in_the_way_is_to_move_it(project: Path) -> None:
    (project / "generated/one").mkdir(parents=True)
    (project / "generated/one/decode.py").write_text("mine\n")
    kgen("build", "specs/two.yml")
    found = kgen("check", "--format", "json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["fix"] == "move generated/one/decode.py away, then kgen build specs/"


def test_build_of_one_spec_removes_nothing(project: Path) -> None:
    kgen("build")
    (project / "specs/two.yml").unlink()
    assert kgen("build", "specs/one.yaml").exit_code == 0
    assert (project / "generated/two/decode.py").exists()


def test_build_elsewhere(project: Path) -> None:
    assert kgen("build", "--out", "there").stdout.startswith("wrote there/one/__init__.py\n")
    assert kgen("check", "--out", "there").exit_code == 0
    assert kgen("check").exit_code == 1


def test_build_warns_of_what_it_takes_away_by_name(project: Path) -> None:
    kgen("build")
    file = project / "generated/one/decode.py"
    text = file.read_text()
    file.write_text(text + "# mine\n")
    (project / "generated/one/notes.txt").write_text("mine")
    found = kgen("build")
    assert found.exit_code == 0
    assert "warning: generated/one/decode.py was edited by hand" in found.stderr
    assert "foreign: generated/one/notes.txt" in found.stderr
    assert file.read_text() == text
    assert (project / "generated/one/notes.txt").exists()


def test_build_refuses_to_overwrite_a_foreign_file(project: Path) -> None:
    (project / "generated/one").mkdir(parents=True)
    (project / "generated/one/decode.py").write_text("mine = 1\n")
    found = kgen("build")
    assert found.exit_code == 2
    assert found.stdout == ""
    assert "generated/one/decode.py" in found.stderr
    assert (project / "generated/one/decode.py").read_text() == "mine = 1\n"
    assert not (project / "generated/two").exists()
    assert kgen("check").exit_code == 1


def change(project: Path) -> None:
    spec = project / "specs/one.yaml"
    spec.write_text(spec.read_text().replace("causal", "full"))


def lose(project: Path) -> None:
    (project / "generated/one/decode.py").unlink()


def orphan(project: Path) -> None:
    (project / "specs/two.yml").unlink()


def edit(project: Path) -> None:
    file = project / "generated/one/decode.py"
    file.write_text(file.read_text().replace("tl.exp2", "tl.exp"))


@pytest.mark.parametrize(
    ("make", "kind", "files"),
    [(change, "changed", 4), (lose, "missing", 1), (orphan, "orphaned", 4), (edit, "hand-edited", 1)],
)
def test_check_and_diff(project: Path, make: Callable[[Path], None], kind: str, files: int) -> None:
    kgen("build")
    clean = kgen("check", "specs/")
    assert (clean.exit_code, clean.stdout) == (0, "clean: 8 files of 2 specs as generated\n")
    assert (kgen("diff").exit_code, kgen("diff").stdout) == (0, "")
    make(project)

    found = kgen("check", "specs/")
    assert found.exit_code == 1
    lines = found.stdout.splitlines()
    assert sum(line.startswith(f"{kind}: generated/") for line in lines) == files
    assert sum(line.startswith("@@") for line in lines) >= files
    assert lines[-1].startswith(f"{files} {kind} of ")
    assert lines[-1].endswith("; to fix: kgen build specs/")

    machine = kgen("check", "--format", "json")
    assert machine.exit_code == 1
    told = json.loads(machine.stdout)
    assert (told["clean"], told["fix"]) == (False, "kgen build specs/")
    assert [drift["kind"] for drift in told["drifts"]] == [kind] * files
    assert all(drift["fails"] and drift["diff"] for drift in told["drifts"])

    review = kgen("check", "--format", "github").stdout.splitlines()
    assert len(review) == files
    assert all(
        line.startswith("::error file=generated/") and f"title={kind} generated file::" in line for line in review
    )

    states = json.loads(kgen("list", "--format", "json").stdout)
    assert sum(row["state"] == kind for row in states) == files

    patch = kgen("diff")
    assert patch.exit_code == 1
    subprocess.run(["git", "apply", "-"], cwd=project, input=patch.stdout.encode(), check=True)
    assert kgen("check").exit_code == 0


def test_the_last_line_of_check_is_the_command_that_fixes_it(project: Path) -> None:
    command = (
        kgen("check", "specs/one.yaml", "--out", "else where").stdout.splitlines()[-1].partition("to fix: kgen ")[2]
    )
    assert command == "build specs/one.yaml --out 'else where'"
    assert kgen("build", "specs/one.yaml", "--out", "else where").exit_code == 0
    assert kgen("check", "specs/one.yaml", "--out", "else where").exit_code == 0


def test_a_foreign_file_does_not_fail_a_check(project: Path) -> None:
    kgen("build")
    (project / "generated/one/notes.txt").write_text("mine")
    found = kgen("check")
    assert found.exit_code == 0
    assert found.stdout.startswith("foreign: generated/one/notes.txt")
    assert kgen("check", "--format", "github").stdout.startswith("::notice file=generated/one/notes.txt,")
    assert kgen("diff").exit_code == 0


def test_line_ends_alone_are_told(project: Path) -> None:
    kgen("build")
    file = project / "generated/one/decode.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    found = kgen("check")
    assert found.exit_code == 1
    assert "CRLF" in found.stdout
    assert "@@" not in found.stdout
    assert "CRLF" in kgen("diff").stderr


def test_list(project: Path) -> None:
    kgen("build", "specs/one.yaml")
    lines = [line.split() for line in kgen("list").stdout.splitlines()]
    assert lines[0] == ["SPEC", "KERNEL", "FILE", "STATE"]
    assert ["one", "decode", "generated/one/decode.py", "ok"] in lines
    assert ["two", "prefill", "generated/two/prefill.py", "missing"] in lines


def test_errors_of_a_spec(project: Path) -> None:
    spec = project / "specs/one.yaml"
    spec.write_text(spec.read_text().replace("head_dim_qk: 64", "head_dim_qk: 65"))
    for verb in ("build", "check", "diff", "list", "explain"):
        found = kgen(verb)
        assert found.exit_code == 2, verb
        assert found.stdout == ""
        assert found.stderr.startswith("specs/one.yaml:6:"), "the path that the user can open, and the line"
        assert "error[KG" in found.stderr
    assert not (project / "generated").exists(), "nothing is written before everything is rendered"
    told = json.loads(kgen("check", "--format", "json").stdout)
    assert [(row["path"], row["line"]) for row in told["errors"]] == [("specs/one.yaml", 6)]
    assert kgen("check", "--format", "github").stdout.startswith("::error file=specs/one.yaml,line=6,")


def test_the_path_of_an_error_is_as_seen_from_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "specs/one.yaml").write_text("name: 1\n")
    monkeypatch.chdir(project / "specs")
    for verb in ("build", "explain"):
        assert kgen(verb, "one.yaml").stderr.startswith("one.yaml:1:")


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "nowhere"],
        ["build", "empty"],
        ["build", "/dev/zero"],
        ["build", "loop.yaml"],
        ["build", "a\nb.yaml"],
        ["build", "specs", "--out", "file"],
        ["build", "specs", "--out", "file/below"],
        ["build", "specs", "--out", "/proc/kgen"],
        ["build", "specs", "--out", "x" * 300],
        ["build", "specs", "others"],
        ["build", "--no-such-option"],
        ["check", "--format", "yaml"],
        ["explain", "--kernel", "nope"],
        ["init", "../evil"],
        ["init", "class"],
        ["init", "Upper"],
        ["init", "one"],
        ["init", "new", "--specs", "file"],
        ["no-such-verb"],
        [],
    ],
)
def test_what_the_user_got_wrong_is_exit_code_2(project: Path, arguments: list[str]) -> None:
    (project / "empty").mkdir()
    (project / "others").mkdir()
    shutil.copy(project / "specs/one.yaml", project / "others/one.yaml")
    (project / "file").write_text("mine")
    (project / "loop.yaml").symlink_to("loop.yaml")
    before = sorted(path.as_posix() for path in project.rglob("*"))
    found = kgen(*arguments)
    assert found.exit_code == 2
    assert len(found.stderr.splitlines()) <= 5 or not arguments
    assert "Traceback" not in found.stderr
    assert sorted(path.as_posix() for path in project.rglob("*")) == before


def test_a_name_that_leaves_the_output_folder_is_refused(project: Path) -> None:
    spec = project / "specs/one.yaml"
    text = spec.read_text()
    for name in ('"../evil"', "/etc/evil", '"a/b"', '"..\\\\evil"', '"a\\0b"', "con", "CON"):
        spec.write_text(text.replace("name: one", f"name: {name}"))
        assert kgen("build").exit_code == 2, name
        spec.write_text(text.replace("decode: {}", f"{name}: {{kind: decode}}"))
        assert kgen("build").exit_code == 2, name
    assert sorted(path.name for path in project.iterdir()) == ["specs"]


def test_no_specs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = kgen("build")
    assert found.exit_code == 2
    assert "kgen init" in found.stderr


def test_init_writes_a_spec_that_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kgen("init", "mine").stdout == "wrote specs/mine.yaml\n"
    assert kgen("build", "specs/mine.yaml").exit_code == 0
    assert (tmp_path / "generated/mine/decode.py").exists()
    text = (tmp_path / "specs/mine.yaml").read_text()
    assert all(len(line) <= 120 for line in text.splitlines())
    (tmp_path / "specs/mine.yaml").write_text("mine")
    found = kgen("init", "mine")
    assert found.exit_code == 2
    assert "there already" in found.stderr
    assert (tmp_path / "specs/mine.yaml").read_text() == "mine"


def test_explain_gives_every_reason_and_every_target(project: Path) -> None:
    text = kgen("explain", "specs/one.yaml", "--kernel", "decode").stdout
    assert text.startswith("one.decode, from specs/one.yaml\n")
    told = json.loads(kgen("explain", "specs/one.yaml", "--format", "json").stdout)
    assert sorted(plan["kernel"] for plan in told) == ["decode", "prefill"]
    decode = next(plan for plan in told if plan["kernel"] == "decode")
    assert decode["reasons"]
    for reason in decode["reasons"]:
        assert reason["choice"] in text
        assert reason["why"] in text
    assert {row["target"] for row in decode["launch"]} == {
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "sm_100",
        "sm_120",
        "gfx942",
    }
    for row in decode["launch"]:
        assert 0 < row["shared_bytes"] <= row["shared_limit"]
        assert f"{row['shared_bytes']:,}" in text


def test_explain_knows_a_merge(project: Path) -> None:
    spec = project / "specs/one.yaml"
    spec.write_text(spec.read_text() + "  merge_states: {layout: bshd}\n")
    head, _, *lines = kgen("explain", "specs/one.yaml", "--kernel", "merge_states").stdout.splitlines()
    assert head == "one.merge_states, from specs/one.yaml"
    assert any(line.startswith("layout bshd ") and "[B, M, H, D]" in line for line in lines)
    assert any(line.split() == ["sm_90", "32", "4", "3", "8,960", "0", "232,448"] for line in lines)


def test_schema_is_json(project: Path) -> None:
    assert "properties" in json.loads(kgen("schema").stdout)


def test_version() -> None:
    assert kgen("--version").stdout == f"kgen {__version__}\n"


def test_a_fault_of_kgens_own_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> object:
        raise ValueError("two\nlines")

    monkeypatch.setattr(lower, "lower", broken)
    found = kgen("explain")
    assert found.exit_code == 3
    assert len(found.stderr.splitlines()) == 1
    assert "internal error: ValueError: two lines (test_cli.py:" in found.stderr
    assert "KGEN_TRACEBACK=1" in found.stderr
    monkeypatch.setenv("KGEN_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in kgen("explain").stderr


@pytest.mark.parametrize("name", ["torch", "triton", "triton.language"])
def test_a_missing_library_is_exit_code_4(project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(_: object) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(lower, "lower", broken)
    found = kgen("explain")
    assert found.exit_code == 4
    assert name in found.stderr


def test_a_reader_that_goes_away(project: Path) -> None:
    """`kgen diff | head -1` ends quietly."""
    process = start("diff", cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_a_full_disk_behind_stdout(project: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start("list", cwd=project, stdout=full, stderr=subprocess.PIPE)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert errors == "kgen: error: cannot write the output: No space left on device\n"


def test_no_stdout_at_all(project: Path) -> None:
    process = start(
        "build", cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1)
    )
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def test_an_interrupt_is_quiet(project: Path) -> None:
    code = (
        "import time; from kgen.cli import main\n"
        "import kgen.workspace as w\n"
        "def wait(*_): print('ready', flush=True); time.sleep(60)\n"
        "w.rendered = wait\nmain()"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", code, "build"]
    process = subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell that runs the tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


def test_an_interrupt_is_the_same_under_every_release_of_typer() -> None:
    @guarded
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        interrupted()
    assert ended.value.exit_code == 130


def in_a_terminal(*arguments: str, cwd: Path, **environment: str) -> str:
    """What a terminal of 100 columns shows."""
    leader, follower = pty.openpty()
    process = start(
        *arguments, cwd=cwd, stdout=follower, stderr=follower, env={"TERM": "xterm", "COLUMNS": "100", **environment}
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal that way
        while data := os.read(leader, 4096):
            shown += data
    os.close(leader)
    process.wait()
    return shown.decode()


def test_colour_and_frames_are_for_a_terminal(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[32m+" in in_a_terminal("diff", cwd=project)
    assert "\x1b[" not in in_a_terminal("diff", cwd=project, NO_COLOR="1").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "─" in in_a_terminal("list", cwd=project, LANG="C.UTF-8", LC_ALL="C.UTF-8")
    plain = in_a_terminal("list", cwd=project, PYTHONIOENCODING="ascii")
    assert plain.isascii()
    assert "generated/one/decode.py" in plain
    for verb in ("diff", "list", "explain", "check", "--help", "doctor"):
        process = start(verb, cwd=project, stdout=subprocess.PIPE, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
        text, _ = process.communicate()
        assert text.isascii(), verb
        assert "\x1b" not in text, verb
        assert text, verb


def test_a_character_that_the_terminal_cannot_show(project: Path) -> None:
    (project / "specs/one.yaml").rename(project / "specs/ünï.yaml")
    process = start("diff", cwd=project, stdout=subprocess.PIPE, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    text, _ = process.communicate()
    assert process.returncode == 1
    assert "+# Code generated by kgen from specs/\\xfcn\\xef.yaml. DO NOT EDIT." in text


def test_doctor(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"torch": "2.13.0", "triton": "3.7.1", "numpy": "2.4.6"}
    monkeypatch.setattr(environment, "version", releases.get)
    told = {row["subject"]: row for row in json.loads(kgen("doctor", "--format", "json").stdout)}
    assert set(told) == {"python", "torch", "triton", "numpy", "triton's interpreter", "gpu", "cache", "templates"}
    assert told["templates"]["state"] == "ok"
    assert told["triton's interpreter"]["state"] == "ok"


@pytest.mark.parametrize(
    ("triton", "numpy", "code"),
    [
        ("3.6.0", "2.4.6", 1),
        ("3.6.1", "2.5.0", 1),
        ("3.6.0", "2.3.5", 0),
        ("3.7.1", "2.4.6", 0),
        ("3.10.0", "2.4.6", 0),
        (None, "2.4.6", 0),
        ("3.6.0", None, 0),
    ],
)
def test_doctor_knows_the_bad_pair(
    monkeypatch: pytest.MonkeyPatch, triton: str | None, numpy: str | None, code: int
) -> None:
    monkeypatch.setattr(environment, "version", {"triton": triton, "numpy": numpy}.get)
    found = kgen("doctor")
    assert found.exit_code == code
    assert ("problem" in found.stdout) is bool(code)


def test_doctor_tells_of_a_cache_that_cannot_be_used(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "file").write_text("")
    monkeypatch.setenv("KGEN_CACHE_DIR", str(project / "file"))
    told = {row["subject"]: row for row in json.loads(kgen("doctor", "--format", "json").stdout)}
    assert told["cache"]["state"] == "note"
    assert "not used" in told["cache"]["detail"]
    assert kgen("build").exit_code == 0
    assert "not used" in kgen("cache", "info").stdout


def test_cache_info_and_clear(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGEN_CACHE_DIR", str(project / "cache"))
    kgen("build")
    package = project / f"cache/packages/one-{'ab' * 32}"
    package.parent.mkdir(mode=0o700)
    package.mkdir()
    (package / "prefill.py").write_text("x = 1\n")
    told = {row.pop("name"): row for row in json.loads(kgen("cache", "info", "--format", "json").stdout)}
    size = sum(path.stat().st_size for path in (project / "cache/rendered").iterdir())
    assert told == {
        "rendered": {"folder": str(project / "cache/rendered"), "entries": 2, "bytes": size, "problem": None},
        "packages": {"folder": str(project / "cache/packages"), "entries": 1, "bytes": 6, "problem": None},
    }
    assert f"packages 1 6 {project / 'cache/packages'}" in re.sub(" +", " ", kgen("cache", "info").stdout)
    assert kgen("cache", "clear").stdout == "removed 3 entries\n"
    assert [row["entries"] for row in json.loads(kgen("cache", "info", "--format", "json").stdout)] == [0, 0]
    assert not package.exists()


def test_nothing_is_written_twice_at_once(project: Path) -> None:
    processes = [start("build", cwd=project, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert kgen("check").exit_code == 0
    assert not list((project / "generated").rglob(".kgen-*"))


def test_a_table_in_a_pipe_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A", "BB"), [("long", "x"), ("", "")])
    assert capsys.readouterr().out == "A     BB\nlong  x\n\n"
