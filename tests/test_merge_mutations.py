"""Merges broken in the classic ways: each of them must be caught by the cases."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from kgen.verify.modules import load_package
from tests.verify_support import failures, generate, load_spec

pytestmark = pytest.mark.triton


class Mutation(NamedTuple):
    """A fault: ``old`` becomes ``new`` wherever it stands in the merge of a layout; values are 24 wide, in 32 lanes."""

    name: str
    layout: str
    old: str
    new: str


MUTATIONS = (
    Mutation("weights in base 2", "bhd", "weight = tl.exp(", "weight = tl.exp2("),
    Mutation("LSE in base 2", "bhd", "tl.log(l_safe)", "tl.log2(l_safe)"),
    Mutation("0 stored as the maximum", "bhd", "l_i * alpha + weight, m_new", "l_i * alpha + weight, m_ref"),
    Mutation("the maximum begins at 0", "bhd", 'tl.full([BLOCK_R], -float("inf")', "tl.full([BLOCK_R], 0.0"),
    Mutation("no maximum subtracted", "bhd", "m_ref = tl.where(m_new == -float(\"inf\"), 0.0, m_new)", "m_ref = 0.0"),
    Mutation("no guard in the exponent", "bhd", 'm_ref = tl.where(m_new == -float("inf"), 0.0, m_new)',
             "m_ref = m_new"),
    Mutation("output of an empty part counts", "bhd",
             'tl.where(lse[:, None] == -float("inf"), 0.0, out.to(tl.float32))', "out.to(tl.float32)"),
    Mutation("accumulator not rescaled", "bhd", "acc * alpha[:, None]", "acc"),
    Mutation("sum not rescaled", "bhd", "l_i * alpha + weight", "l_i + weight"),
    Mutation("parts not weighed", "bhd", "out * weight[:, None]", "out"),
    Mutation("sum in the dtype of the parts", "bhd", "out.to(tl.float32))\n    return acc * alpha[:, None] +",
             "out.to(tl.float32))\n    return (acc * alpha[:, None]).to(tl.float16).to(tl.float32) +"),
    Mutation("not divided by the sum", "bhd", "acc / l_safe[:, None]", "acc"),
    Mutation("empty row divides by 0", "bhd", "l_safe = tl.where(l_i == 0.0, 1.0, l_i)", "l_safe = l_i"),
    Mutation("last part ignored", "bhd", "tl.range(0, P, ", "tl.range(0, P - 1, "),
    Mutation("first part ignored", "bhd", "tl.range(0, P, ", "tl.range(1, P, "),
    Mutation("second of a pair counted twice", "bhd", "acc, l_i, m_i, x, x_lse)\n    acc,",
             "acc, l_i, m_i, y, y_lse)\n    acc,"),
    Mutation("LSE of the other part", "bhd", "acc, l_i, m_i, y, y_lse)", "acc, l_i, m_i, y, x_lse)"),
    # Memory.
    Mutation("out cleared before parts are read", "bhd", "        _check_out(out)\n", "        out.zero_()\n"),
    Mutation("rows past the end stored", "bhd", "merged, mask=row_ok[:, None] & d_ok[None, :])",
             "merged, mask=d_ok[None, :])"),
    Mutation("idle lanes stored", "bhd", "merged, mask=row_ok[:, None] & d_ok[None, :])",
             "merged, mask=row_ok[:, None])"),
    Mutation("idle lanes loaded", "bhd", "mask=row_ok[:, None] & d_ok[None, :], other=0.0)",
             "mask=row_ok[:, None], other=0.0)"),
    Mutation("LSE past the end stored", "bhd", "tl.log(l_safe), mask=row_ok)", "tl.log(l_safe))"),
    Mutation("LSE past the end loaded", "bhd", 'y_lse_ptrs, mask=row_ok, other=-float("inf"))', "y_lse_ptrs)"),
    Mutation("a row too many", "bhd", "row_ok = rows < B * 3", "row_ok = rows < B * 3 + 1"),
    Mutation("a row too few", "bhd", "row_ok = rows < B * 3", "row_ok = rows < B * 3 - 1"),
    Mutation("out taken as dense", "bhd", "*out.stride()[:2])", "72, 24)"),
    # Layouts.
    Mutation("y with x's strides", "bshd", "token * stride_ym", "token * stride_xm"),
    Mutation("LSE of y with x's strides", "bshd", "token * stride_lym", "token * stride_lxm"),
    Mutation("out with x's strides", "bshd", "head * stride_oh", "head * stride_xh"),
    Mutation("LSE taken as dense", "ragged", "*x_lse.stride(), *y_lse.stride()",
             "T, 1, T, 1"),
    Mutation("LSE of a stack taken as dense", "ragged", "*x_lse.stride(), T", "3 * T, T, 1, T"),
    Mutation("LSE of bshd stored as out lies", "bshd", "(batch * 3 + head) * M + token", "rows"),
    Mutation("LSE of ragged stored as out lies", "ragged", "head * T + token", "rows"),
    Mutation("rows of bhsd counted as bshd", "bhsd", "token = tl.cast(rows % M", "token = tl.cast(rows // 3 % M"),
    Mutation("parts of a stack as if dense", "bhsd", "*x.stride()[:4]", "x.shape[1] * x.stride(1), *x.stride()[1:4]"),
    # 64 bits.
    Mutation("part offsets in 32 bits", "bhsd", "stride_xp = tl.cast(stride_xp, tl.int64) * STRIDE_UNIT",
             "stride_xp = stride_xp * STRIDE_UNIT"),
    Mutation("part offsets of the LSE in 32 bits", "bhsd", "stride_lxp = tl.cast(stride_lxp, tl.int64)",
             "stride_lxp = stride_lxp * 1"),
    Mutation("head offsets in 32 bits", "bhsd", "head = tl.cast(rows // M % 3, tl.int64)", "head = rows // M % 3"),
    Mutation("token offsets in 32 bits", "bhsd", "token = tl.cast(rows % M, tl.int64)", "token = rows % M"),
    Mutation("request offsets in 32 bits", "bhsd", "batch = tl.cast(rows // M // 3, tl.int64)",
             "batch = rows // M // 3"),
)  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_every_mutation_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    kernels = {"merge_states": {"layout": mutation.layout}}
    loaded = load_spec(heads=3, kv_heads=1, head_dim_v=24, kernels=kernels)
    generate(loaded, tmp_path)
    path = tmp_path / "example/merge_states.py"
    text = path.read_text()
    assert mutation.old in text, "the generated code has changed: give this mutation the new text"
    path.write_text(text.replace(mutation.old, mutation.new))
    module = load_package(path.parent)["merge_states"]
    caught = failures(loaded, "merge_states", module, first=True)
    assert caught, "every case passed"
    message = caught[0].message
    assert message is not None
    # A mutation must compute something wrong, not fail to run.
    assert "raised" not in message or "ForeignAccessError" in message, message
