"""Generated kernels that merge: their cases, their contract, and the split law in any order and grouping."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from kgen.plan.lower import lower
from kgen.reference.merge import merge_states as reference
from kgen.render.emit import render
from kgen.spec.loader import load_specs
from kgen.verify import interpreter
from kgen.verify.interpreter import interpreting
from kgen.verify.modules import load_package
from tests.verify_support import failures, generate, load_spec

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parent.parent
LAYOUTS = ("bhd", "bhsd", "bshd", "ragged")
KERNELS = {f"merge_{layout}": {"kind": "merge_states", "layout": layout} for layout in LAYOUTS}
# One head has no stride, 71 share no power of two with a tile, 72 leaves lanes idle.
LAYERS: dict[str, dict[str, Any]] = {
    "bfloat16": {"heads": 4, "head_dim_v": 16, "dtype": "bfloat16"},
    "group 71, width 72": {"heads": 71, "head_dim_v": 72, "kernels": {"merge_bshd": KERNELS["merge_bshd"]}},
    "one head, float32": {"heads": 1, "head_dim_v": 24, "dtype": "float32"},
    "width 512": {"heads": 3, "kv_heads": 3, "head_dim_v": 512, "kernels": {"merge_states": {}}},
}


@pytest.mark.parametrize("facts", LAYERS.values(), ids=LAYERS)
def test_generated_kernels_pass(facts: dict[str, Any], tmp_path: Path) -> None:
    loaded = load_spec(**{"kernels": KERNELS, **facts})
    modules = generate(loaded, tmp_path)
    for kernel in loaded.spec.kernels:
        failed = failures(loaded, kernel, modules[kernel], first=False)
        assert not failed, "\n".join(f"{kernel} {r.case.name} {r.case.shape}: {r.message}" for r in failed)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The merges of a small float32 layer, and its decode: rounding of a dtype hides nothing."""
    kernels = {**KERNELS, "decode": {}}
    loaded = load_spec(heads=4, kv_heads=2, head_dim_v=24, dtype="float32", kernels=kernels)
    return generate(loaded, tmp_path_factory.mktemp("merge"))


def parts_of(layout: str, parts: int, *, seed: int = 0) -> SimpleNamespace:
    """Parts of 4 heads and width 24 in a layout, and the reference's axes for them."""
    g = torch.Generator().manual_seed(seed)
    out_shape, lse_shape = {
        "bhd": ((3, 4), (3, 4)),
        "bhsd": ((2, 4, 5), (2, 4, 5)),
        "bshd": ((2, 5, 4), (2, 4, 5)),
        "ragged": ((7, 4), (4, 7)),
    }[layout]
    outs, lses = torch.randn(parts, *out_shape, 24, generator=g), 3 * torch.randn(parts, *lse_shape, generator=g)
    return SimpleNamespace(outs=outs, lses=lses, out_shape=(*out_shape, 24), lse_shape=lse_shape)


def call(module: ModuleType, outs: Any, lses: Any, **keywords: Any) -> Any:
    with interpreting():
        return module.merge_states(outs, lses, **keywords)


