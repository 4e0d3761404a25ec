"""What a user reads when a spec is wrong: place, words, caret and suggestion, exactly."""

# ruff: noqa: E501 (tables, a case a line)

from __future__ import annotations

import pytest

from kgen.diagnostics import Diagnostic
from kgen.errors import SpecError
from tests.spec_helpers import VALID, changed, full, heads, load

MANY = """\
# a spec with a slip on most lines
name: Class-1
attention:
  kind: groupd
  num_qo_heads: 32
  num_kv_heads: 7
  head_dim_qk: 12
  sm_scale: 1e-3
  mask: {kind: sliding_window, sise: 4096}
dtype: bf16
allow_tf32: yes
targets: [sm_80, sm90]
kernels:
  prefill: {layout: ragged, kv: {kind: paged, page_sise: 16}}
  decode:
    num_splits: 0
  decode_long: {num_splits: auto}
  import: {kind: decode}
  decode: {q_len: 1}
"""

MANY_TEXT = """\
s.yaml:2:7: error[KG104]: name is Class-1: a name is lowercase letters, digits and _, and begins with a letter
    name: Class-1
          ^^^^^^^
    help: write class_1
s.yaml:4:9: error[KG102]: kind is groupd, must be grouped or latent
      kind: groupd
            ^^^^^^
    help: did you mean grouped?
s.yaml:7:16: error[KG102]: head_dim_qk is 12, must be an integer from 8 to 512 and a multiple of 8
      head_dim_qk: 12
                   ^^
s.yaml:8:13: error[KG008]: 1e-3 is a number that versions of YAML read differently
      sm_scale: 1e-3
                ^^^^
    help: write 1.0e-3, or "1e-3" for text
s.yaml:9:32: error[KG103]: sise is not a field of mask
      mask: {kind: sliding_window, sise: 4096}
                                   ^^^^
    help: did you mean size?
s.yaml:10:8: error[KG102]: dtype is bf16, must be float16, bfloat16 or float32
    dtype: bf16
           ^^^^
    help: did you mean bfloat16?
s.yaml:11:13: error[KG008]: yes is a word that versions of YAML read differently
    allow_tf32: yes
                ^^^
    help: write true, or "yes" for text
s.yaml:12:18: error[KG102]: entry 2 of targets is sm90, must be sm_80, sm_86, sm_89, sm_90, sm_100, sm_120 or gfx942
    targets: [sm_80, sm90]
                     ^^^^
    help: did you mean sm_90?
s.yaml:14:47: error[KG103]: page_sise is not a field of kv
      prefill: {layout: ragged, kv: {kind: paged, page_sise: 16}}
                                                  ^^^^^^^^^
    help: did you mean page_size?
s.yaml:16:17: error[KG102]: num_splits is 0, must be an integer from 1 to 4096 or auto
        num_splits: 0
                    ^
s.yaml:17:3: error[KG101]: kernel decode_long needs the field kind, as its name is not prefill, decode, backward or merge_states
      decode_long: {num_splits: auto}
      ^^^^^^^^^^^
    help: did you mean kind: decode?
s.yaml:18:3: error[KG104]: import cannot name a kernel: it is a keyword of Python, so it could not be imported
      import: {kind: decode}
      ^^^^^^
s.yaml:19:3: error[KG004]: duplicate key decode (first on line 15)
      decode: {q_len: 1}
      ^^^^^^
    help: keep one of the two"""


def test_every_fault_of_a_file_is_reported_at_once() -> None:
    assert full(MANY) == MANY_TEXT


def test_rules_and_features_are_reported_beside_misspelt_fields() -> None:
    text = changed("num_kv_heads: 8", "num_kv_heads: 7\n  sinks: true\n  lgits_soft_cap: 30.0").replace(
        "bfloat16", "bf16"
    )
    assert heads(text) == [
        "5:17: [KG201]: num_kv_heads is 7, which does not divide num_qo_heads (32)",
        "6:10: [KG306]: not generated yet: attention sinks",
        "7:3: [KG103]: lgits_soft_cap is not a field of attention",
        "7:19: [KG307]: not generated yet: soft cap of the logits",
        "10:8: [KG102]: dtype is bf16, must be float16, bfloat16 or float32",
    ]


