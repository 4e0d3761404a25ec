"""The measure of error: what passes, what does not, and that the limit is not a wide one."""

from __future__ import annotations

import pytest
import torch

from kgen.verify.compare import compare, expect, unit_roundoff
from tests.verify_support import MASKS, make_spec

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def problem(dtype="bfloat16", m=9, n=7, mask="causal", **facts):
    spec = make_spec(heads=4, kv_heads=2, mask=MASKS[mask], dtype=dtype, **facts)
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, h, r, 16, generator=g).to(DTYPES[dtype]) for h, r in ((4, m), (2, n), (2, n)))
    expected = expect(spec, q, k, v)
    return expected, expected.out.to(DTYPES[dtype]), expected.lse.float()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_right_answer_passes(dtype):
    comparison = compare(*problem(dtype))
    assert comparison.message is None
    assert comparison.max_error > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_limit_is_a_few_roundings(dtype):
    expected, out, lse = problem(dtype, mask="full")
    unit = unit_roundoff(make_spec(dtype=dtype))
    assert expected.max_limit < 12 * unit * out.abs().max() + 1e-5
    assert expected.frobenius_limit < 6 * unit + 1e-5
    assert expected.lse_limit < 1e-5
    # All elements off by the same part: too much.
    assert "Frobenius" in (compare(expected, out.double() * (1 + 6 * unit + 1e-5), lse).message or "")


def test_one_wrong_element_is_found_and_named():
    expected, out, lse = problem()
    out[0, 3, 5, 2] += 0.25
    comparison = compare(expected, out, lse)
    assert comparison.max_error == pytest.approx(0.25, abs=0.02)
    assert "out is wrong by" in comparison.message
    assert "at [0, 3, 5, 2]" in comparison.message


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_lse_off_by_one_key_in_a_thousand_is_found(dtype):
    expected, out, lse = problem(dtype, mask="full")
    comparison = compare(expected, out, lse + 1e-3)
    assert "lse is wrong by" in comparison.message


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_no_nan_and_no_infinity_passes(bad):
    expected, out, lse = problem()
    out[0, 0, 8, 0] = bad
    assert compare(expected, out, lse).message is not None
    expected, out, lse = problem()
    lse[0, 0, 8] = bad
    assert compare(expected, out, lse).message is not None


def test_rows_without_keys_are_exact():
    expected, out, lse = problem()  # nine queries, seven keys: two rows see none
    assert (expected.lse[:, :, :2] == -torch.inf).all()
    assert (expected.lse[:, :, 2:] > -torch.inf).all()
    tiny = out.clone()
    tiny[0, 0, 0, 0] = 1e-30
    assert "row without keys has an output" in compare(expected, tiny, lse).message
    finite = lse.clone()
    finite[0, 0, 0] = -1e30
    assert "row without keys has an LSE" in compare(expected, out, finite).message


def test_only_the_rows_asked_for_are_judged():
    expected, out, lse = problem()
    rows = torch.zeros(lse.shape, dtype=torch.bool)
    rows[0, 1] = True
    out[0, 0] = torch.nan
    assert compare(expected, out, lse, rows=rows).message is None
    out[0, 1, 4, 0] += 0.5
    assert "out is wrong" in compare(expected, out, lse, rows=rows).message


def test_tf32_is_judged_as_tf32():
    strict = problem("float32", mask="full")[0]
    loose = problem("float32", mask="full")
    spec = make_spec(heads=4, kv_heads=2, mask=MASKS["full"], dtype="float32")
    assert unit_roundoff(spec) == 2.0**-24
    tf32 = spec.model_copy(update={"allow_tf32": True})
    assert unit_roundoff(tf32) == 2.0**-11
    q = torch.randn(1, 4, 9, 16)
    k, v = torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16)
    assert 1e-4 < expect(tf32, q, k, v).max_limit < 2e-2
    assert strict.max_limit == loose[0].max_limit < 2e-5


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_outputs_compare(shape):
    b, m, n = shape
    spec = make_spec(heads=2, kv_heads=1)
    q, k, v = torch.zeros(b, 2, m, 16).half(), torch.zeros(b, 1, n, 16).half(), torch.zeros(b, 1, n, 16).half()
    expected = expect(spec, q, k, v)
    comparison = compare(expected, expected.out.half(), expected.lse.float())
    assert (comparison.message, comparison.max_error, comparison.lse_error) == (None, 0.0, 0.0)
