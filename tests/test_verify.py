"""The whole proof on small layers: generated kernels pass, and what is not there is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kgen.errors import InputError, MissingDependencyError, StaleError
from kgen.verify import values
from kgen.verify.cases import HOSTILE, Tiles, device_cases, interpreter_cases
from kgen.verify.modules import load_package, tiles
from kgen.verify.poison import LAYOUTS
from kgen.verify.run import Result, check_case, table_rows, verify
from tests.verify_support import MASKS, failures, generate, load_spec, make_spec, write

pytestmark = pytest.mark.triton

# Every mask, dtype, and the groups and widths that no power of two describes; small heads keep it short.
LAYERS = {
    "causal": {"heads": 4, "kv_heads": 2},
    "full": {"heads": 4, "kv_heads": 2, "mask": MASKS["full"], "dtype": "bfloat16"},
    "window": {"heads": 4, "kv_heads": 2, "mask": {"kind": "sliding_window", "size": 40}},
    "two-sided window": {"heads": 2, "kv_heads": 1, "mask": MASKS["window"]},
    "left window": {"heads": 2, "kv_heads": 1, "mask": MASKS["window_left"]},
    "right window": {"heads": 2, "kv_heads": 1, "mask": MASKS["window_right"]},
    "window of one": {"heads": 2, "kv_heads": 1, "mask": {"kind": "sliding_window", "size": 1}},
    "group 3, float32": {"heads": 3, "kv_heads": 1, "dtype": "float32"},
    "width 72": {"heads": 2, "kv_heads": 2, "head_dim": 72},
    "group 29": {"heads": 29, "kv_heads": 1, "kernels": {"decode": {}}},
    "width 8 and 40": {"heads": 2, "kv_heads": 1, "head_dim": 8, "head_dim_v": 40},
    "width 192 and 128": {"heads": 2, "kv_heads": 2, "head_dim": 192, "head_dim_v": 128, "dtype": "bfloat16"},
    "tokens first": {"heads": 4, "kv_heads": 2, "kernels": {"prefill": {"layout": "bshd"}}},
    "tokens first, one KV head": {
        "heads": 3,
        "kv_heads": 1,
        "head_dim": 24,
        "kernels": {"prefill": {"layout": "bshd"}},
    },
    "padded": {"heads": 4, "kv_heads": 2, "kernels": {"prefill": {"padded": True}}},
    "padded, tokens first, full": {
        "heads": 3,
        "kv_heads": 1,
        "head_dim": 72,
        "mask": MASKS["full"],
        "dtype": "bfloat16",
        "kernels": {"prefill": {"padded": True, "layout": "bshd"}},
    },
    "padded, window": {
        "heads": 2,
        "kv_heads": 2,
        "mask": MASKS["window"],
        "kernels": {"prefill": {"padded": True}},
    },
    "ragged": {"heads": 4, "kv_heads": 2, "kernels": {"prefill": {"layout": "ragged"}}},
    "ragged, one KV head, full": {
        "heads": 3,
        "kv_heads": 1,
        "head_dim": 72,
        "mask": MASKS["full"],
        "dtype": "bfloat16",
        "kernels": {"prefill": {"layout": "ragged"}},
    },
    "ragged, window": {
        "heads": 2,
        "kv_heads": 2,
        "mask": {"kind": "sliding_window", "size": 40},
        "kernels": {"prefill": {"layout": "ragged"}},
    },
    "scale 1, 3 splits": {"heads": 2, "kv_heads": 1, "sm_scale": 1.0, "kernels": {"decode": {"num_splits": 3}}},
}


@pytest.mark.parametrize("facts", LAYERS.values(), ids=LAYERS)
def test_generated_kernels_pass(facts, tmp_path):
    loaded = load_spec(**facts)
    modules = generate(loaded, tmp_path)
    for kernel in loaded.spec.kernels:
        failed = failures(loaded, kernel, modules[kernel], first=False)
        assert not failed, "\n".join(f"{kernel} {r.case.name} {r.case.shape}: {r.message}" for r in failed)


def test_verify_runs_every_case_of_every_kernel(tmp_path):
    loaded = load_spec(heads=2, kv_heads=2)
    write(loaded, tmp_path)
    seen = []
    results = verify([loaded], tmp_path, progress=lambda result, done, total: seen.append((result, done, total)))
    assert tuple(result for result, _, _ in seen) == results
    assert [done for _, done, _ in seen] == list(range(1, len(results) + 1))
    assert {total for _, _, total in seen} == {len(results)}
    assert all(r.passed and r.poison_ok and r.worst_ratio <= 1 for r in results)
    assert any(r.max_error > 0 for r in results)
    rows = table_rows(results)
    assert [(row.spec, row.kernel) for row in rows] == [("example", "prefill"), ("example", "decode")]
    assert sum(row.cases for row in rows) == sum(row.passed for row in rows) == len(results)
    assert all(0.05 < row.worst.worst_ratio <= 1 for row in rows)


def test_missing_and_stale_files_are_refused(tmp_path):
    loaded = load_spec()
    with pytest.raises(StaleError, match=r"prefill.py is missing"):
        verify([loaded], tmp_path)
    write(loaded, tmp_path)
    path = tmp_path / "example" / "decode.py"
    path.write_text(path.read_text().replace("0.0", "0.1", 1))
    with pytest.raises(StaleError, match=r"^.*decode.py is not what its spec generates$"):
        verify([loaded], tmp_path)


def test_a_module_that_cannot_be_imported_is_named(tmp_path):
    write(load_spec(), tmp_path)
    (tmp_path / "example" / "decode.py").write_text("import no_such_module\n")
    with pytest.raises(InputError, match="example cannot be imported: ModuleNotFoundError"):
        load_package(tmp_path / "example")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_said(tmp_path):
    with pytest.raises(MissingDependencyError, match="needs a GPU, and PyTorch sees none"):
        verify([], tmp_path, device="cuda")


def test_a_broken_kernel_is_reported_not_raised(tmp_path):
    loaded = load_spec()
    module = generate(loaded, tmp_path)["prefill"]
    case = interpreter_cases(loaded.spec, "prefill", tiles(module))[0]

    def broken(*_, **__):
        raise RuntimeError("no")

    module.attention = broken
    result = check_case(loaded.spec, "prefill", module, case, torch.device("cpu"))
    assert not result.passed
    assert result.message == "raised RuntimeError: no"
    assert math.isnan(result.worst_ratio)
    assert not result.poison_ok
    module.attention = lambda q, k, v, **_: (q[..., :8], q[..., 0])
    assert "have shapes" in check_case(loaded.spec, "prefill", module, case, torch.device("cpu")).message


def test_a_lost_gpu_ends_the_run(tmp_path, monkeypatch):
    loaded = load_spec(kernels={"prefill": {}})
    write(loaded, tmp_path)
    case = interpreter_cases(loaded.spec, "prefill", (Tiles("sm_80", 16, 16),))[0]
    bad = Result("example", "prefill", case, 1.0, 2.0, 0.1, 1.0, 0.9, 1.0, False, 1.5, "raised AcceleratorError: gone")

    def gone(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("kgen.verify.run.check_case", lambda *_: bad)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    assert len(verify([loaded], tmp_path, device="cuda")) > 30
    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    (only,) = verify([loaded], tmp_path, device="cuda")
    assert only.message == "raised AcceleratorError: gone; the GPU is lost, the cases after this one did not run"


def test_the_table_sums_up_by_kernel():
    spec = make_spec()
    case = interpreter_cases(spec, "prefill", (Tiles("sm_80", 16, 16),))[0]
    good = Result("a", "prefill", case, 1.0, 2.0, 0.1, 1.0, 0.9, 1.0, True, 1.5, None)
    bad = replace(good, max_error=3.0, lse_error=0.2, poison_ok=False, message="wrong")
    lost = replace(good, kernel="decode", lse_error=math.nan, message="NaN")
    first, second = table_rows([good, bad, lost, replace(good, kernel="decode", max_error=1e9)])
    assert (first.spec, first.kernel, first.cases, first.passed) == ("a", "prefill", 2, 1)
    assert (first.worst, first.worst_lse) == (bad, good)
    assert first.worst.worst_ratio == 1.5
    assert (first.poison_ok, first.seconds) == (False, 3.0)
    # NaN is the worst error of all.
    assert second.worst is second.worst_lse is lost


@pytest.mark.parametrize("kernel", ["prefill", "decode"])
@pytest.mark.parametrize("mask", MASKS)
def test_cases_meet_the_edges(kernel, mask):
    spec = make_spec(mask=MASKS[mask])
    launch = (Tiles("sm_80", 32, 16), Tiles("sm_90", 32, 16), Tiles("gfx942", 64, 32))
    made = interpreter_cases(spec, kernel, launch)
    assert len({c.name for c in made}) == len(made)
    assert all(c.reason for c in made)
    assert {c.values for c in made} == {"normal", "beacons", *HOSTILE}
    assert {c.layout for c in made} == set(LAYOUTS)
    assert {c.target for c in made} == {"sm_80", "gfx942"}
    assert {0} < {c.batch for c in made}
    lengths = {n for c in made for n in (c.seq_lens or (c.kv_len,))}
    assert {0, 1, 15, 16, 17} <= lengths
    if kernel == "prefill":
        assert any(c.q_len > c.kv_len > 0 for c in made)
        assert any(0 < c.q_len < c.kv_len for c in made)
        assert any(c.q_len == 0 for c in made)
    else:
        assert {None, 1, 2, 3, 7, 33} <= {c.num_splits for c in made}
        assert any(c.num_splits and c.num_splits > max(c.seq_lens) > 0 for c in made)
    if mask == "sliding_window":
        assert {4, 5, 6} <= lengths
    larger = device_cases(spec, kernel, launch[0])
    assert set(interpreter_cases(spec, kernel, launch[:1])) < set(larger)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["normal", "beacons", *HOSTILE])
def test_values_are_what_they_say(name, dtype):
    spec = make_spec(heads=4, kv_heads=2, head_dim=64, mask=MASKS["full"], dtype=dtype)
    case = replace(interpreter_cases(spec, "prefill", (Tiles("sm_80", 16, 16),))[0], values=name, q_len=9, kv_len=31)
    made, again = (values.make(spec, "prefill", case, torch.device("cpu")) for _ in range(2))
    q, k, v = made.q, made.k, made.v
    assert made.q_pe is made.k_pe is None
    assert all(torch.equal(getattr(made, name), getattr(again, name)) for name in "qkv")
    assert q.shape == (1, 4, 9, 64)
    assert all(x.isfinite().all() for x in (q, k, v))
    products = torch.einsum("bhmd,bhnd->bhmn", q.double(), k.double().repeat_interleave(2, 1))
    logits = products * spec.attention.sm_scale
    if name == "below":
        assert logits.max() < -1e4
        assert logits.std() > 0
    elif name == "huge":
        assert logits.max() > 2.4e5
        assert logits.min() < -2.4e5
    elif name == "fp16_range":
        assert products.max() == 256 * 256 * 64
    elif name == "dominant":
        assert (logits.softmax(-1).amax(-1) > 0.999).all()
    elif name == "equal":
        assert logits.std() < 1e-3
        assert v.std() > 0.5
    elif name == "denormal":
        assert 0 < q.abs().max() < torch.finfo(q.dtype).tiny
    elif name == "beacons":
        near = logits[..., ::7].min()
        assert near - logits[..., 1::7].max() > 4
