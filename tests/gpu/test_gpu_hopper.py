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


MASKS = pytest.mark.parametrize(
    "mask", [{"kind": "causal"}, {"kind": "full"}, TWO_SIDED], ids=lambda mask: mask["kind"]
)
WIDTHS = pytest.mark.parametrize("widths", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
HEADS, KV_HEADS = 4, 2
# Queries and keys of each request, in one launch and its replay.
LENGTHS = (
    ((1, 127, 0, 129, 64, 300), (5, 127, 9, 0, 64, 700)),
    ((0, 300, 2, 64, 0, 1), (0, 900, 0, 65, 3, 9)),
)


def of_batch(tmp_path, mask, widths, prefill):
    """The prefill of a layer whose requests have lengths of their own, and its spec."""
    loaded = load_spec(
        dtype="bfloat16",
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=widths[0],
        head_dim_v=widths[1],
        mask=mask,
        kernels={"prefill": prefill},
    )
    write(loaded, tmp_path)
    return load_package(tmp_path / loaded.spec.name)["prefill"], loaded.spec


def filled(value, device, *shape, dtype=torch.bfloat16):
    return torch.full(shape, value, device=device, dtype=dtype)


def bounds(lengths, device):
    return torch.tensor([0, *lengths], device=device).cumsum(0).int()


def assert_right(spec, alone, out, lse):
    """The results of one request, of which ``alone`` has q, k, v without any axis of the batch."""
    q, k, _ = alone
    if q.shape[1] == 0:
        return
    if k.shape[1] == 0:
        assert not out.any()
        assert (lse == float("-inf")).all()
        return
    comparison = compare(expect(spec, *(x[None] for x in alone)), out[None], lse[None])
    assert comparison.message is None, comparison.message


def repeated(graph, out, results):
    """The results of 100 replays, which have the same bits; ``results`` clones them."""
    first = None
    for _ in range(REPEATS):
        out.fill_(float("nan"))
        graph.replay()
        found = results()
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
    return first


@pytest.mark.parametrize("page_size", [None, 1, 16, 48, 256], ids=lambda size: f"pages-{size}" if size else "rows")
@MASKS
@WIDTHS
def test_packed_requests_end_where_they_end(page_size, mask, widths, tmp_path, gpu):
    """Values against each request alone; rows of no request hold NaN and stay; a graph serves other lengths."""
    kv = {} if page_size is None else {"kv": {"kind": "paged", "page_size": page_size}}
    module, spec = of_batch(tmp_path, mask, widths, {"layout": "ragged", **kv})
    torch.manual_seed(0)
    nan, rows, requests = float("nan"), 1500, len(LENGTHS[0][0])
    q, k, v = (
        filled(nan, gpu, rows, heads, dim)
        for heads, dim in ((HEADS, widths[0]), (KV_HEADS, widths[0]), (KV_HEADS, widths[1]))
    )
    out = filled(nan, gpu, rows, HEADS, widths[1])
    qo_indptr, kv_indptr = (bounds(lengths, gpu) for lengths in LENGTHS[0])
    call = {"qo_indptr": qo_indptr, "max_qo_len": 300, "out": out, "return_lse": True}
    if page_size is None:
        keys, call["kv_indptr"] = (k, v), kv_indptr
    else:
        per_request = -(-1000 // page_size)
        pages = requests * per_request + 3
        keys = tuple(filled(nan, gpu, pages, page_size, KV_HEADS, dim) for dim in widths)
        table = filled(2**30, gpu, requests, per_request, dtype=torch.int32)
        seq_lens = torch.zeros(requests, device=gpu, dtype=torch.int32)
        call |= {"block_table": table, "seq_lens": seq_lens}

    def into_pages():
        """The rows of keys and values in pages in no order; entries and pages of no key hold what they hold."""
        order = torch.randperm(pages, device=gpu)
        for cache in keys:
            cache.fill_(nan)
        table.fill_(2**30)
        seq_lens.copy_(kv_indptr.diff())
        for b, (start, end) in enumerate(pairwise(kv_indptr.tolist())):
            mine = order[b * per_request :][: -(-(end - start) // page_size)]
            table[b, : len(mine)] = mine
            tokens = torch.arange(end - start, device=gpu)
            for cache, tensor in zip(keys, (k, v), strict=True):
                cache[mine[tokens // page_size], tokens % page_size] = tensor[start:end]

    def fill():
        for tensor, ends in ((q, qo_indptr), (k, kv_indptr), (v, kv_indptr)):
            tensor.fill_(nan)
            tensor[: ends[-1]].normal_()
        if page_size is not None:
            into_pages()

    fill()
    assert module.form(q, *keys, **call) == "sm_90"
    module.attention(q, *keys, **call)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = module.attention(q, *keys, **call)
    for queries, lengths in LENGTHS:
        qo_indptr.copy_(bounds(queries, gpu))
        kv_indptr.copy_(bounds(lengths, gpu))
        fill()
        end = int(qo_indptr[-1])
        got, got_lse = repeated(graph, out, lambda end=end: (out[:end].clone(), lse[:, :end].clone()))
        assert out[end:].isnan().all()
        for (q0, q1), (k0, k1) in zip(pairwise(qo_indptr.tolist()), pairwise(kv_indptr.tolist()), strict=True):
            alone = [x[a:b].transpose(0, 1) for x, a, b in ((q, q0, q1), (k, k0, k1), (v, k0, k1))]
            assert_right(spec, alone, got[q0:q1].transpose(0, 1), got_lse[:, q0:q1])


@MASKS
@WIDTHS
def test_padding_is_written_as_nothing_and_does_not_matter(mask, widths, tmp_path, gpu):
    """Values against each request alone among NaN; results of padding are 0 and -inf; a graph serves other lengths."""
    module, spec = of_batch(tmp_path, mask, widths, {"layout": "bshd", "padded": True})
    torch.manual_seed(0)
    nan, tokens, requests = float("nan"), 450, 6
    q, k, v = (
        filled(nan, gpu, requests, tokens, heads, dim)
        for heads, dim in ((HEADS, widths[0]), (KV_HEADS, widths[0]), (KV_HEADS, widths[1]))
    )
    out = filled(nan, gpu, requests, tokens, HEADS, widths[1])
    seq_lens = torch.tensor((0, 300, 1, 129, 450, 64), device=gpu, dtype=torch.int32)
    call = {"seq_lens": seq_lens, "out": out, "return_lse": True}
    assert module.form(q, k, v, **call) == "sm_90"
    module.attention(q, k, v, **call)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = module.attention(q, k, v, **call)
    for lengths in ((0, 300, 1, 129, 450, 64), (127, 0, 0, 65, 256, 3)):
        seq_lens.copy_(torch.tensor(lengths, device=gpu))
        for tensor in (q, k, v):
            tensor.fill_(nan)
            for b, length in enumerate(lengths):
                tensor[b, :length].normal_()
        got, got_lse = repeated(graph, out, lambda: (out.clone(), lse.clone()))
        for b, length in enumerate(lengths):
            assert not got[b, length:].any()
            assert (got_lse[b, :, length:] == float("-inf")).all()
            alone = [x[b, :length].transpose(0, 1) for x in (q, k, v)]
            assert_right(spec, alone, got[b, :length].transpose(0, 1), got_lse[b, :, :length])


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
