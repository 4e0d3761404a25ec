"""The harness for Triton's interpreter, and that the interpreter still needs it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from kgen.errors import MissingDependencyError
from kgen.verify import interpreter
from kgen.verify.interpreter import Audit, Sample, interpreting

pytestmark = pytest.mark.triton


@triton.jit
def _dot(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + offs, tl.dot(tl.load(a_ptr + offs), tl.load(b_ptr + offs)))


@triton.jit
def _cast(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs).to(tl.bfloat16))


@triton.jit
def _copy(x_ptr, out_ptr, n, N: tl.constexpr):
    """Program i copies n elements from i * N; masked-off lanes are not given a value."""
    offs = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs, mask=tl.arange(0, N) < n)
    tl.store(out_ptr + offs, x)


@triton.jit
def _add_one(x):
    return tl.sum(x, 0) + 1.0


@triton.jit
def _device_function(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, _add_one(tl.load(x_ptr + tl.arange(0, N))))


def _run_dot(dtype):
    a, b = torch.randn(16, 16).to(dtype), torch.randn(16, 16).to(dtype)
    out = torch.empty(16, 16)
    _dot[(1,)](a, b, out, 16)
    return (out - a.float() @ b.float()).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dot_is_right_in_the_harness(dtype):
    with interpreting():
        assert _run_dot(dtype) < 1e-5


def test_triton_still_needs_the_dot_corrected():
    # When this fails, Triton's interpreter multiplies bfloat16 itself: remove the correction.
    assert _run_dot(torch.bfloat16) > 1e3


def _run_cast():
    x = torch.linspace(-3, 3, 64)
    x[0], x[1], x[2] = torch.nan, torch.inf, -torch.inf
    out = torch.empty(64, dtype=torch.bfloat16)
    _cast[(1,)](x, out, 64)
    return x.bfloat16(), out


def test_casts_to_bfloat16_round_to_nearest_in_the_harness():
    with interpreting():
        want, got = _run_cast()
    assert torch.equal(want.isnan(), got.isnan())
    assert torch.equal(want[1:], got[1:])


def test_triton_still_needs_the_cast_corrected():
    # When this fails, Triton's interpreter rounds to bfloat16 itself: remove the correction.
    want, got = _run_cast()
    assert not torch.equal(want[1:], got[1:])


def test_rounding_matches_torch_on_every_pattern():
    bits = torch.arange(2**16, dtype=torch.int32) << 16
    # Halfway cases, one below and one above, and exact values.
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (bits | low).view(torch.float32)
        want = values.bfloat16()
        got = interpreter.float32_to_bfloat16(values.numpy())
        number = ~values.isnan().numpy()
        assert (got[number] == want.view(torch.uint16).numpy()[number]).all()
        assert np.isnan(interpreter.bfloat16_to_float32(got[~number])).all()
    assert torch.equal(
        torch.from_numpy(interpreter.bfloat16_to_float32((bits >> 16).numpy().astype(np.uint16))).nan_to_num(7.0),
        bits.view(torch.float32).nan_to_num(7.0),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_masked_lanes_without_a_value_hold_garbage(dtype):
    x, out = torch.ones(16, dtype=dtype), torch.zeros(16, dtype=dtype)
    with interpreting():
        _copy[(1,)](x, out, 5, 16)
    assert (out[:5] == 1).all()
    rest = out[5:]
    assert rest.isnan().all() if dtype.is_floating_point else (rest == torch.iinfo(dtype).max).all()


def test_audit_refuses_foreign_reads_and_writes():
    buffer = torch.zeros(64)
    x, out = buffer[:16], buffer[32:48]
    audit = Audit()
    audit.readable(x)
    audit.writable(out)
    with interpreting(audit):
        _copy[(1,)](x, out, 16, 16)
        with pytest.raises(InterpreterError, match=r"ForeignAccessError.*were read"):
            _copy[(2,)](x, out, 16, 16)
        with pytest.raises(InterpreterError, match=r"ForeignAccessError.*were written"):
            _copy[(1,)](x, x, 16, 16)
    # Outside the block the same launch is nobody's business.
    _copy[(2,)](x, out, 16, 16)


def test_audit_remembers_what_was_written():
    x, out = torch.ones(16), torch.zeros(4, 16)
    audit = Audit()
    audit.readable(x)
    audit.writable(out)
    with interpreting(audit):
        _copy[(1,)](x, out[2], 16, 16)
    assert audit.written(out).sum(1).tolist() == [0, 0, 16, 0]
    assert audit.written(out.t()[:, 1:]).sum(0).tolist() == [0, 16, 0]
    assert audit.written(out[:0]).numel() == 0


def test_loads_are_counted_by_tensor():
    x, y, out = torch.ones(64), torch.ones(64), torch.zeros(64)
    with interpreting() as harness:
        of_x, of_y = harness.count(x), harness.count(y)
        _copy[(4,)](x, out, 10, 16)
    assert (of_x.loads, of_x.bytes) == (4, 4 * 10 * 4)
    assert (of_y.loads, of_y.bytes) == (0, 0)


def test_a_sample_runs_the_first_the_last_and_some_programs():
    x, out = torch.ones(20 * 16), torch.zeros(20 * 16)
    with interpreting(sample=Sample(6, seed=3)):
        _copy[(20,)](x, out, 16, 16)
    ran = out.reshape(20, 16).all(1)
    assert ran.sum() == 6
    assert ran[0]
    assert ran[-1]
    assert {int(i) for i in ran.nonzero()} == Sample(6, seed=3).choose(20)
    assert Sample(6, seed=3).choose(20) != Sample(6, seed=4).choose(20)
    assert Sample(6, seed=3).choose(4) == frozenset(range(4))


def test_device_functions_run_and_the_language_is_restored():
    before = tl.sum, tl.load, tl.core.load, tl.tensor.__add__
    x, out = torch.ones(16), torch.zeros(1)
    with interpreting():
        for _ in range(2):
            _device_function[(1,)](x, out, 16)
    assert out.item() == 17.0
    assert (tl.sum, tl.load, tl.core.load, tl.tensor.__add__) == before


def test_triton_imported_too_early_is_explained():
    code = "import triton; from kgen.verify import interpreter; interpreter.require()"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{MissingDependencyError.__name__}: triton was imported before its interpreter" in done.stderr
    assert "TRITON_INTERPRET=1" in done.stderr
