"""Pages of the documentation show what their commands print, and the tutorial explains every hunk that it shows."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from docs import console
from kgen.verify import interpreter

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs/tutorial/README.md"


@pytest.fixture(scope="module")
def ran() -> tuple[str, list[str]]:
    """The tutorial after its commands ran, and the source that they generated."""
    interpreter.require()
    with console.copied() as folder:
        text = console.refreshed(TUTORIAL.read_text(encoding="utf-8"))
        generated = [path.read_text(encoding="utf-8") for path in (folder / "build/tutorial").rglob("*.py")]
    return text, generated


def assert_same(shown: str, printed: str) -> None:
    lines = difflib.unified_diff(shown.splitlines(), printed.splitlines(), "shown", "printed", lineterm="")
    assert shown == printed, "run `make docs` and explain what changed:\n" + "\n".join(lines)


def test_the_tutorial_shows_what_its_commands_print(ran: tuple[str, list[str]]) -> None:
    assert_same(TUTORIAL.read_text(encoding="utf-8"), ran[0])


def test_other_pages_show_what_their_commands_print() -> None:
    pages = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
    assert {page for page, text in pages.items() if "```console" in text} == set(console.PAGES)
    assert all(text.count("```console") == len(console.BLOCK.findall(text)) for text in pages.values())
    for page in set(console.PAGES) - {"docs/tutorial/README.md"}:
        with console.copied():
            assert_same(pages[page], console.refreshed(pages[page]))


def test_code_that_the_tutorial_quotes_is_generated_or_runs_in_it(ran: tuple[str, list[str]]) -> None:
    quotes = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    scripts = set(re.findall(r"^\$ python (\S+)", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE))
    sources = [*ran[1], *((ROOT / script).read_text(encoding="utf-8") for script in scripts)]
    assert quotes
    for quote in quotes:
        assert any(quote in source for source in sources), quote


def test_the_tutorial_explains_every_hunk() -> None:
    blocks = re.split(r"^```.*$", TUTORIAL.read_text(encoding="utf-8"), flags=re.MULTILINE)
    diffs = 0
    for block, explanation in zip(blocks[1::2], blocks[2::2], strict=True):
        shown = [int(number) for number in re.findall(r"^@@ (\d+): ", block, re.MULTILINE)]
        if not shown:
            continue
        diffs += 1
        explained: list[int] = []
        for numbers in re.findall(r"^- \*\*(.*?)\*\* ", explanation, re.MULTILINE):
            for part in numbers.split(", "):
                first, _, last = part.partition("–")
                explained += range(int(first), int(last or first) + 1)
        assert explained == shown, block
    assert diffs >= 5


def test_every_spec_of_the_tutorial_is_verified_in_it() -> None:
    verified = re.findall(r"^\$ kgen verify (.*) --out", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    specs = [path.relative_to(ROOT).as_posix() for path in sorted(TUTORIAL.parent.glob("specs/*.yaml"))]
    assert [spec for command in verified for spec in command.split()] == specs


def test_a_page_with_other_output_is_refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("name: a\n")
    page = "Before.\n\n```console\n$ cat a.yaml\nname: b\n```\n\nAfter.\n"
    assert console.refreshed(page) == page.replace("name: b", "name: a")


@pytest.mark.parametrize("command", ["kgen cost missing.yaml", "python fails.py", "rm -r specs"])
def test_a_command_that_fails_fails_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fails.py").write_text("raise SystemExit('no such thing')\n")
    with pytest.raises(RuntimeError, match=re.escape(command)):
        console.run(command)


def test_what_verify_finds_is_compared_and_what_it_measures_is_not() -> None:
    line = "mha.prefill  31/31   1.2e-04 / 5.8e-04  3.9e-07 / 9.2e-07  kept    values denormal  2.4\n"
    total = "31 of 31 cases passed on cpu in 2 s\n"
    other = "mha.prefill  31/31   9.2e-05 / 5.8e-04  4.1e-07 / 9.2e-07  kept    lengths, 1 split  12.0\n"
    assert console.settled(line + total) == console.settled(other + total.replace("2 s", "14 s"))
    for wrong in (line.replace("31/31", "30/31"), line.replace("kept   ", "CHANGED")):
        assert console.settled(wrong) != console.settled(line)
    assert console.settled(total.replace("31 of", "30 of")) != console.settled(total)
