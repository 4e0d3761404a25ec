"""The tensors of `kgen bench`, its check of values, its candidates: on the CPU, with small layers of every layout."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from kgen.bench import check, plain_kernels
from kgen.bench.inputs import Problem, UnsupportedError, make
from kgen.bench.kernels import Kernels, NotGeneratedError
from kgen.bench.peers import Candidate, flash_attention, flash_mla, flashinfer, flex, plain, sdpa, shapes
from kgen.bench.run import _generated
from kgen.plan import features
from tests.bench_support import GROUPED, LATENT, LENGTHS, load, right, spec_file, workload

CPU = torch.device("cpu")
GROUPED_KERNELS = [name for name in LENGTHS if name != "expanded"]
LATENT_KERNELS = ["expanded", "contiguous", "paged"]
ALL = [(GROUPED, name) for name in GROUPED_KERNELS] + [(LATENT, name) for name in LATENT_KERNELS]


def problem_of(folder: Path, text: str, kernel: str, **choices: Any) -> Problem:
    lengths = {name: choices.pop(name) for name in ("seq_lens", "qo_lens") if name in choices}
    path = spec_file(folder, text, **choices)
    return make(load(path).spec, workload(path, kernel, **lengths), CPU)


def error_of(problem: Problem, candidate: Candidate) -> float:
    out = candidate.call()
    return check.worst_error(check.expect(problem), lambda request: candidate.rows(out, request))


@pytest.mark.parametrize(("text", "kernel"), ALL)
def test_the_check_agrees_with_the_reference_and_sees_one_wrong_row(tmp_path: Path, text: str, kernel: str) -> None:
    problem = problem_of(tmp_path, text, kernel)
    expected, out = check.expect(problem), right(problem)
    assert {one.request for one in expected} >= {0, problem.workload.batch - 1}
    assert check.worst_error(expected, lambda request: problem.results(out, request)) < 1e-6
    unwritten = problem.new_out()
    assert check.worst_error(expected, lambda request: problem.results(unwritten, request)) == math.inf
    one = expected[-1]
    problem.results(out, one.request)[one.head, one.row] *= 1.1
    assert check.worst_error(expected, lambda request: problem.results(out, request)) > 0.05


def test_pages_are_shuffled_and_none_is_shared(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, GROUPED, "paged", seq_lens=(40, 23, 60), qo_lens=(1, 1, 1))
    table = problem.keywords["block_table"]
    used = torch.cat([table[b, : -(-n // 4)] for b, n in enumerate((40, 23, 60))]).tolist()
    assert sorted(used) == list(range(len(used))) != used
    assert problem.k[0].shape == (len(used), 4, 2, 16)
    assert table.dtype == torch.int32


def test_a_latent_cache_is_one_fused_record_whose_slices_are_the_arguments(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, LATENT, "paged")
    q, q_pe, kv, k_pe = problem.arguments
    assert (q.shape, q_pe.shape) == ((3, 16, 32), (3, 16, 16))
    assert kv.shape[1:] == (4, 32)
    assert k_pe.shape[1:] == (4, 16)
    assert kv.stride() == k_pe.stride() == (4 * 48, 48, 1)
    assert k_pe.data_ptr() - kv.data_ptr() == 32 * kv.element_size()
    assert problem.v.data_ptr() == kv.data_ptr()
    assert [x.shape for x in problem_of(tmp_path, LATENT, "contiguous").arguments[2:]] == [(3, 9, 32), (3, 9, 16)]


def test_what_the_contract_has_no_call_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"requests of one length"):
        problem_of(tmp_path, GROUPED, "bhsd", seq_lens=(9, 5), qo_lens=(9, 5))
    with pytest.raises(UnsupportedError, match="as many queries as keys"):
        problem_of(tmp_path, GROUPED, "padded", seq_lens=(9, 5), qo_lens=(4, 4))


@pytest.mark.triton
@pytest.mark.parametrize(("text", "kernel"), ALL)
def test_generated_kernels_take_the_tensors_as_they_are(tmp_path: Path, text: str, kernel: str) -> None:
    problem = problem_of(tmp_path, text, kernel)
    loaded = load(Path(problem.workload.spec)).spec
    alone = loaded.model_copy(update={"kernels": {kernel: loaded.kernels[kernel]}})
    kernels = Kernels(tmp_path / "modules")
    if features.unmet(alone):
        with pytest.raises(NotGeneratedError):
            _generated(problem, kernels).call()
    else:
        assert error_of(problem, _generated(problem, kernels)) < 1e-5


def test_a_kernel_is_not_kept_back_by_others_of_its_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "unmet", lambda spec: ("padding",) if "padded" in spec.kernels else ())
    kernels, path = Kernels(tmp_path / "modules"), spec_file(tmp_path, GROUPED)
    assert kernels.module(workload(path, "contiguous")).SPEC["kernels"].keys() == {"contiguous"}
    with pytest.raises(NotGeneratedError, match=r"^padding$"):
        kernels.module(workload(path, "padded"))


@pytest.mark.triton
@pytest.mark.parametrize("lengths", [(9, 5, 6), (150, 3, 64)])
@pytest.mark.parametrize(("text", "kernel"), [(GROUPED, "contiguous"), (GROUPED, "paged"), (LATENT, "paged")])
def test_the_plain_kernels_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kernel: str, lengths: tuple[int, ...]
) -> None:
    monkeypatch.setattr(plain, "_splits", lambda *_: 4)
    problem = problem_of(tmp_path, text, kernel, seq_lens=lengths, qo_lens=(1, 1, 1))
    load_peer = plain.latent if problem.is_absorbed else plain.head_a_program
    assert error_of(problem, load_peer(problem)) < 1e-5


def test_splits_fill_the_gpu_and_leave_each_some_keys() -> None:
    assert plain_kernels.num_splits(32, 131072, 132) == 16
    assert plain_kernels.num_splits(2048, 8192, 132) == 1
    assert plain_kernels.num_splits(1, 600, 132) == 2
    assert plain_kernels.num_splits(1, 100, 132) == 1


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, left: int = -1, right: int = -1) -> Any:
    """``[B, H, M, D]``, bottom-right aligned, in float64: what a peer's documentation says it computes."""
    i = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2])[None]
    seen = torch.ones(len(i), k.shape[2], dtype=torch.bool)
    seen &= (j <= i + right) if right >= 0 else True
    seen &= (j >= i - left) if left >= 0 else True
    out = scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.to(q.dtype)


