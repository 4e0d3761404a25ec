"""The strict YAML below the spec language."""

# ruff: noqa: E501 (tables, a case a line)

from __future__ import annotations

import pytest
import yaml

from kgen.spec import scalars
from kgen.spec.document import Span
from kgen.spec.yaml_source import read
from tests.spec_helpers import VALID, changed, heads, load


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (b"", "1:1: [KG001]: the file is empty"),
        (b"\xef\xbb\xbf \n\n", "1:1: [KG001]: the file is empty"),
        (b"# only a comment\n", "1:1: [KG007]: a spec is a mapping of fields to values"),
        (b"- a\n", "1:1: [KG007]: a spec is a mapping of fields to values"),
        (b"text", "1:1: [KG007]: a spec is a mapping of fields to values"),
        (b"#" * 65537, "1:1: [KG001]: the file is larger than 65,536 bytes, the limit of a spec"),
        (b"a: 1\nb: \xe9\n", "2:4: [KG001]: byte 0xe9 is not UTF-8"),
        ("name: x".encode("utf-16"), "1:1: [KG001]: byte 0xff is not UTF-8"),
        ("a: \ud800", "1:1: [KG001]: the text holds half a character (a surrogate) at offset 3"),
        (b"a: \x00", "1:4: [KG002]: hidden character U+0000 (a control character)"),
        (b"a: \x1b[0m", "1:4: [KG002]: hidden character U+001B (a control character)"),
        ("a: \u202e", "1:4: [KG002]: hidden character U+202E (right-to-left override)"),
        ("a: 1 # \u2028", "1:8: [KG002]: hidden character U+2028 (line separator)"),
        ("a: 1\nb: \x85", "2:4: [KG002]: hidden character U+0085 (a control character)"),
        ("a: {b: 1", "1:4: [KG003]: not valid YAML: this is not closed before the end of the file"),
        ("a: [b\nc: 1", "1:4: [KG003]: not valid YAML: this is not closed before `:`"),
        ('a: "b', "1:4: [KG003]: not valid YAML: the quote opened here is not closed"),
        ("a: b: c", "1:5: [KG003]: not valid YAML: a second `: ` in one value"),
        ("a:\n\tb: 1", "2:1: [KG003]: not valid YAML: a tab in place of spaces"),
        ('a: "\\UFFFFFFFF"', "1:7: [KG003]: an escape or directive with a number out of range"),
        ('a: "\\U00110000"', "1:7: [KG003]: an escape or directive with a number out of range"),
        ("%YAML " + "1" * 5000 + ".1\n--- a", "1:7: [KG003]: an escape or directive with a number out of range"),
        ("[" * 5000, "1:17: [KG003]: nested more than 16 levels deep"),
        ("- " * 5000, "1:33: [KG003]: nested more than 16 levels deep"),
        ("a: {" * 5000, "1:64: [KG003]: nested more than 16 levels deep"),
    ],
)
def test_a_file_that_cannot_be_read(text: str | bytes, head: str) -> None:
    assert heads(text) == [head]


@pytest.mark.parametrize(
    ("addition", "head"),
    [
        ("dtype: float16", "12:1: [KG004]: duplicate key dtype (first on line 8)"),
        ("allow_tf32: &a false", "12:13: [KG005]: anchor &a: anchors are not used in specs"),
        ("allow_tf32: *a", "12:13: [KG005]: alias *a: aliases are not used in specs"),
        ("allow_tf32: !!bool false", "12:13: [KG005]: tag tag:yaml.org,2002:bool: tags are not used in specs"),
        ("allow_tf32: !x false", "12:13: [KG005]: tag !x: tags are not used in specs"),
        ("<<: {a: 1}", "12:1: [KG005]: merge keys are not used in specs"),
        ("---\nname: b", "12:1: [KG005]: a second document; a file holds one spec"),
        ("1: 2", "12:1: [KG006]: 1 is not text; keys are text"),
        ("true: 2", "12:1: [KG006]: true is not text; keys are text"),
        ("null: 2", "12:1: [KG006]: null is not text; keys are text"),
        ("? \n: 2", "12:2: [KG006]: an empty key is not text; keys are text"),
        ("on: 2", "12:1: [KG006]: on is a word that versions of YAML read differently; keys are text"),
        ("? [a]\n: 2", "12:3: [KG006]: a key that is a list or a mapping; keys are text"),
        ("? {a: 1}\n: {b: 2}", "12:3: [KG006]: a key that is a list or a mapping; keys are text"),
    ],
)
def test_yaml_that_specs_do_without(addition: str, head: str) -> None:
    assert heads(f"{VALID}{addition}\n") == [head]


