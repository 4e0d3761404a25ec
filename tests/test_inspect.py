"""What ``kgen inspect`` tells: the spec as it is now, compiled, beside what the plan expects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from kgen.errors import InputError
from kgen.inspect import INSTRUCTIONS, inspect
from kgen.plan.lower import lower
from kgen.spec.loader import load_text
from tests.conftest import SPEC

pytestmark = pytest.mark.triton


def test_a_row_for_each_launch_with_the_plans_numbers_beside_the_compilers(tmp_path: Path) -> None:
    loaded = load_text(SPEC.format(name="one", heads=8), "one.yaml")
    inspection = inspect([loaded], ["sm_80"], cache_dir=tmp_path)
    assert inspection.failures == ()
    plans = {plan.kernel: plan for plan in lower(loaded)}
    assert {row.module for row in inspection.rows} == {"one/prefill.py", "one/decode.py"}
    assert {row.target for row in inspection.rows} == {"sm_80"}
    for row in inspection.rows:
        is_aligned = "STRIDE_UNIT=8" in row.launch
        tile = plans[Path(row.module).stem].tile("sm_80", is_aligned=is_aligned)
        assert row.spill_limit == (0 if is_aligned else None)
        assert row.shared_estimate == tile.shared_bytes
        assert row.shared_bytes <= row.shared_estimate <= row.shared_limit == 163 * 1024
        assert row.registers <= 255
        assert set(dict(row.instructions)) <= {name for name, _ in INSTRUCTIONS}
    (prefill,) = [row for row in inspection.rows if "prefill" in row.calls]
    tile = plans["prefill"].tile("sm_80", is_aligned=True)
    assert f"BLOCK_M={tile.block_m}, BLOCK_N={tile.block_n}" in prefill.launch
    assert f"num_warps={tile.num_warps}, num_stages={tile.num_stages}" in prefill.launch
    counts = dict(prefill.instructions)
    assert counts["tensor core"] > 0
    assert counts["async copy 16 B"] > 0
    assert "global load 1-2 B" not in counts
    # Two bytes at a time is what rows that do not start on 16 bytes cost.
    (unaligned,) = [row for row in inspection.rows if "prefill of unaligned rows" in row.calls]
    assert dict(unaligned.instructions)["global load 1-2 B"] > 0
    assert json.loads(json.dumps(prefill.as_dict()))["instructions"] == counts


def test_a_target_that_no_spec_is_generated_for_is_refused() -> None:
    text = SPEC.format(name="one", heads=8) + "targets: [sm_80]\n"
    with pytest.raises(InputError, match=r"no spec given is generated for sm_90; their targets are sm_80"):
        inspect([load_text(text, "one.yaml")], ["sm_90"])