class FakeFA3:
    """The functions of ``fa3_fwd_interface`` by their documentation: tokens before heads."""

    @staticmethod
    def flash_attn_func(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, num_splits: int) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return attend(q, k, v, softmax_scale, right=0 if causal else -1).transpose(1, 2), "lse"

    @staticmethod
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, q_at: Any, k_at: Any, most_q: int, most_k: int, *, softmax_scale: float, causal: bool
    ) -> Any:
        parts = []
        for b in range(len(q_at) - 1):
            assert q_at[b + 1] - q_at[b] <= most_q
            assert k_at[b + 1] - k_at[b] <= most_k
            own = [x[at[b] : at[b + 1]].transpose(0, 1)[None] for x, at in ((q, q_at), (k, k_at), (v, k_at))]
            parts.append(attend(*own, softmax_scale, right=0 if causal else -1)[0].transpose(0, 1))
        return torch.cat(parts)

    @staticmethod
    def flash_attn_with_kvcache(
        q: Any,
        k: Any,
        v: Any,
        *,
        cache_seqlens: Any,
        softmax_scale: float,
        causal: bool,
        num_splits: int,
        qv: Any = None,
    ) -> Any:
        if qv is not None:
            q, k = torch.cat([q, qv], -1), torch.cat([k, v], -1)
        rows = [
            attend(*(x[b : b + 1, :n].transpose(1, 2) for x, n in ((q, 1), (k, n), (v, n))), softmax_scale)
            for b, n in enumerate(cache_seqlens.tolist())
        ]
        return torch.cat(rows).transpose(1, 2)


FA3_CASES = [
    *((GROUPED, kernel, {}) for kernel in GROUPED_KERNELS),
    *((LATENT, kernel, {}) for kernel in LATENT_KERNELS),
    (GROUPED, "paged", {"seq_lens": (9, 9), "qo_lens": (1, 1), "mask": "{kind: sliding_window, size: 5}"}),
    (GROUPED, "contiguous", {"seq_lens": (9, 9), "qo_lens": (1, 1)}),
]