@pytest.mark.parametrize(
    ("old", "new", "head", "hint"),
    [
        ("128", '"128"', "6:16: [KG102]: head_dim_qk is \"128\", must be an integer from 8 to 512 and a multiple of 8", "remove the quotes"),
        ("128", "128.0", "6:16: [KG102]: head_dim_qk is 128.0, must be an integer from 8 to 512 and a multiple of 8", "write 128"),
        ("128", "true", "6:16: [KG102]: head_dim_qk is true, must be an integer from 8 to 512 and a multiple of 8", None),
        ("128", "520", "6:16: [KG102]: head_dim_qk is 520, must be an integer from 8 to 512 and a multiple of 8", None),
        ("  head_dim_qk: 128\n", "", "2:1: [KG101]: attention needs the field head_dim_qk", "head_dim_qk: an integer from 8 to 512 and a multiple of 8"),
        ("name: example\n", "", "1:1: [KG101]: the spec needs the field name", "name: a name of lowercase letters, digits and _"),
        ("name", "nmae", "1:1: [KG103]: nmae is not a field of the spec", "did you mean name?"),
        ("{kind: causal}", "causal", "7:9: [KG102]: mask is causal, must be a mapping of kind full, causal, sliding_window, window, chunked, prefix_lm or expression", "write mask: {kind: causal}"),
        ("{kind: causal}", "{size: 3}", "7:3: [KG101]: mask needs the field kind", "kind: full, causal, sliding_window, window, chunked, prefix_lm or expression"),
        ("{kind: causal}", "{right: 3, left: 2}", "7:3: [KG101]: mask needs the field kind", "did you mean kind: window?"),
        ("{kind: causal}", "{kind: sliding_window}", "7:3: [KG101]: mask needs the field size", "size: an integer from 1 to 1073741824"),
        ("{kind: causal}", "{kind: causal, size: 3}", "7:24: [KG103]: size is not a field of mask", "its fields: kind"),
        ("{kind: causal}", "", "7:3: [KG102]: mask has no value, must be a mapping of kind full, causal, sliding_window, window, chunked, prefix_lm or expression", None),
        ("{num_splits: auto}", "", "11:3: [KG102]: kernel decode has no value, must be a mapping of kind prefill, decode, backward or merge_states", "write decode: {}"),
        ("{num_splits: auto}", "{num_splits: atuo}", "11:24: [KG102]: num_splits is atuo, must be an integer from 1 to 4096 or auto", "did you mean auto?"),
        ("{num_splits: auto}", "{kv: {kind: contigous}}", "11:23: [KG102]: kind is contigous, must be contiguous or paged", "did you mean contiguous?"),
        ("decode:", "decoder:", "11:3: [KG101]: kernel decoder needs the field kind, as its name is not prefill, decode, backward or merge_states", "did you mean kind: decode?"),
        ("decode:", "decode_sm90:", "11:3: [KG104]: decode_sm90 cannot name a kernel: endings such as _sm90 and _gfx942 are kept for the forms of a kernel for one GPU", None),
        ("decode:", "[key]:", "11:3: [KG006]: a key that is a list or a mapping; keys are text", None),
        ("decode:", '"[key]":', "11:3: [KG104]: [key] cannot name a kernel: a name is lowercase letters, digits and _, and begins with a letter", "write key"),
        ("example", "torch", "1:7: [KG104]: name is torch: it would hide the package of that name", None),
        ("example", "lambda", "1:7: [KG104]: name is lambda: it is a keyword of Python, so it could not be imported", None),
        ("example", "nul", "1:7: [KG104]: name is nul: it is a device on Windows, so the file could not be checked out there", None),
        ("example", "Llama 3.1", "1:7: [KG104]: name is Llama 3.1: a name is lowercase letters, digits and _, and begins with a letter", "write llama_3_1"),
        ("example", "x" * 65, f"1:7: [KG104]: name is {'x' * 47}…: it has 65 characters, a name has at most 64", f"write {'x' * 64}"),
        ("example", "3", "1:7: [KG102]: name is 3, must be a name of lowercase letters, digits and _", None),
        ("dtype: bfloat16", "dtype: bfloat16\ntargets: []", "9:1: [KG102]: targets is an empty list, must be a list of at least one of sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, gfx942", None),
        ("dtype: bfloat16", "dtype: bfloat16\ntargets: [[sm_90]]", "9:11: [KG102]: entry 1 of targets is a list, must be sm_80, sm_86, sm_89, sm_90, sm_100, sm_120 or gfx942", None),
        ("dtype: bfloat16", 'dtype: bfloat16\nallow_tf32: "true"', '9:13: [KG102]: allow_tf32 is "true", must be true or false', "remove the quotes"),
        ("128", "128\n  sm_scale: 0.0", "7:13: [KG102]: sm_scale is 0.0, must be a number above 0 and at most 1,000,000", None),
    ],
)  # fmt: skip
def test_one_fault_is_one_message_with_its_place_and_its_help(old: str, new: str, head: str, hint: str | None) -> None:
    text = changed(old, new)
    assert heads(text) == [head]
    with pytest.raises(SpecError) as caught:
        load(text)
    assert caught.value.diagnostics[0].help == hint


