"""The forms of prefill for sm_90 on an H100 or H200: values, poison, repeats, graphs, and what compute-sanitizer sees.

Beside the committed kernels stand widths and windows that no committed spec has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kgen.spec import views
from kgen.verify.compare import DTYPES, compare, expect
from kgen.verify.modules import load_package
from kgen.workspace import find, load
from tests.gpu.support import the_gpu
from tests.verify_support import load_spec, write

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
COMMITTED = {
    loaded.spec.name: loaded
    for loaded in load(find([ROOT / "specs"]))
    if (ROOT / "generated" / loaded.spec.name / "prefill_sm90.py").exists()
    and loaded.spec.kernels["prefill"].layout != "ragged"
}
TWO_SIDED = {"kind": "window", "left": 70, "right": 200}
LAYERS = {
    "d64-window": {"heads": 4, "kv_heads": 2, "head_dim": 64, "mask": TWO_SIDED},
    "d96-window": {"heads": 4, "kv_heads": 2, "head_dim": 96, "mask": TWO_SIDED},
    "d128-window": {"heads": 4, "kv_heads": 2, "head_dim": 128, "mask": TWO_SIDED},
    "d192-v128": {"heads": 4, "kv_heads": 4, "head_dim": 192, "head_dim_v": 128},
    "d192-v128-window": {"heads": 4, "kv_heads": 4, "head_dim": 192, "head_dim_v": 128, "mask": TWO_SIDED},
    "d256": {"heads": 8, "kv_heads": 2, "head_dim": 256},
    "d256-sliding": {"heads": 8, "kv_heads": 2, "head_dim": 256, "mask": {"kind": "sliding_window", "size": 100}},
}
REPEATS = 100
M, N = 700, 1000  # whole tiles and an edge


@pytest.fixture(scope="module", autouse=True)
def gpu() -> torch.device:
    found = the_gpu()
    if torch.cuda.get_device_capability(found) != (9, 0):
        pytest.skip("the forms for sm_90 run on an H100 or H200")
    return found


def made(name, tmp_path):
    """The spec as its prefill sees it, and the generated module."""
    if name in COMMITTED:
        return views.seen_by(COMMITTED[name].spec, "prefill"), load_package(ROOT / "generated" / name)["prefill"]
    loaded = load_spec(**{"dtype": "bfloat16", **LAYERS[name]})
    write(loaded, tmp_path)
    return loaded.spec, load_package(tmp_path / loaded.spec.name)["prefill"]


def in_nan(gpu, dtype, *shape):
    """NaN in all of a buffer, and the view of ``shape`` that lies inside, with whole rows before and after it."""
    batch, heads, tokens, dim = shape
    buffer = torch.full((batch, heads, tokens + 128, dim), float("nan"), device=gpu, dtype=dtype)
    return buffer, buffer[:, :, 64 : 64 + tokens]


@pytest.mark.parametrize("name", [*COMMITTED, *LAYERS])
def test_form_is_right_among_nan_and_gives_the_same_bits_again(name, tmp_path, gpu):
    spec, module = made(name, tmp_path)
    a, dtype = spec.attention, DTYPES[spec.dtype]
    torch.manual_seed(0)
    tensors = []
    for heads, tokens, dim in (
        (a.num_qo_heads, M, a.head_dim_qk),
        (a.num_kv_heads, N, a.head_dim_qk),
        (a.num_kv_heads, N, a.head_dim_v),
    ):
        _, tensor = in_nan(gpu, dtype, 2, heads, tokens, dim)
        tensors.append(tensor.normal_())
    buffer, out = in_nan(gpu, dtype, 2, a.num_qo_heads, M, a.head_dim_v)
    assert module.form(*tensors, out=out) == "sm_90"

    _, lse = module.attention(*tensors, out=out, return_lse=True)
    comparison = compare(expect(spec, *tensors), out, lse)
    assert comparison.message is None, comparison.message
    assert buffer[:, :, :64].isnan().all()
    assert buffer[:, :, 64 + M :].isnan().all()

    first = out.clone(), lse.clone()
    for _ in range(REPEATS):
        out.fill_(float("nan"))
        _, lse = module.attention(*tensors, out=out, return_lse=True)
        assert torch.equal(out, first[0])
        assert torch.equal(lse, first[1])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = module.attention(*tensors, out=out, return_lse=True)
    for change in (False, True):  # the numbers of the call, then others in the same place
        if change:
            for tensor in tensors:
                tensor.normal_()
        out.fill_(float("nan"))
        lse.fill_(float("nan"))
        graph.replay()
        replayed = out.clone(), lse.clone()
        want = module.attention(*tensors, return_lse=True) if change else first
        assert torch.equal(replayed[0], want[0])
        assert torch.equal(replayed[1], want[1])


@pytest.mark.parametrize("mask", [{"kind": "causal"}, {"kind": "full"}, TWO_SIDED], ids=lambda mask: mask["kind"])
@pytest.mark.parametrize("widths", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
def test_packed_requests_end_where_they_end(mask, widths, tmp_path, gpu):
    """Values against each request alone; rows of no request hold NaN and stay; a graph serves other lengths."""
    loaded = load_spec(
        dtype="bfloat16",
        heads=4,
        kv_heads=2,
        head_dim=widths[0],
        head_dim_v=widths[1],
        mask=mask,
        kernels={"prefill": {"layout": "ragged"}},
    )
    write(loaded, tmp_path)
    module, spec = load_package(tmp_path / loaded.spec.name)["prefill"], loaded.spec
    rows = 1500
    torch.manual_seed(0)
    q, k, v = (
        torch.full((rows, heads, dim), float("nan"), device=gpu, dtype=torch.bfloat16)
        for heads, dim in ((4, widths[0]), (2, widths[0]), (2, widths[1]))
    )
    out = torch.full((rows, 4, widths[1]), float("nan"), device=gpu, dtype=torch.bfloat16)

    def bounds(*lengths):
        return torch.tensor([0, *lengths], device=gpu).cumsum(0).int()

    qo_indptr, kv_indptr = bounds(1, 127, 0, 129, 64, 300), bounds(5, 127, 9, 0, 64, 700)
    call = {"qo_indptr": qo_indptr, "kv_indptr": kv_indptr, "max_qo_len": 300, "out": out, "return_lse": True}
    assert module.form(q, k, v, **call) == "sm_90"
    module.attention(q, k, v, **call)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = module.attention(q, k, v, **call)
    for queries, keys in (
        ((1, 127, 0, 129, 64, 300), (5, 127, 9, 0, 64, 700)),
        ((0, 300, 2, 64, 0, 1), (0, 900, 0, 65, 3, 9)),
    ):
        qo_indptr.copy_(bounds(*queries))
        kv_indptr.copy_(bounds(*keys))
        for tensor, ends in ((q, qo_indptr), (k, kv_indptr), (v, kv_indptr)):
            tensor.fill_(float("nan"))
            tensor[: ends[-1]].normal_()
        results = []
        for _ in range(REPEATS):
            out.fill_(float("nan"))
            graph.replay()
            assert out[qo_indptr[-1] :].isnan().all()
            results.append((out[: qo_indptr[-1]].clone(), lse[:, : qo_indptr[-1]].clone()))
        assert all(torch.equal(a, b) for pair in results[1:] for a, b in zip(pair, results[0], strict=True))
        for (q0, q1), (k0, k1) in zip(pairwise(qo_indptr.tolist()), pairwise(kv_indptr.tolist()), strict=True):
            if q1 == q0:
                continue
            if k1 == k0:
                assert not results[0][0][q0:q1].any()
                assert (results[0][1][:, q0:q1] == float("-inf")).all()
                continue
            alone = (x[a:b].transpose(0, 1)[None] for x, a, b in ((q, q0, q1), (k, k0, k1), (v, k0, k1)))
            got = results[0][0][q0:q1].transpose(0, 1)[None], results[0][1][None, :, q0:q1]
            comparison = compare(expect(spec, *alone), *got)
            assert comparison.message is None, comparison.message


def find_sanitizer():
    """The command of compute-sanitizer; without it the test is skipped."""
    found = shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ["PATH"], "/usr/local/cuda/bin")))
    if found is None:
        pytest.skip("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin")
    return found


@pytest.mark.parametrize(
    ("tool", "clean"), [("memcheck", "ERROR SUMMARY: 0 errors"), ("racecheck", "RACECHECK SUMMARY: 0 hazards")]
)
@pytest.mark.parametrize(
    "widths", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=lambda pair: f"{pair[0]}-{pair[1]}"
)
def test_compute_sanitizer_finds_nothing(tool, clean, widths, tmp_path):
    sanitizer = find_sanitizer()
    loaded = load_spec(dtype="bfloat16", heads=4, kv_heads=2, head_dim=widths[0], head_dim_v=widths[1])
    write(loaded, tmp_path)
    watch = [sanitizer, "--tool", tool, "--target-processes", "application-only", "--error-exitcode", "1"]
    driver = [sys.executable, "-m", "tests.gpu.one_prefill", str(tmp_path / loaded.spec.name), "4", "2"]
    ran = subprocess.run(
        [*watch, *driver, *map(str, widths)],
        cwd=ROOT,
        # Allocations of their own size, so that a byte past one is seen.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert clean in ran.stdout + ran.stderr