def test_directives_are_refused_and_explicit_documents_are_not() -> None:
    assert heads("%YAML 1.1\n---\n" + VALID) == ["1:1: [KG005]: YAML directives are not used in specs"]
    assert load(f"---\n{VALID}...\n").digest == load(VALID).digest


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_and_a_byte_order_mark_do_not_count(newline: str) -> None:
    text = VALID.replace("\n", newline)
    assert load(text).digest == load(VALID).digest
    assert load(b"\xef\xbb\xbf" + text.encode()).digest == load(VALID).digest
    wrong = changed("bfloat16", "bfloat61").replace("\n", newline)
    assert heads(wrong) == ["8:8: [KG102]: dtype is bfloat61, must be float16, bfloat16 or float32"]


READ_AS = [
    ("", None), ("~", None), ("null", None), ("true", True), ("false", False),
    ("0", 0), ("-12", -12), ("+5", 5), ("128", 128), ("9" * 19, int("9" * 19)),
    ("1.5", 1.5), ("-0.5", -0.5), (".5", 0.5), ("5.", 5.0), ("1.0e-3", 1e-3), ("1.0E+3", 1e3), ("0.0883", 0.0883),
    ("auto", "auto"), ("sm_90", "sm_90"), ("a b", "a b"), ("-", "-"), ("...", "..."), ("+", "+"), ("1.2.3", "1.2.3"), ("0b2", "0b2"),
    ("3d", "3d"), ("e5", "e5"), ("-e5", "-e5"), ("nope", "nope"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), READ_AS)
def test_scalars_that_all_versions_of_yaml_agree_on(text: str, value: object) -> None:
    found = scalars.resolve(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("yes", 'write true, or "yes" for text'), ("Off", 'write false, or "Off" for text'), ("n", 'write false, or "n" for text'),
        ("True", 'write true, or "True" for text'), ("NULL", 'write null, or "NULL" for text'),
        ("1e-3", 'write 1.0e-3, or "1e-3" for text'), ("1e3", 'write 1.0e+3, or "1e3" for text'), ("1.0e3", 'write 1.0e+3, or "1.0e3" for text'),
        ("-.5", 'write -0.5, or "-.5" for text'), ("1.5e5", 'write 1.5e+5, or "1.5e5" for text'), ("1_0.5", 'write 10.5, or "1_0.5" for text'),
        ("010", 'write 10, or "010" for text'), ("-007", 'write -7, or "-007" for text'), ("08", 'write 8, or "08" for text'),
        ("0x10", 'write 16, or "0x10" for text'), ("0o7", 'write 7, or "0o7" for text'), ("0b11", 'write 3, or "0b11" for text'),
        ("1_000", 'write 1000, or "1_000" for text'), ("1:30", "put the value in quotes, or write it in base 10"),
        (".inf", "write a finite number, such as 1.0e+6"), ("-.INF", "write a finite number, such as 1.0e+6"), (".NaN", "write a finite number, such as 1.0e+6"),
        ("2024-01-02", "put the value in quotes"), ("2024-01-02T10:00:00Z", "put the value in quotes"),
        ("=", 'write "=" for text'), ("<<", 'write "<<" for text'), ("1.0e+400", "write a number below 1.0e+308"),
        ("9" * 20, "write a number of at most 19 digits"), ("1" * 10000, "write a number of at most 19 digits"),
        ("1_" * 10000, "write a number of at most 19 digits"), ("0x" + "f" * 10000, "write a number of at most 19 digits"),
        ("1e" + "9" * 10000, "write a number of at most 19 digits"), ("1" * 400 + ".0", "write a number of at most 19 digits"),
    ],
)  # fmt: skip
def test_scalars_that_versions_of_yaml_read_differently(text: str, hint: str) -> None:
    found = scalars.resolve(text)
    assert isinstance(found, scalars.Ambiguous)
    assert found.help == hint
    assert len(found.message) < 100


@pytest.mark.parametrize("spelling", [text for text, _ in READ_AS if text not in ("", "-", "+", "...")])
def test_other_yaml_libraries_read_the_same(spelling: str) -> None:
    assert yaml.safe_load(f"a: {spelling}") == {"a": scalars.resolve(spelling)}


def test_every_key_and_value_has_its_place() -> None:
    document = read('a: 1\nb:\n  c: ["x y", {d: 2}]\n  e:\n', "s.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x y", {"d": 2}], "e": None}}
    places = {loc: (node.key, node.value) for loc, node in document.nodes.items()}
    assert places[("a",)] == (Span(1, 1, 1), Span(1, 4, 1))
    assert places[("b", "c", 0)] == (None, Span(3, 7, 5))
    assert places[("b", "c", 1, "d")] == (Span(3, 15, 1), Span(3, 18, 1))
    assert places[("b", "e")][0] == Span(4, 3, 1)
    assert document.nodes[("b", "c", 0)].text == '"x y"'
    assert document.nodes[("b", "e")].text == ""
