"""Hostile memory: where tensors lie, what surrounds them, and that every misuse is noticed."""

from __future__ import annotations

import pytest
import torch

from kgen.verify.far import FarMemory
from kgen.verify.interpreter import Audit
from kgen.verify.poison import (
    CLEAN,
    DENSE,
    HUGE,
    INF,
    LAYOUTS,
    NAN,
    Arena,
    Placement,
    PoisonedEmpty,
    mixed,
    same_bits,
)

pytestmark = pytest.mark.triton

CPU = torch.device("cpu")
SHAPE = (2, 3, 5, 8)


def values(shape=SHAPE, dtype=torch.float16):
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_view_holds_its_values_wherever_it_lies(layout, part):
    placement = getattr(layout, part)
    want = values()
    if placement.shared:
        want = want[:1, :1].expand(SHAPE)
    view = Arena(NAN, None).input("x", want, "bhnd", placement)
    assert torch.equal(view, want)
    assert view.stride(-1) == 1


def test_what_the_layouts_promise():
    def strides(placement):
        return placement.strides("bhnd", SHAPE)[0]

    assert strides(DENSE) == (120, 40, 8, 1)
    odd = LAYOUTS["odd"]
    assert all(s % 2 == 1 or s % 8 for s in strides(odd.k)[:3])
    assert odd.k.offset % 8
    assert strides(LAYOUTS["offset"].q) == strides(DENSE)
    assert LAYOUTS["offset"].q.offset % 8
    assert strides(LAYOUTS["k_strided"].k) != strides(LAYOUTS["k_strided"].v) == strides(DENSE)
    assert strides(LAYOUTS["v_transposed"].v) == (120, 8, 24, 1)
    assert strides(LAYOUTS["expanded"].k)[:2] == (0, 0)
    fused = strides(LAYOUTS["fused"].q)
    assert fused[2] > 3 * 8  # a row holds other heads too
    for name, dim in (("sparse_batch", 0), ("sparse_heads", 1), ("sparse_rows", 2)):
        assert strides(LAYOUTS[name].k)[dim] * (SHAPE[dim] - 1) >= 2**31
        assert LAYOUTS[name].out is not None


@pytest.mark.parametrize("layout", ["sparse_batch", "sparse_heads", "sparse_rows"])
def test_tensors_with_far_indices_share_memory_and_no_element(layout):
    arena = Arena(CLEAN, None)
    shapes = {"q": (3, 4, 5, 24), "k": (3, 2, 7, 16), "v": (3, 2, 7, 8), "k_pe": (3, 2, 7, 40)}
    views = {}
    for number, (name, shape) in enumerate(shapes.items()):
        filled = torch.full(shape, number + 1.0, dtype=torch.float16)
        views[name] = arena.input(name, filled, "bhnd", LAYOUTS[layout].k)
    out = arena.output("out", (3, 4, 5, 8), "bhnd", LAYOUTS[layout].out, torch.float16, CPU)
    out.fill_(9.0)
    assert len({view.untyped_storage().data_ptr() for view in (*views.values(), out)}) == 1
    for number, view in enumerate(views.values()):
        assert (view == number + 1).all()
        assert max(view.stride()) * (view.shape[view.stride().index(max(view.stride()))] - 1) >= 2**31
    other = arena.input("x", torch.ones(3, 4, 5, 8), "bhnd", LAYOUTS[layout].k)
    assert other.untyped_storage().data_ptr() != out.untyped_storage().data_ptr(), "another dtype has its own memory"


def test_far_tensors_that_would_meet_have_memory_of_their_own():
    far = FarMemory()
    wide = [far.view((2, 1 << 24), (1 << 31, 1), torch.float16, CPU) for _ in range(3)]
    assert [view.storage_offset() for view in wide] == [0, (1 << 24) + 2 * (1 << 15), 0]
    assert far.view((0, 3), (1 << 31, 1), torch.float16, CPU).numel() == 0


