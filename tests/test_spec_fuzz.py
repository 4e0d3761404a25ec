"""Whatever a file holds, loading it gives a spec or diagnostics, soon, and safe to print."""

# ruff: noqa: E501 (tables, a case a line)

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgen.errors import SpecError
from kgen.spec.loader import LoadedSpec, load_text
from kgen.spec.yaml_source import MAX_DEPTH, read
from tests.spec_helpers import VALID

TOKENS = [
    *("a", "name", "kind", "causal", "attention", "kernels", "decode", "on", "1", "-3", "010", "1e5", ".inf", "é", "日", "😀"),
    *(": ", "- ", "? ", "{", "}", "[", "]", ",", "\n", "\n  ", "\n    ", " ", "\t", "#", "|", ">", "'", '"', "\\", "\\u0007"),
    *("&a ", "*a ", "!t ", "!!int ", "<<: ", "---\n", "...\n", "%YAML 1.1\n", "@", "`", "~", "null", "\r", "\x00", "\u2028", "\ufeff"),
]  # fmt: skip
LINES = VALID.splitlines()


def outcome(source: str | bytes) -> LoadedSpec | SpecError:
    """What loading gives; any other exception fails the test. Checks what holds for every error."""
    try:
        return load_text(source, "s.yaml")
    except SpecError as error:
        check(error)
        return error


def check(error: SpecError) -> None:
    """What holds for every error: places in order, and text that is safe to print."""
    assert error.diagnostics
    places = [(d.line, d.column) for d in error.diagnostics]
    assert places == sorted(places)
    for diagnostic in error.diagnostics:
        assert diagnostic.line >= 1
        assert diagnostic.column >= 1
        assert diagnostic.length >= 1
        assert diagnostic.github().isprintable()
        assert diagnostic.text().replace("\n", "").replace("\t", "").isprintable()
        assert len(diagnostic.text()) < 2000


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_bytes(source: bytes) -> None:
    outcome(source)


@given(st.lists(st.sampled_from(TOKENS), max_size=60).map("".join))
@settings(max_examples=600, deadline=None)
@example('a: "\\UFFFFFFFF"')
@example("%YAML " + "9" * 5000 + ".1\n--- a")
@example("a: " + "9" * 5000)
@example('a: "\\ud800"')
@example('"\\ud800": 1')
def test_text_like_yaml(text: str) -> None:
    outcome(text)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The valid spec with lines swapped, dropped or repeated and pieces replaced."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["drop", "repeat", "indent", "key", "value", "insert", "swap"]))
        line = lines[row]
        if change == "drop" and len(lines) > 1:
            del lines[row]
        elif change == "repeat":
            lines.insert(row, line)
        elif change == "indent":
            lines[row] = " " * draw(st.integers(0, 6)) + line.strip()
        elif change == "key":
            lines[row] = draw(st.sampled_from(TOKENS)).strip("\n") + line.strip()
        elif change == "value":
            value = draw(
                st.one_of(st.sampled_from(TOKENS), st.integers().map(str), st.floats().map(repr), st.text(max_size=8))
            )
            lines[row] = f"{line.partition(':')[0]}: {value}"
        elif change == "insert":
            at = draw(st.integers(0, len(line)))
            lines[row] = line[:at] + draw(st.sampled_from(TOKENS)) + line[at:]
        else:
            other = draw(st.integers(0, len(lines) - 1))
            lines[row], lines[other] = lines[other], lines[row]
    return "\n".join(lines) + "\n"


@given(mutated())
@settings(max_examples=600, deadline=None)
def test_a_valid_spec_with_changes(text: str) -> None:
    found = outcome(text)
    if isinstance(found, LoadedSpec):
        # What loads means the same to a library that reads YAML 1.1.
        assert yaml.safe_load(text) == found.document.data
        assert load_text(text.encode(), "other.yaml").digest == found.digest


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_value_in_any_place(data: st.DataObject) -> None:
    spec = yaml.safe_load(VALID)
    places = [
        ("name",), ("attention",), ("dtype",), ("targets",), ("allow_tf32",), ("kernels",), ("extra",),
        ("attention", "kind"), ("attention", "mask"), ("attention", "mask", "kind"), ("attention", "mask", "size"),
        ("attention", "num_kv_heads"), ("attention", "sm_scale"), ("attention", "head_dim_qk"), ("attention", "sinks"),
        ("kernels", "decode"), ("kernels", "decode", "kind"), ("kernels", "decode", "kv"), ("kernels", "decode", "num_splits"),
        ("kernels", "other"), ("kernels", "backward"),
    ]  # fmt: skip
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places))
        node = spec
        for key in path:
            node = node[key] if isinstance(node.get(key), dict) else {}
        node[last] = data.draw(VALUES)
    outcome(yaml.safe_dump(spec, allow_unicode=True))


LIMIT = 65536
BOMBS = {
    "laughs": "a: &a [x,x,x,x]\n" + "".join(f"k{n}: &k{n} [*a,*a,*a,*a,*a,*a,*a,*a]\n" for n in range(60)),
    "lists": "[" * LIMIT,
    "mappings": "{" * LIMIT,
    "blocks": "a: {" * (LIMIT // 4),
    "dashes": "- " * (LIMIT // 2),
    "questions": "? " * (LIMIT // 2),
    "anchors": "&a " * (LIMIT // 3),
    "entries": "[" + "a," * (LIMIT // 2 - 1) + "]",
    "duplicates": "a: 1\n" * (LIMIT // 5),
    "unknown": "".join(f"nam{n}: 1\n" for n in range(6000)),
    "targets": "targets: [" + "sm_1," * 13000 + "]",
    "kernels": "kernels:\n" + "".join(f"  d{n}: {{}}\n" for n in range(5500)),
    "digits": "name: " + "1" * 65000,
    "underscores": "name: " + "1_" * 32000,
    "sexagesimal": "name: 1" + ":59" * 21000,
    "exponent": "name: 1.0e+" + "9" * 65000,
    "hexadecimal": "name: 0x" + "f" * 65000,
    "word": "name: " + "a" * 65000,
    "key": "a" * 65000 + ": 1",
    "colons": ":" * 65000,
    "documents": "---\n" * 16000,
    "comment": "#" * 65000 + "\nname: a",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_file_is_refused_soon(name: str) -> None:
    start = time.perf_counter()
    assert isinstance(outcome(BOMBS[name]), SpecError)
    assert time.perf_counter() - start < 5  # a second here; a machine under load has its time


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_the_limit_of_nesting_is_exact(opening: str, closing: str) -> None:
    inside = MAX_DEPTH - 1  # the root mapping is a level
    assert read(f"a: {opening * inside}1{closing * inside}", "s.yaml").problems == ()
    deeper = read(f"a: {opening * (inside + 1)}1{closing * (inside + 1)}", "s.yaml").problems
    assert [problem.code for problem in deeper] == ["KG003"]