def expected(layout: str, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in a layout's own axes."""
    swapped = lses if layout in ("bhd", "bhsd") else lses.transpose(-1, -2)
    out, lse = reference(outs, swapped)
    return out, lse if layout in ("bhd", "bhsd") else lse.transpose(-1, -2)


def assert_near(got: tuple[torch.Tensor, torch.Tensor], want: tuple[torch.Tensor, torch.Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_the_shapes_and_dtypes_of_the_contract(modules: dict[str, ModuleType], layout: str) -> None:
    module, p = modules[f"merge_{layout}"], parts_of(layout, 3)
    out, lse = call(module, p.outs, p.lses, return_lse=True)
    assert torch.equal(call(module, p.outs, p.lses), out)
    assert (tuple(out.shape), out.dtype, tuple(lse.shape), lse.dtype) == (
        *(p.out_shape, torch.float32),
        *(p.lse_shape, torch.float32),
    )
    assert out.is_contiguous()
    assert_near((out, lse), expected(layout, p.outs, p.lses))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pair_is_two_tensors_a_stack_of_two_or_one_of_each(modules: dict[str, ModuleType], layout: str) -> None:
    module, p = modules[f"merge_{layout}"], parts_of(layout, 2)
    want = call(module, p.outs, p.lses, return_lse=True)
    # Each tensor of a pair has strides of its own: transposed views need no copy.
    wide = torch.zeros(*p.out_shape[:-1], 40)
    one, other = p.outs[0].clone(), wide[..., 8:32].copy_(p.outs[1])
    turned = torch.empty(p.lse_shape[::-1]).permute(*reversed(range(len(p.lse_shape)))).copy_(p.lses[0])
    for outs in ((one, other), [one, other], p.outs):
        for lses in ((turned, p.lses[1].clone()), p.lses):
            got = call(module, outs, lses, return_lse=True)
            assert all(map(torch.equal, got, want))


def test_out_is_filled_whatever_its_strides_and_may_be_a_part(modules: dict[str, ModuleType]) -> None:
    module, p = modules["merge_bshd"], parts_of("bshd", 3)
    want = call(module, p.outs, p.lses)
    out = torch.zeros(4, 5, 2, 30).permute(2, 1, 0, 3)[..., :24]
    assert call(module, p.outs, p.lses, out=out) is out
    assert torch.equal(out, want)
    for number in range(3):
        stack = p.outs.clone()
        part = stack[number]
        assert call(module, stack, p.lses, out=part) is part
        assert torch.equal(part, want)
        untouched = [other for other in range(3) if other != number]
        assert torch.equal(stack[untouched], p.outs[untouched])
    one, other = p.outs[0].clone(), p.outs[1].clone()
    want = call(module, (one, other), p.lses[:2])
    assert torch.equal(call(module, (one, other), p.lses[:2], out=one), want)


def test_one_part_is_kept_bit_by_bit_and_rows_without_keys_are_zero(modules: dict[str, ModuleType]) -> None:
    module, p = modules["merge_bhd"], parts_of("bhd", 1)
    p.lses[0, 1, 2] = -torch.inf
    p.outs[0, 1, 2] = torch.nan
    out, lse = call(module, p.outs, p.lses, return_lse=True)
    assert torch.equal(lse, p.lses[0])
    assert (out[1, 2] == 0).all()
    kept = p.lses[0] > -torch.inf
    assert torch.equal(out[kept], p.outs[0][kept])


def test_a_row_does_not_depend_on_its_batch(modules: dict[str, ModuleType]) -> None:
    p = parts_of("bhd", 5)
    whole = call(modules["merge_bhd"], p.outs, p.lses, return_lse=True)
    alone = call(modules["merge_bhd"], p.outs[:, 1:2], p.lses[:, 1:2], return_lse=True)
    assert torch.equal(alone[0], whole[0][1:2])
    assert torch.equal(alone[1], whole[1][1:2])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), parts=st.integers(2, 9), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**16))
def test_any_order_and_grouping_agrees(
    modules: dict[str, ModuleType], data: st.DataObject, parts: int, layout: str, seed: int
) -> None:
    module, p = modules[f"merge_{layout}"], parts_of(layout, parts, seed=seed)
    p.lses[torch.rand(p.lses.shape, generator=torch.Generator().manual_seed(seed)) < 0.2] = -torch.inf
    p.lses += data.draw(st.sampled_from([0.0, -2e3, 2e3]))
    want = expected(layout, p.outs, p.lses)
    left = [(p.outs[i], p.lses[i]) for i in data.draw(st.permutations(range(parts)))]
    while len(left) > 1:
        count = data.draw(st.integers(2, len(left)))
        group = [left.pop(data.draw(st.integers(0, len(left) - 1))) for _ in range(count)]
        if count == 2 and data.draw(st.booleans()):
            outs, lses = ((group[0][0], group[1][0]), (group[0][1], group[1][1]))
        else:
            outs, lses = (torch.stack([part[i] for part in group]) for i in (0, 1))
        left.append(call(module, outs, lses, return_lse=True))
    # A merged LSE is rounded to float32, and its error is that of the weights of the next merge.
    largest = float(torch.where(p.lses.isfinite(), p.lses.abs(), 0.0).max())
    tolerance = 2.0**-22 * (8 + parts * largest)
    for got, exact in zip(left[0], want, strict=True):
        torch.testing.assert_close(got.double(), exact, atol=tolerance, rtol=0)


