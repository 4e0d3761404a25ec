"""The README's table of features is the one that the refusals are made from."""

from __future__ import annotations

from pathlib import Path

from kgen.plan.features import table

README = Path(__file__).parent.parent / "README.md"
START, END = "<!-- features:start -->\n", "<!-- features:end -->"


def test_the_readme_has_the_table_of_features() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count(START) == text.count(END) == 1
    shown = text[text.index(START) + len(START) : text.index(END)]
    assert shown.strip() == table().strip(), "put the output of kgen.plan.features.table() between the markers"
