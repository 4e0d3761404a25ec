"""The contract of generated modules, on every committed one: imports, names, checks of arguments, results."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import yaml

from kgen.spec import views
from kgen.spec.loader import load_specs, load_text
from kgen.verify import interpreter
from kgen.verify.interpreter import interpreting
from kgen.verify.modules import load_package
from tests.verify_support import document, generate, load_latent, load_spec

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "generated"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
SPECS = {loaded.spec.name: loaded.spec for loaded in load_specs([ROOT / "specs"])}
# Packed requests and merges have calls of their own: test_contract_lengths.py, test_merge_states.py.
KERNELS = [
    (name, kernel)
    for name, spec in SPECS.items()
    for kernel, plan in spec.kernels.items()
    if getattr(plan, "layout", None) not in ("ragged", "bhd")
]


@pytest.fixture(scope="module")
def modules():
    """The committed modules; not loaded where only tests for a GPU run, since these want no interpreter."""
    interpreter.require()
    return {name: load_package(GENERATED / name) for name in SPECS}


@pytest.fixture(params=KERNELS, ids="/".join)
def kernel(request, modules):
    """A committed module with the facts of its spec and tensors that it accepts."""
    name, kind = request.param
    return case_of(modules[name][kind], SPECS[name], kind)


def case_of(module, spec, kind, b=2, m=3, n=5):
    a = views.of_kernel(spec, kind)
    dtype = DTYPES[spec.dtype]
    is_decode = spec.kernels[kind].kind == "decode"
    layout = "bhsd" if is_decode else spec.kernels[kind].layout
    page_size = getattr(spec.kernels[kind].kv, "page_size", None)
    is_absorbed = views.is_absorbed(spec, kind)
    columns = -(-n // (page_size or 1))

    def shape(heads, tokens):
        return {"bhsd": (b, heads, tokens), "bshd": (b, tokens, heads)}[layout]

    outer = (b, a.num_qo_heads) if is_decode else shape(a.num_qo_heads, m)
    kv_shape = shape(a.num_kv_heads, n) if page_size is None else (b * columns, page_size, a.num_kv_heads)
    rotary = {} if a.head_dim_pe is None else {"q_pe": a.head_dim_pe, "k_pe": a.head_dim_pe}
    queries = {"q": a.head_dim_qk} | {name: dim for name, dim in rotary.items() if name[0] == "q"}
    keys = {name: dim for name, dim in rotary.items() if name[0] == "k"}
    if is_absorbed:
        # One latent and one rotary key a token, and no axis of heads.
        kv_shape = (b, n) if page_size is None else (b * columns, page_size)
        keys = {"kv": a.head_dim_qk, **keys}
    else:
        suffix = "" if page_size is None else "_cache"
        keys = {f"k{suffix}": a.head_dim_qk, **{name + suffix: dim for name, dim in keys.items()}}
        keys[f"v{suffix}"] = a.head_dim_v
    arguments = {name: torch.randn(*outer, dim).to(dtype) for name, dim in queries.items()}
    arguments |= {name: torch.randn(*kv_shape, dim).to(dtype) for name, dim in keys.items()}
    tensors = tuple(arguments)
    if page_size is not None:
        arguments["block_table"] = torch.arange(b * columns, dtype=torch.int32).reshape(b, columns)
    if is_decode:
        arguments["seq_lens"] = torch.arange(b, dtype=torch.int32)
    return SimpleNamespace(
        module=module,
        a=a,
        dtype=dtype,
        decode=is_decode,
        args=arguments,
        out_shape=(*outer, a.head_dim_v),
        lse_shape=(b, a.num_qo_heads) if is_decode else (b, a.num_qo_heads, m),
        heads=2 if layout == "bshd" else 1,  # the axis of heads
        tokens=1 if layout == "bshd" or is_absorbed else 2,  # the axis of k's tokens
        keys=tuple(keys),
        is_absorbed=is_absorbed,
        spec=spec,
        tensors=tensors,
        page_size=page_size,
        kind=kind,
    )


def call(case, **changes):
    arguments = {**case.args, **changes}
    tensors = [arguments.pop(name) for name in case.tensors]
    with interpreting():
        return case.module.attention(*tensors, **arguments)


def refused(case, error, message, **changes):
    """The call raises ``error``; its message begins with ``attention: `` and matches ``message``."""
    with pytest.raises(error) as raised:
        call(case, **changes)
    text = str(raised.value)
    assert type(raised.value) is error
    assert re.match(r"attention: \w+ ", text), text
    assert re.search(message, text), text


def test_imports_only_torch_triton_and_itself():
    for path in GENERATED.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= {"torch", "triton"}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.level == 0 and node.module.split(".")[0] in {"torch", "triton"}), path


def test_names_and_spec(kernel):
    module = kernel.module
    functions = (
        {"attention", "form"}
        if Path(module.__file__).with_stem(f"{Path(module.__file__).stem}_sm90").exists()
        else {"attention"}
    )
    assert set(module.__all__) == {"SPEC", *functions}
    want = kernel.spec.model_dump(mode="json")
    assert module.SPEC["attention"] == want["attention"]
    assert {name: module.SPEC[name] for name in ("name", "dtype", "targets")} == {
        name: want[name] for name in ("name", "dtype", "targets")
    }
    public = {name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert public == functions
    parameters = inspect.signature(module.attention).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert positional == list(kernel.tensors)
    decode = {"seq_lens": inspect.Parameter.empty, "num_splits": None, "max_seq_len": None}
    paged = {"block_table": inspect.Parameter.empty} if kernel.page_size else {}
    assert keywords == {"out": None, "return_lse": False, **paged, **(decode if kernel.decode else {})}
    assert all(inspect.signature(getattr(module, name)).parameters == parameters for name in functions)


def test_docstring_says_the_problem(kernel):
    text = kernel.module.__doc__
    a = kernel.a
    for fact in (
        str(a.num_qo_heads),
        str(a.num_kv_heads),
        str(a.head_dim_qk),
        kernel.spec.dtype,
        "lse",
        str(a.sm_scale),
    ):
        assert fact in text
    for function in (kernel.module.attention, kernel.module):
        assert "attention(" in text
        assert inspect.getdoc(function)


def test_tensors_are_checked(kernel):
    for name in kernel.tensors:
        assert_checked(kernel, name)


def assert_checked(kernel, name):
    good = kernel.args[name]
    refused(kernel, TypeError, rf"^attention: {name} .*torch.Tensor.*list", **{name: [1.0]})
    other = torch.float64
    refused(kernel, TypeError, rf"^attention: {name} .*{kernel.dtype}.*{other}", **{name: good.to(other)})
    refused(kernel, ValueError, rf"^attention: {name} .*shape.*\[", **{name: good[0]})
    wider = torch.zeros(*good.shape[:-1], good.shape[-1] + 8, dtype=good.dtype)
    refused(kernel, ValueError, rf"^attention: {name} .*{good.shape[-1]}.*{wider.shape[-1]}", **{name: wider})
    if kernel.is_absorbed and name in kernel.keys:
        with_heads = good.unsqueeze(-2)
        refused(kernel, ValueError, rf"^attention: {name} .*shape.*, 1, {good.shape[-1]}", **{name: with_heads})
    else:
        heads = good.shape[kernel.heads]
        more = torch.cat([good, good.narrow(kernel.heads, 0, 1)], dim=kernel.heads)
        refused(kernel, ValueError, rf"^attention: {name} .*{heads}.*{heads + 1}", **{name: more})
    strided = torch.zeros(*good.shape, 2, dtype=good.dtype)[..., 0]
    refused(kernel, ValueError, rf"^attention: {name} .*contiguous.*stride", **{name: strided})
    refused(kernel, ValueError, r"^attention: \w+ .*meta", **{name: good.to("meta")})


def test_sizes_must_agree(kernel):
    first, *others = kernel.keys
    for name in others:
        x = kernel.args[name]
        refused(kernel, ValueError, rf"^attention: {name} .*shape", **{name: x[:1]})
        shorter = x.narrow(kernel.tokens, 0, x.shape[kernel.tokens] - 1)
        refused(kernel, ValueError, rf"^attention: {name} .*shape", **{name: shorter})
    if kernel.page_size is None:
        refused(kernel, ValueError, rf"^attention: {first} .*shape", **{first: kernel.args[first][:1]})
    if "q_pe" in kernel.args:
        refused(kernel, ValueError, r"^attention: q_pe .*shape", q_pe=kernel.args["q_pe"][:1])


def test_the_pages_of_a_cache_are_checked(kernel):
    if kernel.page_size is None:
        with pytest.raises(TypeError, match="block_table"):
            call(kernel, block_table=torch.zeros(2, 1, dtype=torch.int32))
        return
    size, table = kernel.page_size, kernel.args["block_table"]
    for name in kernel.keys:
        other = torch.cat([torch.zeros_like(kernel.args[name])] * 2, dim=1)
        refused(kernel, ValueError, rf"^attention: {name} .*, {size}, .*got .*, {2 * size}, ", **{name: other})
    refused(kernel, TypeError, r"^attention: block_table .*torch.Tensor.*list", block_table=[[0]])
    refused(kernel, TypeError, r"^attention: block_table .*int32.*int64", block_table=table.long())
    refused(kernel, ValueError, r"^attention: block_table .*shape", block_table=table[:1])
    refused(kernel, ValueError, r"^attention: block_table .*shape", block_table=table[0])
    refused(kernel, ValueError, r"^attention: block_table .*meta", block_table=table.to("meta"))
    gaps = torch.zeros(2, 6, dtype=torch.int32)[:, ::2]
    refused(kernel, ValueError, r"^attention: block_table .*contiguous", block_table=gaps)


def test_out_is_checked(kernel):
    out = torch.empty(kernel.out_shape, dtype=kernel.dtype)
    refused(kernel, TypeError, "^attention: out .*torch.Tensor", out="out")
    refused(kernel, TypeError, r"^attention: out .*float64", out=out.double())
    refused(kernel, ValueError, "^attention: out .*shape", out=out[:1])
    strided = torch.empty(*kernel.out_shape, 2, dtype=kernel.dtype)[..., 0]
    refused(kernel, ValueError, "^attention: out .*contiguous", out=strided)
    refused(kernel, ValueError, "^attention: out .*overlap", out=out[:1].expand(kernel.out_shape))
    # The rows of two heads share all but their first element.
    strides = list(out.stride())
    strides[-2] = 1
    overlapping = torch.empty(out.numel(), dtype=kernel.dtype).as_strided(out.shape, strides)
    refused(kernel, ValueError, "^attention: out .*overlap", out=overlapping)
    refused(kernel, ValueError, "^attention: out .*meta", out=out.to("meta"))


def test_lengths_and_splits_are_checked(kernel):
    if not kernel.decode:
        for name in ("seq_lens", "num_splits", "max_seq_len"):
            with pytest.raises(TypeError, match=name):
                call(kernel, **{name: 1})
        return
    lengths = kernel.args["seq_lens"]
    refused(kernel, TypeError, r"^attention: seq_lens .*torch.Tensor.*list", seq_lens=[0, 1])
    refused(kernel, TypeError, r"^attention: seq_lens .*int32.*int64", seq_lens=lengths.long())
    refused(kernel, ValueError, r"^attention: seq_lens .*shape", seq_lens=lengths[:1])
    refused(kernel, ValueError, r"^attention: seq_lens .*meta", seq_lens=lengths.to("meta"))
    refused(kernel, ValueError, r"^attention: seq_lens .*contiguous", seq_lens=torch.zeros(4, dtype=torch.int32)[::2])
    for bad in (0, -1):
        refused(kernel, ValueError, rf"^attention: num_splits .*at least 1.*{bad}", num_splits=bad)
    refused(kernel, ValueError, r"^attention: num_splits .*below \d+ for this batch", num_splits=10**30)
    refused(kernel, ValueError, r"^attention: max_seq_len .*-1", max_seq_len=-1)
    for bad in (2.0, "2", True):
        refused(kernel, TypeError, rf"^attention: num_splits .*int.*{type(bad).__name__}", num_splits=bad)
        refused(kernel, TypeError, rf"^attention: max_seq_len .*int.*{type(bad).__name__}", max_seq_len=bad)


def test_keywords_are_keywords(kernel):
    tensors = [kernel.args[name] for name in kernel.tensors]
    with pytest.raises(TypeError):
        kernel.module.attention(*tensors, None)
    with pytest.raises(TypeError):
        call(kernel, sm_scale=1.0)


def test_a_gpu_without_a_row_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="a GPU", major=7, minor=5))
    with pytest.raises(RuntimeError, match=r"^attention: q is on a GPU \(sm_75\).*sm_80"):
        kernel.module._launch_options(torch.device("cuda", 0))
    # From Hopper on, x.y runs the code of x.0.
    table = kernel.module._LAUNCH
    for major, minor, row in ((8, 0, "sm_80"), (8, 6, "sm_86"), (9, 0, "sm_90"), (10, 3, "sm_100")):
        device = SimpleNamespace(name="a GPU", major=major, minor=minor)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, device=device: device)
        assert kernel.module._launch_options(torch.device("cuda", 0)) == table[row]
    # 8.x have unlike shared memory: the row of one is not for another.
    monkeypatch.delitem(table, "sm_86")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="a GPU", major=8, minor=6))
    with pytest.raises(RuntimeError, match="sm_86"):
        kernel.module._launch_options(torch.device("cuda", 0))


def test_a_cpu_tensor_without_the_interpreter_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    tensors = [kernel.args.pop(name) for name in kernel.tensors]
    with pytest.raises(ValueError, match=r"^attention: q .*GPU.*TRITON_INTERPRET=1"):
        kernel.module.attention(*tensors, **kernel.args)


# Results: on a small layer, where the interpreter is quick.


KINDS = {"prefill": {}, "tokens_first": {"kind": "prefill", "layout": "bshd"}, "decode": {}}
KINDS |= {"paged": {"kind": "decode", "kv": {"kind": "paged", "page_size": 3}}}
LATENT_KINDS = {"absorbed": {"kind": "decode"}, "absorbed_paged": KINDS["paged"]}
ROTARY_KINDS = {"rotary": {"kind": "decode"}, "rotary_paged": KINDS["paged"]}


@pytest.fixture(params=[*KINDS, *ROTARY_KINDS, *LATENT_KINDS])
def small(request, tmp_path):
    kind = request.param
    if kind in LATENT_KINDS:
        loaded = load_latent(heads=4, kernels={kind: LATENT_KINDS[kind]})
    else:
        rotary = {"head_dim_pe": 8} if kind in ROTARY_KINDS else {}
        kernels = {kind: (KINDS | ROTARY_KINDS)[kind]}
        loaded = load_spec(heads=4, kv_heads=2, head_dim=16, head_dim_v=24, kernels=kernels, **rotary)
    return case_of(generate(loaded, tmp_path)[kind], loaded.spec, kind)


def test_results_have_the_shapes_and_dtypes_of_the_contract(small):
    plain = call(small)
    assert isinstance(plain, torch.Tensor)
    out, lse = call(small, return_lse=True)
    assert torch.equal(out, plain)
    assert (tuple(out.shape), out.dtype, out.device) == (small.out_shape, torch.float16, torch.device("cpu"))
    assert out.is_contiguous()
    assert (tuple(lse.shape), lse.dtype) == (small.lse_shape, torch.float32)


def test_out_is_filled_and_returned_whatever_its_strides(small):
    want = call(small)
    dims = len(small.out_shape)
    for order in ([*range(dims)], [*reversed(range(dims - 1)), dims - 1]):
        inverse = [order.index(d) for d in range(dims)]
        for step in (1, 3):
            base = torch.zeros([small.out_shape[d] + (step - 1) * (d == dims - 1) for d in order], dtype=torch.float16)
            out = base.permute(inverse)[..., : small.out_shape[-1]]
            assert call(small, out=out) is out
            assert torch.equal(out, want)


@pytest.mark.parametrize(("b", "m", "n"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)])
def test_empty_problems_are_answered(small, b, m, n):
    case = case_of(small.module, small.spec, small.kind, b, m, n)
    if small.decode:
        case.args["seq_lens"] = torch.zeros(b, dtype=torch.int32)
    out, lse = call(case, return_lse=True)
    assert tuple(out.shape) == case.out_shape
    assert tuple(lse.shape) == case.lse_shape
    if n == 0:
        assert (out == 0).all()
        assert (lse == -torch.inf).all()


def test_pages_give_the_bits_of_a_dense_cache(tmp_path):
    kernels = {"dense": {"kind": "decode"}} | {
        f"page{n}": {"kind": "decode", "kv": {"kind": "paged", "page_size": n}} for n in (1, 3, 16, 64, 128)
    }
    loaded = load_spec(heads=4, kv_heads=2, head_dim=16, head_dim_v=24, kernels=kernels)
    modules = generate(loaded, tmp_path)
    case = case_of(modules["dense"], loaded.spec, "dense", 3, 1, 384)
    k, v = case.args["k"], case.args["v"]
    case.args["seq_lens"] = torch.tensor([300, 65, 0], dtype=torch.int32)
    for name in kernels.keys() - {"dense"}:
        paged = case_of(modules[name], loaded.spec, name, 3, 1, 384)
        size, table = paged.page_size, torch.randperm(3 * 384 // paged.page_size, dtype=torch.int32)
        pages = {}
        for cache, dense in (("k_cache", k), ("v_cache", v)):
            pages[cache] = torch.empty(paged.args[cache].shape, dtype=torch.float16)
            pages[cache][table.long()] = dense.transpose(1, 2).reshape(-1, size, 2, dense.shape[-1])
        pages |= {"q": case.args["q"], "block_table": table.reshape(3, -1), "seq_lens": case.args["seq_lens"]}
        for splits in (None, 1, 3):
            want, got = (
                call(case, num_splits=splits, return_lse=True),
                call(paged, **pages, num_splits=splits, return_lse=True),
            )
            assert all(map(torch.equal, got, want)), (name, splits)


def test_merges_are_launched_early_from_hopper_on(tmp_path):
    layer = document(heads=4, kv_heads=2, kernels={"decode": {}})
    hopper, ampere = (
        load_text(yaml.safe_dump(layer | {"targets": [target]}), "specs/example.yaml") for target in ("sm_90", "sm_80")
    )
    early, late = generate(hopper, tmp_path / "early")["decode"], generate(ampere, tmp_path / "late")["decode"]
    assert early._merge_options(early._LAUNCH["sm_90"])["launch_pdl"] is True
    # The interpreter does not know of it, whichever target it stands for.
    assert early._merge_options(early._launch_options(torch.device("cpu"))) == {"USE_PDL": False, "num_warps": 1}
    assert "PDL" not in (tmp_path / "late/example/decode.py").read_text(encoding="utf-8")
    case = case_of(early, hopper.spec, "decode", 2, 1, 100)
    assert torch.equal(call(case), call(SimpleNamespace(module=late, args=case.args, tensors=case.tensors)))


def test_splits_agree_with_no_splits(tmp_path):
    loaded = load_spec(heads=4, kv_heads=2, head_dim=16, head_dim_v=24)
    case = case_of(generate(loaded, tmp_path)["decode"], loaded.spec, "decode", 3, 1, 300)
    case.args["seq_lens"] = torch.tensor([300, 65, 0], dtype=torch.int32)
    out, lse = call(case, return_lse=True, num_splits=1)
    for splits in (None, 2, 3, 7):
        other, other_lse = call(case, return_lse=True, num_splits=splits)
        torch.testing.assert_close(other, out, atol=2e-3, rtol=0)
        torch.testing.assert_close(other_lse, lse, atol=1e-5, rtol=0)
    # A fixed number of splits does not look at the rest of the batch.
    alone = {name: case.args[name][1:2] for name in case.args}
    for splits in (1, 3):
        whole = call(case, num_splits=splits)
        case_alone = SimpleNamespace(module=case.module, args=alone, tensors=case.tensors)
        assert torch.equal(call(case_alone, num_splits=splits), whole[1:2])