@pytest.mark.parametrize("cuts", [(0, 9, 40), (0, 1, 2, 39, 40), (0, 0, 17, 17, 40), (0, 40)])
def test_decode_over_ranges_of_keys_merges_to_decode_of_all(
    modules: dict[str, ModuleType], cuts: tuple[int, ...]
) -> None:
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(*shape, generator=g) for shape in ((3, 4, 16), (3, 2, 40, 16), (3, 2, 40, 24)))
    seq_lens = torch.tensor([40, 0, 16], dtype=torch.int32)
    decode = modules["decode"].attention
    with interpreting():
        want = decode(q, k, v, seq_lens=seq_lens, return_lse=True)
        found = [
            decode(
                q, k[:, :, low:high], v[:, :, low:high], seq_lens=(seq_lens - low).clamp(0, high - low), return_lse=True
            )
            for low, high in itertools.pairwise(cuts)
        ]
    outs, lses = (torch.stack([part[i] for part in found]) for i in (0, 1))
    assert_near(call(modules["merge_bhd"], outs, lses, return_lse=True), want)
    if len(found) == 2:
        pair = ((found[0][0], found[1][0]), (found[0][1], found[1][1]))
        assert_near(call(modules["merge_bhd"], *pair, return_lse=True), want)


# The contract.


@pytest.fixture(scope="module")
def committed() -> ModuleType:
    interpreter.require()
    return load_package(ROOT / "generated/llama3_8b_prefix")["merge_states"]


def test_names_spec_and_docstring(committed: ModuleType) -> None:
    (loaded,) = load_specs([ROOT / "specs/llama3_8b_prefix.yaml"])
    assert set(committed.__all__) == {"SPEC", "merge_states"}
    assert loaded.spec.model_dump(mode="json") == committed.SPEC
    assert {name for name, f in vars(committed).items() if inspect.isfunction(f) and name[0] != "_"} == {"merge_states"}
    assert str(inspect.signature(committed.merge_states)) == "(outs, lses, *, out=None, return_lse=False)"
    for text in (committed.__doc__, inspect.getdoc(committed.merge_states)):
        for fact in ("[P, B, 32, 128]", "[P, B, 32]", "bfloat16", "float32", "pair", "one of the parts"):
            assert fact in text, fact


def refused(module: ModuleType, error: type[Exception], message: str, outs: Any, lses: Any, **keywords: Any) -> None:
    with pytest.raises(error) as raised:
        call(module, outs, lses, **keywords)
    text = str(raised.value)
    assert type(raised.value) is error
    assert re.match(r"merge_states: (outs|lses|out)(\[[01]\])? ", text), text
    assert re.search(message, text), text