@pytest.mark.parametrize(("text", "kernel", "choices"), FA3_CASES)
def test_fa3_is_given_the_same_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kernel: str, choices: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", FakeFA3)
    problem = problem_of(tmp_path, text, kernel, dtype="bfloat16", **choices)
    assert error_of(problem, flash_attention.fa3(problem)) < 1e-2


def test_fa4_is_given_the_same_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flash_attn_func(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, window_size: Any = None) -> Any:
        left, right = window_size or (None, 0 if causal else None)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        left, right = (-1 if side is None else side for side in (left, right))
        return attend(q, k, v, softmax_scale, left, right).transpose(1, 2), "lse"

    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", SimpleNamespace(flash_attn_func=flash_attn_func))
    for kernel in ("bhsd", "bshd"):
        for mask in ("{kind: causal}", "{kind: sliding_window, size: 3}", "{kind: full}"):
            problem = problem_of(tmp_path, GROUPED, kernel, mask=mask)
            assert error_of(problem, flash_attention.fa4(problem)) < 1e-5
    with pytest.raises(UnsupportedError, match="timed on prefill"):
        flash_attention.fa4(problem_of(tmp_path, GROUPED, "paged"))


@pytest.mark.parametrize(
    ("kernel", "choices"),
    [
        ("bhsd", {"mask": "{kind: full}"}),
        ("bhsd", {"qo_lens": (9, 9)}),
        ("bshd", {}),
        ("contiguous", {"seq_lens": (9, 9), "qo_lens": (1, 1)}),
        ("paged", {"seq_lens": (9, 9), "qo_lens": (1, 1), "mask": "{kind: sliding_window, size: 5}"}),
    ],
)
def test_sdpa_is_given_the_same_problem(tmp_path: Path, kernel: str, choices: dict[str, Any]) -> None:
    problem = problem_of(tmp_path, GROUPED, kernel, **choices)
    assert error_of(problem, sdpa._sdpa(problem, SDPBackend.MATH)) < 1e-5


