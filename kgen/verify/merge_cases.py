"""Cases of kernels that merge: parts, sizes, LSE and layouts that each break a careless merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgen.spec.model import MergeStatesKernel
from kgen.verify.poison import DENSE, Placement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgen.spec.model import SpecFile


@dataclass(frozen=True)
class MergeCase:
    """One call of a kernel that merges.

    ``parts`` counts them; ``given`` says how: ``stack`` is one tensor, ``pair`` two, ``mixed`` outs in one tensor and
    lses in two. ``batch`` and ``tokens`` are B and M (bhd has M = 1, ragged B = 1). ``values`` and ``layout`` name the
    numbers and where they lie. With ``in_place`` the result goes to that part. ``every_program`` keeps the
    interpreter from running a sample.
    """

    name: str
    reason: str
    target: str
    parts: int
    batch: int
    tokens: int
    given: str = "stack"
    values: str = "normal"
    layout: str = "dense"
    in_place: int | None = None
    every_program: bool = False

    @property
    def shape(self) -> str:
        """The sizes in a word: ``P3 B2 M5``, a pair ``P2 (pair) B2 M5``."""
        return f"P{self.parts}{'' if self.given == 'stack' else f' ({self.given})'} B{self.batch} M{self.tokens}"


@dataclass(frozen=True)
class MergeLayout:
    """Where parts and result lie: x is the first part of a pair or the stack, y the second; axes ``pbhnd``."""

    name: str
    reason: str
    x: Placement = DENSE
    y: Placement = DENSE
    x_lse: Placement = DENSE
    y_lse: Placement = DENSE
    out: Placement | None = None


_ORDER = "pbhnd"
_IN_ORDER = Placement(_ORDER)
_ODD = Placement(_ORDER, {"d": 3, "n": 1}, offset=1)
_MOVED = Placement(_ORDER, offset=1)
_WIDE = Placement(_ORDER, {"d": 8, "n": 5, "h": 1})
_SWAPPED = Placement("pnbhd")
_LSE_SWAPPED = Placement("nbhp", {"h": 1}, offset=3)


def _sparse(axis: str) -> MergeLayout:
    far = Placement(axis + _ORDER.replace(axis, ""), sparse=axis)
    reason = "the axis of parts, requests, heads or tokens times its stride passes 2**31"
    return MergeLayout(f"sparse_{axis}", reason, far, far, far, far, far if axis != "p" else None)


LAYOUTS: Mapping[str, MergeLayout] = {
    layout.name: layout
    for layout in (
        MergeLayout("dense", "contiguous tensors", _IN_ORDER, _IN_ORDER, _IN_ORDER, _IN_ORDER),
        MergeLayout("odd", "offsets and strides of no alignment, in all of them", _ODD, _ODD, _ODD, _ODD, _ODD),
        MergeLayout("offset", "aligned strides behind an unaligned start", _MOVED, _MOVED, _MOVED, _MOVED, _MOVED),
        MergeLayout("unlike", "two parts and a result in three layouts, LSE a transposed view", _WIDE, _SWAPPED,
                    _IN_ORDER, _LSE_SWAPPED, _IN_ORDER),
        MergeLayout("transposed", "parts and LSE are transposed views", _SWAPPED, _SWAPPED, _LSE_SWAPPED, _LSE_SWAPPED,
                    _WIDE),
        MergeLayout("expanded", "a part that every request shares (stride 0)", Placement(_ORDER, shared="b"), _IN_ORDER,
                    Placement(_ORDER, shared="b"), _IN_ORDER),
        *map(_sparse, "pbhn"),
    )
}  # fmt: skip

# LSE that break a merge, and why; `merge_trial.py` makes them.
HOSTILE: Mapping[str, str] = {
    "empty": "rows without keys in one part, in another, in all; what their outputs hold does not matter",
    "nothing": "no row has a key in any part",
    "below": "every LSE lies near -2e4: a stored 0 maximum wins over it",
    "huge": "LSE of +-2.5e5: exponentials overflow where the maximum is not subtracted first",
    "dominant": "one part takes nearly all the weight",
    "equal": "all parts weigh the same: the output is their mean, the LSE the logarithm of their number larger",
    "fp16_range": "outputs of 6e4, whose sum does not fit float16",
    "denormal": "outputs near the smallest numbers of the dtype",
}


def merge_cases(spec: SpecFile, kernel: str, block_r: int, target: str, *, large: bool) -> tuple[MergeCase, ...]:
    """The cases of a kernel whose programs have ``block_r`` rows; ``large`` adds shapes for a GPU."""
    small = tuple(_cases(spec, kernel, block_r, target))
    return (*small, *_large(spec, kernel, target)) if large else small


def _sizes(layout: str, batch: int, tokens: int) -> dict[str, int]:
    """B and M for about ``batch * tokens`` rows of a head, as the layout has them."""
    if layout == "ragged":
        return {"batch": 1, "tokens": batch * tokens}
    return {"batch": batch * tokens if layout == "bhd" else batch, "tokens": 1 if layout == "bhd" else tokens}


def _cases(spec: SpecFile, kernel: str, block_r: int, target: str) -> Iterator[MergeCase]:
    plan, heads = spec.kernels[kernel], spec.attention.num_qo_heads
    assert isinstance(plan, MergeStatesKernel)

    def case(name: str, reason: str, parts: int, batch: int = 3, tokens: int = 5, **more: Any) -> MergeCase:
        sizes = _sizes(plan.layout, batch, tokens)
        return MergeCase(name, reason, **{"target": target, "parts": parts, **sizes, **more})

    pair: dict[str, Any] = {"given": "pair"}
    yield case("every row, pair", "each row finds its own parts and its own place", 2, 2, 3, every_program=True, **pair)
    yield case("every row, 3 parts", "each row finds its own parts and its own place", 3, 2, 3, every_program=True)
    yield case("mixed", "outs in one tensor, lses in two", 2, given="mixed")
    for parts in (1, 2, 4, 33):
        yield case(f"{parts} parts", "the number of parts is a runtime value", parts, 1, 3)
    for name, tokens in (("one row", 1), ("rows of a tile", max(1, block_r // heads)), ("row more", block_r + 1)):
        yield case(name, "a tile that is full, and one that is not", 2, 1, tokens, **pair)
    yield case("no batch", "an empty grid is not launched", 3, 0, 5)
    yield case("no tokens", "an empty grid is not launched", 2, 2, 0, **pair)
    for values, reason in HOSTILE.items():
        yield case(f"values {values}, pair", reason, 2, values=values, **pair)
        yield case(f"values {values}, 5 parts", reason, 5, values=values)
    yield case("first part empty", "the running sum begins with a part that has no key", 3, values="late")
    for part in (0, 1):
        yield case(f"in place of part {part}", "out is a part of a pair", 2, in_place=part, values="empty", **pair)
    yield case("in place of a part of a stack", "out is a part of a tensor of parts", 4, in_place=2, values="empty")
    for name in LAYOUTS:
        if name == "dense" or (name[7:] if name.startswith("sparse_") else "p") not in _axes(plan.layout, heads):
            continue
        if name != "sparse_p":
            yield case(f"layout {name}, pair", LAYOUTS[name].reason, 2, layout=name, **pair)
        yield case(f"layout {name}, 3 parts", LAYOUTS[name].reason, 3, layout=name)


def _axes(layout: str, heads: int) -> str:
    """The axes that have a stride: a single head has none, nor has what a layout leaves out."""
    return "p" + "b" * (layout != "ragged") + "n" * (layout != "bhd") + "h" * (heads > 1)


def _large(spec: SpecFile, kernel: str, target: str) -> Iterator[MergeCase]:
    plan = spec.kernels[kernel]
    assert isinstance(plan, MergeStatesKernel)
    for name, reason, parts, batch, tokens, given in (
        ("large pair", "many tiles", 2, 16, 257, "pair"),
        ("large stack", "many tiles and parts", 8, 8, 101, "stack"),
        ("many parts", "more parts than are loaded ahead", 257, 1, 3, "stack"),
    ):
        sizes = _sizes(plan.layout, batch, tokens)
        yield MergeCase(name, reason, target, parts, sizes["batch"], sizes["tokens"], given)