def test_kernels_as_a_list() -> None:
    text = VALID[: VALID.index("kernels:")] + "kernels: [prefill, decode]\n"
    assert heads(text) == ["9:1: [KG102]: kernels is a list, must be a mapping with at least one entry"]


def test_the_entries_of_a_mapping_with_an_anchor_are_checked() -> None:
    text = changed("{num_splits: auto}", "&x {num_splits: 0}").replace("name: example", "&root\nname: Example")
    codes = [head.split("[")[1][:5] for head in heads(text)]
    assert codes == ["KG005", "KG104", "KG005", "KG102"]


@pytest.mark.parametrize("others", ["", "  decode: {}\n"])
def test_a_wrong_prefill_does_not_make_its_gradient_wrong_too(others: str) -> None:
    start = VALID[: VALID.index("  prefill")]
    text = f"{start}  prefill: {{layout: 7}}\n{others}  backward: {{}}\n"
    assert heads(text) == ["10:21: [KG102]: layout is 7, must be bhsd, bshd or ragged"]


def test_a_misspelt_target_is_not_a_duplicate_of_the_one_it_was_meant_to_be() -> None:
    assert [head[:15] for head in heads(changed("dtype:", "targets: [sm90, sm_90]\ndtype:"))] == ["8:11: [KG102]: "]


@pytest.mark.parametrize("target", ["sm90", "volta"])
def test_a_wrong_target_does_not_make_another_a_duplicate(target: str) -> None:
    found = heads(changed("dtype:", f"targets: [{target}, sm_90, 3]\ndtype:"))
    assert [head[:14] for head in found] == ["8:11: [KG102]:", f"8:{20 + len(target)}: [KG102]:"]


def test_the_number_of_messages_is_limited() -> None:
    text = VALID + "".join(f"extra{n}: 1\n" for n in range(3000))
    with pytest.raises(SpecError) as caught:
        load(text)
    assert len(caught.value.diagnostics) == 100
    assert caught.value.diagnostics[-1].message.endswith("(and more problems below)")


def test_a_hostile_file_cannot_write_to_the_terminal() -> None:
    text = changed("example", '"\\e[31m\\n::error::\\u202e"') + '"\\e]0;x\\a": 1\n'
    shown = full(text)
    assert shown.replace("\n", "").isprintable()
    assert r'1:7: error[KG104]: name is "\x1b[31m\n::error::\u202e": a name is' in shown
    assert r"12:1: error[KG103]: \x1b]0;x\x07 is not a field" in shown
    with pytest.raises(SpecError) as caught:
        load(text)
    assert all(d.github().isprintable() for d in caught.value.diagnostics)


def test_a_diagnostic_prints_nothing_that_is_not_printable() -> None:
    hostile = "\x1b[31m\n"
    diagnostic = Diagnostic("KG102", hostile, 1, 1, 1, hostile, "\x1b\u202e\tx", hostile)
    assert diagnostic.text().splitlines() == [
        r"\x1b[31m\n:1:1: error[KG102]: \x1b[31m\n",
        "    \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\tx",
        "    ^",
        r"    help: \x1b[31m\n",
    ]
    assert diagnostic.github().isprintable()


def test_github_annotations_escape_what_has_a_meaning_there() -> None:
    diagnostic = Diagnostic("KG102", "a,b:c%.yaml", 3, 4, 2, "50% of\nit", "x", "do this")
    expected = "::error file=a%2Cb%3Ac%25.yaml,line=3,col=4,title=KG102::50%25 of\\nit (do this)"
    assert diagnostic.github() == expected


def test_a_long_line_is_cut_round_its_column() -> None:
    entries = ", ".join(f"k{n}: {{kind: decode}}" for n in range(40))
    line = f"{{{entries}, bad: {{kind: decode, num_splits: 0}}}}"
    text = VALID[: VALID.index("kernels:")] + f"kernels: {line}\n"
    _, source, caret = full(text).splitlines()
    column = caret.index("^")
    assert source[column] == "0"
    assert source.startswith("    …")
    assert len(source) <= 126
    assert caret.count("^") == 1


def test_the_caret_stands_under_wide_characters_and_tabs() -> None:
    diagnostic = Diagnostic("KG103", "s.yaml", 1, 4, 2, "m", "\t日x語y", None)
    assert diagnostic.text().splitlines()[1:] == ["    \t日x語y", "    \t   ^^^"]