@pytest.mark.parametrize(
    ("kernel", "choices", "why"),
    [
        ("bhsd", {}, "top-left"),
        ("bshd", {"mask": "{kind: sliding_window, size: 5}"}, "no window"),
        ("contiguous", {}, "one length"),
        ("padded", {}, "one length"),
    ],
)
def test_sdpa_says_what_it_does_not_state(tmp_path: Path, kernel: str, choices: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        sdpa.cudnn(problem_of(tmp_path, GROUPED, kernel, **choices))


@pytest.mark.parametrize(
    ("kernel", "choices"),
    [
        ("bhsd", {}),
        ("bshd", {"mask": "{kind: sliding_window, size: 3}"}),
        ("bhsd", {"mask": "{kind: window, left: 2, right: 1}"}),
        ("bhsd", {"mask": "{kind: full}"}),
        ("padded", {}),
        ("ragged", {"qo_lens": (9, 5, 6), "mask": "{kind: sliding_window, size: 3}"}),
    ],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_is_given_the_same_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, choices: dict[str, Any]
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    problem = problem_of(tmp_path, GROUPED, kernel, **choices)
    assert error_of(problem, flex.flex(problem)) < 1e-5


class FakeMLA:
    """``flash_mla`` by its documentation; the widths are the test's."""

    @staticmethod
    def get_mla_metadata() -> tuple[str, None]:
        return "schedule", None

    @staticmethod
    def flash_mla_with_kvcache(
        q: Any, cache: Any, table: Any, lengths: Any, width: int, schedule: str, **options: Any
    ) -> tuple[torch.Tensor, str]:
        assert schedule == "schedule"
        assert options["use_legacy"]
        assert cache.is_contiguous()
        rows = []
        for b, n in enumerate(lengths.tolist()):
            k = cache[table[b].long()].flatten(0, 1)[:n].transpose(0, 1)[None]
            rows.append(attend(q[b : b + 1].transpose(1, 2), k, k[..., :width], options["softmax_scale"]))
        return torch.cat(rows).transpose(1, 2), "lse"


def test_flash_mla_is_given_the_same_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_mla", FakeMLA)
    text = LATENT.replace("kv_lora_rank: 32", "kv_lora_rank: 512").replace("rope_head_dim: 16", "rope_head_dim: 64")
    problem = problem_of(tmp_path, text.replace("page_size: 4", "page_size: 64"), "paged", dtype="bfloat16")
    assert error_of(problem, flash_mla.flash_mla(problem)) < 1e-2
    with pytest.raises(UnsupportedError, match="pages of 64"):
        flash_mla.flash_mla(problem_of(tmp_path, text, "paged", dtype="bfloat16"))
    with pytest.raises(UnsupportedError, match="latent layers"):
        flash_mla.flash_mla(problem_of(tmp_path, GROUPED, "paged"))


def test_a_library_that_is_there_and_does_not_load_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_peer.py").write_text("raise OSError('libc10_cuda.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"broken_peer does not load: OSError: libc10_cuda.so: cannot open"):
        shapes.library("broken_peer")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'no_such_peer'"):
        shapes.library("no_such_peer")


class FakePages:
    """FlashInfer's wrappers by their documentation: pages of all requests one after the other."""

    def __init__(self, workspace: torch.Tensor, *_: str, **options: Any) -> None:
        assert workspace.dtype == torch.uint8

    def rows(self, pages: torch.Tensor, b: int, count: int) -> torch.Tensor:
        own = self.used[self.starts[b] : self.starts[b + 1]].long()
        return pages[own].flatten(0, 1)[:count].transpose(0, 1)[None]


class FakeDecode(FakePages):
    def plan(
        self, starts: Any, used: Any, last: Any, heads: int, kv: int, width: int, size: int, **options: Any
    ) -> None:
        self.starts, self.used, self.scale, self.left = starts, used, options["sm_scale"], options["window_left"]
        self.lengths = (((starts[1:] - starts[:-1]) - 1) * size + last).tolist()
        assert (heads, kv, width) == (4, 2, 16)

    def run(self, q: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        outs = []
        for b, n in enumerate(self.lengths):
            k, v = (self.rows(x, b, n) for x in cache)
            outs.append(attend(q[b][None, :, None], k, v, self.scale, self.left)[0, :, 0])
        return torch.stack(outs)


class FakeAbsorbed(FakePages):
    def plan(self, q_at: Any, starts: Any, used: Any, lengths: Any, heads: int, rank: int, *rest: Any) -> None:
        self.starts, self.used, self.lengths = starts, used, lengths.tolist()
        pe, _, causal, self.scale, *_ = rest
        assert (heads, rank, pe, causal) == (16, 32, 16, False)

    def run(self, q: torch.Tensor, q_pe: torch.Tensor, latent: torch.Tensor, k_pe: torch.Tensor) -> torch.Tensor:
        outs = []
        for b, n in enumerate(self.lengths):
            kv, pe = (self.rows(x.unsqueeze(2), b, n) for x in (latent, k_pe))
            query = torch.cat([q[b], q_pe[b]], -1)[None, :, None]
            outs.append(attend(query, torch.cat([kv, pe], -1), kv, self.scale)[0, :, 0])
        return torch.stack(outs)


def test_flashinfer_is_given_the_same_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def single(q: Any, k: Any, v: Any, *, causal: bool, window_left: int, sm_scale: float) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return attend(q, k, v, sm_scale, window_left, 0 if causal else -1)[0].transpose(0, 1)

    library = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=FakeDecode, single_prefill_with_kv_cache=single, __path__=[]
    )
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    absorbed = SimpleNamespace(BatchMLAPagedAttentionWrapper=FakeAbsorbed)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", absorbed)
    monkeypatch.setattr(flashinfer, "WORKSPACE", 64)
    window = "{kind: sliding_window, size: 5}"
    for text, kernel, choices in (
        (GROUPED, "paged", {}),
        (GROUPED, "paged", {"mask": window}),
        (LATENT, "paged", {}),
        (GROUPED, "bhsd", {"seq_lens": (9,), "qo_lens": (7,)}),
        (GROUPED, "bshd", {"seq_lens": (9,), "qo_lens": (7,), "mask": window}),
    ):
        problem = problem_of(tmp_path, text, kernel, **choices)
        assert error_of(problem, flashinfer.flashinfer(problem)) < 1e-5, (kernel, choices)
    with pytest.raises(UnsupportedError, match="paged"):
        flashinfer.flashinfer(problem_of(tmp_path, GROUPED, "contiguous"))
