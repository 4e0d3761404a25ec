"""A valid spec as text, and what the loader says about changes of it."""

from __future__ import annotations

from kgen.errors import SpecError
from kgen.spec.loader import LoadedSpec, load_text

VALID = """\
name: example
attention:
  kind: grouped
  num_qo_heads: 32
  num_kv_heads: 8
  head_dim_qk: 128
  mask: {kind: causal}
dtype: bfloat16
kernels:
  prefill: {layout: bhsd}
  decode: {num_splits: auto}
"""


def changed(old: str, new: str) -> str:
    """The valid spec with one part replaced; the part must be there."""
    assert VALID.count(old) == 1, old
    return VALID.replace(old, new)


def load(text: str | bytes) -> LoadedSpec:
    return load_text(text, "s.yaml")


def heads(text: str | bytes) -> list[str]:
    """The first lines of all diagnostics, without the file's name; empty if the spec is valid."""
    try:
        load(text)
    except SpecError as error:
        return [d.text().splitlines()[0].removeprefix("s.yaml:").replace("error", "", 1) for d in error.diagnostics]
    return []


def full(text: str | bytes) -> str:
    """The text of all diagnostics."""
    try:
        load(text)
    except SpecError as error:
        return str(error)
    return ""
