"""docs/shared_prefix.md does what it says: its code, run in the interpreter, against attention over all the keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kgen.reference.evaluate import evaluate
from kgen.reference.paging import gather
from kgen.spec.loader import load_specs
from kgen.verify import interpreter
from kgen.verify.interpreter import interpreting

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/shared_prefix.md"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """What the page's blocks of Python define, run one after the other on the CPU."""
    interpreter.require()
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    assert blocks[0].count('"cuda"') == 1
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    with interpreting():
        for block in blocks:
            exec(compile(block.replace('"cuda"', '"cpu"'), PAGE.name, "exec"), names)
    return names


def whole(names: dict[str, Any], prefixes: list[slice]) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each request over its prefix and its own keys in one piece, in float64."""
    (loaded,) = load_specs([ROOT / "specs/llama3_8b_prefix.yaml"])
    lens = names["seq_lens"]
    own = [gather(names[cache], names["block_table"], lens, int(lens.max())) for cache in ("k_cache", "v_cache")]
    outs, lses = [], []
    for b, keys in enumerate(prefixes):
        k, v = (
            torch.cat([names[name][keys].transpose(0, 1), dense[b, :, : lens[b]]], dim=1)[None]
            for name, dense in zip(("prefix_k", "prefix_v"), own, strict=True)
        )
        out, lse = evaluate(loaded.spec, names["q"][b][None, :, None], k, v)
        outs.append(out[0, :, 0])
        lses.append(lse[0, :, 0])
    return torch.stack(outs), torch.stack(lses)


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Within three roundings to bfloat16: P, a part's output, and the merged one."""
    torch.testing.assert_close(got.double(), want, atol=3 * 2.0**-9 * float(want.abs().max()), rtol=0)


def test_a_prefix_and_suffixes_merge_to_attention_over_all_the_keys(example: dict[str, Any]) -> None:
    want, want_lse = whole(example, [slice(0, 100)] * 3)
    assert example["out"].dtype == torch.bfloat16
    assert_near(example["out"], want)
    assert_near(example["stacked"], want)
    torch.testing.assert_close(example["stacked_lse"].double(), want_lse, atol=1e-5, rtol=0)
    # It would be noticed: the prefix alone is far away, but for the request that has nothing else.
    alone = evaluate_prefix(example)
    assert (alone - want).abs().amax(dim=(1, 2)).gt(0.05).tolist() == [True, False, True]


def evaluate_prefix(example: dict[str, Any]) -> torch.Tensor:
    return whole({**example, "seq_lens": example["seq_lens"] * 0}, [slice(0, 100)] * 3)[0]


def test_groups_of_requests_have_prefixes_of_their_own(example: dict[str, Any]) -> None:
    want, _ = whole(example, [slice(0, 70), slice(0, 70), slice(70, 100)])
    assert_near(example["grouped"], want)
    assert (example["out"].double() - want).abs().amax(dim=(1, 2)).gt(0.05).all()


def test_what_the_page_says_of_the_spec_is_so() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (loaded,) = load_specs([ROOT / "specs/llama3_8b_prefix.yaml"])
    for name, kernel in loaded.spec.kernels.items():
        assert f"| `{name}` | {'merge_states' if name == 'merge_states' else kernel.kind}" in text
    assert loaded.spec.attention.mask.kind == "full"
    for layout in ("bhd", "bhsd", "bshd", "ragged"):
        assert re.search(rf"^\| `{layout}`", text, re.MULTILINE), layout