def test_arguments_are_checked(modules: dict[str, ModuleType]) -> None:
    module, p = modules["merge_bhd"], parts_of("bhd", 3)
    outs, lses = p.outs, p.lses
    pair, pair_lse = (outs[0], outs[1]), (lses[0], lses[1])

    def no(error: type[Exception], message: str, *tensors: Any, **keywords: Any) -> None:
        refused(module, error, "^merge_states: " + message, *tensors, **keywords)

    no(TypeError, r"outs must be a torch.Tensor, got int", 3, lses)
    no(TypeError, r"outs\[1\] must be a torch.Tensor, got int", (outs[0], 3), pair_lse)
    no(TypeError, r"outs must be torch.float32, got torch.float16", outs.half(), lses)
    no(TypeError, r"lses must be torch.float32, got torch.float64", outs, lses.double())
    no(TypeError, r"lses\[0\] must be torch.float32, got torch.float64", pair, (lses[0].double(), lses[1]))
    no(ValueError, r"outs must have shape \[P, B, 4, 24\], got \[3, 4, 24\]", outs[0], lses[0])
    no(ValueError, r"outs\[0\] must have shape \[B, 4, 24\], got \[3, 3, 4, 24\]", (outs, outs), pair_lse)
    no(ValueError, r"outs\[1\] must have shape \[3, 4, 24\], got \[2, 4, 24\]", (outs[0], outs[1, :2]), pair_lse)
    no(ValueError, r"lses must have shape \[P, 3, 4\], got \[3, 4, 3\]", outs, lses.transpose(1, 2))
    no(ValueError, r"lses must have as many parts as outs, 3, got 2", outs, lses[:2])
    no(ValueError, r"lses must have as many parts as outs, 2, got 3", pair, lses)
    no(ValueError, r"outs must hold at least one part, got shape \[0, 3, 4, 24\]", outs[:0], lses[:0])
    no(ValueError, r"lses must hold at least one part", outs, lses[:0])
    for count in (0, 1, 3):
        message = rf"outs must be one tensor or a pair of tensors, got {count} tensors"
        no(ValueError, message, tuple(outs[:count]), lses)
    no(ValueError, r"lses must be one tensor or a pair of tensors, got 1 tensors", pair, (lses[0],))
    no(ValueError, r"lses must be on cpu like outs, got meta", outs, lses.to("meta"))
    no(ValueError, r"outs\[1\] must be on cpu like outs, got meta", (outs[0], outs[1].to("meta")), pair_lse)
    no(ValueError, r"outs must be on a GPU, got meta", outs.to("meta"), lses.to("meta"))
    gaps = torch.zeros(3, 3, 4, 48)[..., ::2]
    no(ValueError, r"outs must be contiguous in its last dimension, got strides", gaps, lses)
    no(ValueError, r"outs must be contiguous in its last dimension", (outs[0], gaps[1]), pair_lse)
    no(ValueError, r"out must be contiguous in its last dimension", outs, lses, out=gaps[0])
    no(TypeError, r"out must be torch.float32, got torch.float64", outs, lses, out=outs[0].double())
    no(ValueError, r"out must have shape \[3, 4, 24\]", outs, lses, out=outs)
    no(ValueError, r"out must be on cpu like outs, got meta", outs, lses, out=outs[0].to("meta"))
    no(ValueError, r"out must not overlap itself", outs, lses, out=outs[0, :1].expand(3, 4, 24))
    many = torch.zeros(1, 1, 1, 24).expand(1, 2**29, 4, 24)
    no(ValueError, r"outs must have at most \d+ rows a part, got 2147483648", many, torch.zeros(1).expand(1, 2**29, 4))
    with pytest.raises(TypeError, match="positional"):
        module.merge_states(outs, lses, None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_merge_is_answered(modules: dict[str, ModuleType], layout: str) -> None:
    p = parts_of(layout, 3)
    axis = {"bhd": (1, 1), "bhsd": (3, 3), "bshd": (2, 3), "ragged": (1, 2)}[layout]
    outs, lses = p.outs.narrow(axis[0], 0, 0), p.lses.narrow(axis[1], 0, 0)
    out, lse = call(modules[f"merge_{layout}"], outs, lses, return_lse=True)
    assert (out.shape, lse.shape) == (outs.shape[1:], lses.shape[1:])


def test_a_gpu_without_a_row_and_a_cpu_without_the_interpreter_are_refused(
    committed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = SimpleNamespace(name="a GPU", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: old)
    with pytest.raises(RuntimeError, match=r"^merge_states: outs is on a GPU \(sm_75\); this kernel is for sm_80"):
        committed._launch_options(torch.device("cuda", 0))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    outs, lses = torch.zeros(2, 1, 32, 128, dtype=torch.bfloat16), torch.zeros(2, 1, 32)
    with pytest.raises(ValueError, match=r"^merge_states: outs must be on a GPU, got cpu .*TRITON_INTERPRET=1"):
        committed.merge_states(outs, lses)


@pytest.mark.parametrize(("form", "width"), [("absorbed", 64), ("expanded", 16)])
def test_a_latent_layer_merges_outputs_of_the_width_of_a_form(form: str, width: int, tmp_path: Path) -> None:
    # Lowered without the attention kernels, which have forms of their own.
    text = (
        "name: mla\nattention: {kind: latent, num_qo_heads: 3, kv_lora_rank: 64, qk_nope_head_dim: 16, "
        "qk_rope_head_dim: 8, v_head_dim: 16, mask: {kind: causal}}\ndtype: float32\n"
        f"kernels: {{merge_states: {{{'form: expanded' if form == 'expanded' else ''}}}}}\n"
    )
    (tmp_path / "mla.yaml").write_text(text)
    (loaded,) = load_specs([tmp_path / "mla.yaml"], ungenerated="allowed")
    (plan,) = lower(loaded)
    folder = tmp_path / "mla"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "merge_states.py").write_text(render(plan))
    interpreter.require()
    module = load_package(folder)["merge_states"]
    assert f"values {width} wide (the {form} form)" in module.__doc__
    assert not failures(loaded, "merge_states", module, first=True)
