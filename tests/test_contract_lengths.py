"""The contract of prefill kernels whose requests have lengths of their own: arguments, checks, what is written."""

from __future__ import annotations

import inspect

import pytest
import torch

from kgen.verify.interpreter import interpreting
from tests.verify_support import generate, load_spec

pytestmark = pytest.mark.triton

HEADS, KV_HEADS, WIDTH = 4, 2, 16
KERNELS = {
    "padded": {"kind": "prefill", "padded": True},
    "padded_tokens_first": {"kind": "prefill", "padded": True, "layout": "bshd"},
    "ragged": {"kind": "prefill", "layout": "ragged"},
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    loaded = load_spec(heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, kernels=KERNELS)
    return generate(loaded, tmp_path_factory.mktemp("generated"))


def lengths(*values):
    return torch.tensor(values, dtype=torch.int32)


def call(module, *tensors, **arguments):
    with interpreting():
        return module.attention(*tensors, **arguments)


def refused(module, error, message, *tensors, **arguments):
    with pytest.raises(error, match=rf"^attention: {message}"):
        call(module, *tensors, **arguments)


def packed(tokens, keys=None):
    return [torch.randn(n, h, WIDTH).half() for n, h in ((tokens, HEADS), *((keys or tokens, KV_HEADS),) * 2)]


@pytest.mark.parametrize("name", ["padded", "padded_tokens_first"])
def test_padded(modules, name):
    module = modules[name]
    parameters = inspect.signature(module.attention).parameters
    assert list(parameters) == ["q", "k", "v", "seq_lens", "out", "return_lse"]
    assert parameters["seq_lens"].default is inspect.Parameter.empty
    axis = 1 if name.endswith("first") else 2
    shapes = [(2, 6, h, WIDTH) if axis == 1 else (2, h, 6, WIDTH) for h in (HEADS, KV_HEADS, KV_HEADS)]
    tensors = [torch.randn(shape).half() for shape in shapes]
    q, k, v = tensors
    out, lse = call(module, q, k, v, seq_lens=lengths(4, 0), return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == (2, HEADS, 6)
    assert not out.narrow(axis, 4, 2).any()
    assert not out[1].any()
    assert (lse[0, :, 4:] == -torch.inf).all()
    assert (lse[1] == -torch.inf).all()
    alone, alone_lse = call(module, *(x[:1].narrow(axis, 0, 4) for x in tensors), seq_lens=lengths(4), return_lse=True)
    assert torch.equal(out[:1].narrow(axis, 0, 4), alone)
    assert torch.equal(lse[:1, :, :4], alone_lse)
    refused(module, TypeError, "seq_lens must be a torch.Tensor, got list", q, k, v, seq_lens=[4, 0])
    refused(module, TypeError, "seq_lens must be torch.int32, got torch.int64", q, k, v, seq_lens=lengths(4, 0).long())
    refused(module, ValueError, r"seq_lens must have shape \[2\], got \[1\]", q, k, v, seq_lens=lengths(4))
    with pytest.raises(TypeError, match="seq_lens"):
        call(module, q, k, v)


def test_ragged(modules):
    module = modules["ragged"]
    parameters = inspect.signature(module.attention).parameters
    assert list(parameters) == ["q", "k", "v", "qo_indptr", "kv_indptr", "max_qo_len", "out", "return_lse"]
    assert parameters["kv_indptr"].default is None
    q, k, v = packed(9)
    given = torch.full((9, HEADS, WIDTH), 7.0).half()
    ends = lengths(0, 3, 3, 7)
    out, lse = call(module, q, k, v, qo_indptr=ends, max_qo_len=4, out=given, return_lse=True)
    assert out is given
    assert (out[7:] == 7.0).all()
    assert lse.shape == (HEADS, 9)
    same, _ = call(module, q, k, v, qo_indptr=ends, kv_indptr=ends, max_qo_len=100, return_lse=True)
    assert torch.equal(same[:7], out[:7])
    alone, alone_lse = call(module, q[3:7], k[3:7], v[3:7], qo_indptr=lengths(0, 4), max_qo_len=4, return_lse=True)
    assert torch.equal(out[3:7], alone)
    assert torch.equal(lse[:, 3:7], alone_lse)
    # The tensors may begin with rows of nobody, and requests have other numbers of keys than of queries.
    late, late_lse = call(
        module, q, k, v, qo_indptr=lengths(3, 7), kv_indptr=lengths(3, 7), max_qo_len=4, return_lse=True
    )
    assert torch.equal(late[3:7], alone)
    assert torch.equal(late_lse[:, 3:7], alone_lse)


def test_ragged_checks(modules):
    module, (q, k, v) = modules["ragged"], packed(5)
    good = {"qo_indptr": lengths(0, 2, 5), "max_qo_len": 3}
    refused(module, TypeError, "qo_indptr must be a torch.Tensor", q, k, v, **good | {"qo_indptr": [0, 2, 5]})
    refused(
        module, TypeError, "qo_indptr must be torch.int32", q, k, v, **good | {"qo_indptr": good["qo_indptr"].long()}
    )
    refused(
        module,
        ValueError,
        r"qo_indptr must have shape \[B \+ 1\], got \[0\]",
        q,
        k,
        v,
        **good | {"qo_indptr": lengths()},
    )
    refused(
        module, ValueError, r"qo_indptr must be contiguous", q, k, v, **good | {"qo_indptr": lengths(0, 0, 2, 5)[::2]}
    )
    refused(module, ValueError, r"kv_indptr must have shape \[3\], got \[2\]", q, k, v, **good, kv_indptr=lengths(0, 5))
    refused(module, TypeError, "max_qo_len must be an int, got float", q, k, v, **good | {"max_qo_len": 3.0})
    refused(module, ValueError, "max_qo_len must be at least 0, got -1", q, k, v, **good | {"max_qo_len": -1})
    refused(module, ValueError, r"q must have shape \[Tq, 4, 16\], got", q[None], k, v, **good)
    refused(module, ValueError, r"v must have shape \[5, 2, 16\], got \[4, 2, 16\]", q, k, v[:4], **good)
    with pytest.raises(TypeError, match="max_qo_len"):
        call(module, q, k, v, qo_indptr=good["qo_indptr"])


@pytest.mark.parametrize("ends", [(0,), (0, 0), (0, 0, 0)])
def test_ragged_batches_of_nothing(modules, ends):
    q, k, v = packed(0, 0)
    out, lse = call(modules["ragged"], q, k, v, qo_indptr=lengths(*ends), max_qo_len=0, return_lse=True)
    assert out.shape == (0, HEADS, WIDTH)
    assert lse.shape == (HEADS, 0)