@pytest.mark.parametrize("poison", [NAN, INF, HUGE, mixed(0), mixed(1), mixed(2)], ids=lambda p: p.name)
def test_everything_around_a_view_is_poison(poison):
    arena = Arena(poison, None)
    view = arena.input("x", values(), "bhnd", Placement(pad={"d": 4, "n": 2}, offset=3))
    buffer = view.new_empty(0).set_(view.untyped_storage())
    inside = torch.zeros(buffer.shape, dtype=torch.bool)
    inside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
    around = buffer[~inside]
    hostile = around.isnan() | (around.abs() >= 65504)
    assert hostile.all()
    assert inside.sum() == view.numel() < around.numel()
    if poison.name == "1e30":
        assert around.isfinite().all()


def test_mixed_poison_holds_all_three_by_row():
    rows = torch.empty(4, 6, 2)
    mixed(1).fill(rows)
    assert rows[0, :3, 0].tolist()[0] == torch.inf
    assert rows[0, 1, 0] == torch.tensor(1e30)
    assert rows[0, 2].isnan().all()
    indices = torch.empty(200, dtype=torch.int32)
    mixed(0).fill(indices)
    assert set(indices.tolist()) == {2**31 - 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1000,), (1, 1000, 3), (2, 5, 300)])
def test_nan_has_the_same_bits_in_every_shape(dtype, shape):
    one, many = torch.empty(1, dtype=dtype), torch.empty(shape, dtype=dtype)
    NAN.fill(one)
    NAN.fill(many)
    assert many.isnan().all()
    assert same_bits(many, one.expand(shape).contiguous())


def test_rows_past_the_lengths_are_poison():
    lengths = torch.tensor([3, 0], dtype=torch.int32)
    view = Arena(NAN, None).input("k", values(), "bhnd", DENSE, lengths)
    assert torch.equal(view[0, :, :3], values()[0, :, :3])
    assert view[0, :, 3:].isnan().all()
    assert view[1].isnan().all()
    # Shared over the batch: what one request does not own may belong to another.
    same = values()[:1, :1].expand(SHAPE)
    shared = Arena(NAN, None).input("k", same, "bhnd", Placement(shared="bh"), lengths)
    assert torch.equal(shared[:, :, :3], same[:, :, :3])
    assert shared[:, :, 3:].isnan().all()


def test_changes_outside_an_output_are_noticed():
    arena = Arena(CLEAN, None)
    out = arena.output("out", SHAPE, "bhnd", Placement(pad={"d": 2}), torch.float16, CPU)
    out.fill_(7.0)
    assert arena.problems() == []
    out.as_strided((1,), (1,), out.storage_offset() + 8).fill_(7.0)  # the padding of the first row
    assert arena.problems() == ["out: memory around it was written"]


def test_changes_of_an_input_are_noticed():
    arena = Arena(NAN, None)
    view = arena.input("q", values(), "bhnd", DENSE)
    assert arena.problems() == []
    view[1, 2, 3, 4] += 1
    assert arena.problems() == ["q: an input was written"]


@pytest.mark.parametrize(
    "allocate",
    [
        lambda x: torch.empty(4, 5),
        lambda x: torch.empty((4, 5), dtype=torch.float32, device="cpu"),
        torch.empty_like,
        lambda x: x.new_empty(4, 5),
        lambda x: torch.empty_strided((4, 5), (10, 2)),
        lambda x: x.new_empty_strided((4, 5), (5, 1)),
    ],
)
def test_scratch_is_poisoned_and_guarded(allocate):
    arena = Arena(INF, Audit())
    plain = allocate(torch.zeros(4, 5))
    with PoisonedEmpty(arena):
        scratch = allocate(torch.zeros(4, 5))
    assert (scratch.shape, scratch.stride(), scratch.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert scratch.isinf().all()
    assert scratch.data_ptr() % 16 == 0
    scratch.fill_(1.0)
    assert arena.problems() == []
    scratch.as_strided((1,), (1,), scratch.storage_offset() - 1).fill_(1.0)
    assert arena.problems() == ["memory of torch.empty: memory around it was written"]


def test_other_tensors_are_left_alone():
    with PoisonedEmpty(Arena(NAN, None)):
        assert (torch.zeros(3) == 0).all()
        assert torch.empty(0).numel() == 0


def test_same_bits_knows_nan_and_the_sign_of_zero():
    nan = torch.tensor([torch.nan])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
