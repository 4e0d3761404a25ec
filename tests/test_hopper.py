"""The form of prefill for sm_90 as far as it shows without a GPU: who has it, its source, its bounds, who runs it."""

from __future__ import annotations

import ast
import itertools
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from jinja2 import meta

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import triton
import yaml

from kgen.aot import record_launches
from kgen.aot.model import DEVICES
from kgen.aot.triton_api import recording
from kgen.plan.lower import lower
from kgen.plan.model import KernelPlan
from kgen.render.emit import render_hopper
from kgen.render.environment import environment
from kgen.render.hopper import hopper_context
from kgen.resources import templates_dir
from kgen.spec.loader import load_text
from kgen.verify.modules import load_package, sm90_tiles
from tests.verify_support import document, write

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from kgen.spec.loader import LoadedSpec

pytestmark = pytest.mark.triton

WINDOWS = {
    "full": ({"kind": "full"}, None, None),
    "causal": ({"kind": "causal"}, None, 0),
    "sliding": ({"kind": "sliding_window", "size": 100}, 99, 0),
    "both": ({"kind": "window", "left": 70, "right": 200}, 70, 200),
    "left": ({"kind": "window", "left": 300, "right": -1}, 300, None),
    "right": ({"kind": "window", "left": -1, "right": 5}, None, 5),
}


def layer(
    mask: str = "causal",
    *,
    head_dim: int = 128,
    dtype: str = "bfloat16",
    prefill: dict[str, Any] | None = None,
    **rest: Any,
) -> LoadedSpec:
    targets = rest.pop("targets", None)
    facts: dict[str, Any] = {
        "heads": 4,
        "kv_heads": 2,
        "head_dim": head_dim,
        "dtype": dtype,
        "mask": WINDOWS[mask][0],
    } | rest
    data = document(**facts, kernels={"prefill": prefill or {}})
    return load_text(yaml.safe_dump(data | ({"targets": targets} if targets else {})), "specs/example.yaml")


def paged(page_size: int) -> dict[str, Any]:
    return {"layout": "ragged", "kv": {"kind": "paged", "page_size": page_size}}


# Every way in which the requests of a batch and their keys lie.
BATCHES: dict[str, dict[str, Any]] = {
    "bhsd": {"layout": "bhsd"},
    "bshd": {"layout": "bshd"},
    "padded": {"layout": "bshd", "padded": True},
    "ragged": {"layout": "ragged"},
    "pages of 1": paged(1),
    "pages of 16": paged(16),
    "pages of 48": paged(48),
    "pages of 256": paged(256),
}


def plan_of(loaded: LoadedSpec) -> KernelPlan:
    (plan,) = lower(loaded)
    assert isinstance(plan, KernelPlan)
    return plan


WIDE = {"head_dim": 192, "head_dim_v": 128}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"head_dim": 64},
        {"head_dim": 96},
        WIDE,
        {"head_dim": 256},
        {"dtype": "float16"},
        {"prefill": {"layout": "bshd"}},
        {"prefill": {"layout": "ragged"}},
        {"prefill": {"padded": True}},
        {"prefill": paged(8)},
        {"prefill": paged(128)},
        {"prefill": paged(384)},
        {"prefill": paged(64), "head_dim": 256},
    ],
)
def test_who_has_the_form(facts: dict[str, Any]) -> None:
    assert plan_of(layer(**facts)).hopper is not None


@pytest.mark.parametrize(
    ("page_size", "head_dim", "locate"),
    [
        (1, 128, "tokens"),
        (4, 128, "tokens"),  # less than a block of swizzled rows
        (8, 128, "pages"),
        (48, 128, "tokens"),  # does not divide a tile
        (64, 128, "pages"),
        (64, 256, "page"),
        (128, 128, "page"),
        (192, 128, "tokens"),  # no whole number of tiles
        (384, 128, "page"),
    ],
)
def test_pages_are_copied_whole_where_tiles_and_pages_end_together(page_size: int, head_dim: int, locate: str) -> None:
    plan = plan_of(layer(prefill=paged(page_size), head_dim=head_dim))
    assert plan.hopper is not None
    assert plan.hopper.locate == locate


@pytest.mark.parametrize(
    "facts",
    [
        {"dtype": "float32"},
        {"head_dim": 72},
        {"head_dim_v": 64},
        {"head_dim_pe": 64},
        {"targets": ["sm_80", "sm_100"]},
    ],
)
def test_who_has_not(facts: dict[str, Any]) -> None:
    assert plan_of(layer(**facts)).hopper is None


def test_explain_tells_of_it() -> None:
    assert "2 warpgroups compute 128 rows" in dict(plan_of(layer()).reasons)["form for sm_90"]
    assert "3 warpgroups compute 192 rows" in dict(plan_of(layer(head_dim=64)).reasons)["form for sm_90"]
    assert "form for sm_90" not in dict(plan_of(layer(head_dim=72)).reasons)


def variants() -> list[KernelPlan]:
    facts: tuple[dict[str, Any], ...] = ({"head_dim": 64}, {"head_dim": 96}, {"head_dim": 128}, WIDE, {"head_dim": 256})
    every = itertools.product(WINDOWS, facts, BATCHES.values())
    return [plan_of(layer(mask, **dims, prefill=batch)) for mask, dims, batch in every]


@pytest.mark.parametrize(
    "plan", variants(), ids=lambda plan: f"{plan.window.left}-{plan.window.right}-{plan.head_dim_v}"
)
def test_the_source_is_clean(plan: KernelPlan) -> None:
    source = render_hopper(plan)
    tree = ast.parse(source)
    assert max(map(len, source.splitlines())) <= 120
    assert not any(line != line.rstrip() for line in source.splitlines())
    assert "\n\n\n\n" not in source
    roots = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    roots |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert roots == {"torch", "triton"}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = [node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)]
        read = {name.id for name in inside if isinstance(name.ctx, ast.Load)}
        assert {argument.arg for argument in function.args.args} <= read, function.name
        assert {name.id for name in inside if isinstance(name.ctx, ast.Store)} - {"_"} <= read, function.name
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} - {"run"}
    assert defined <= {name.id for name in names if isinstance(name.ctx, ast.Load)}


def test_the_contexts_have_the_names_that_the_template_and_its_parts_read() -> None:
    read_of_all: set[str] = set()
    names_of_all: set[str] = set()
    for batch in BATCHES.values():
        context = hopper_context(plan_of(layer(prefill=batch)))
        files = ["sm90/prefill.py", "parts/sm90_load_tile", f"parts/sm90_load_keys_{context['locate']}"]
        files += [f"parts/sm90_{part}_{context['batch']}" for part in ("produce", "run")]
        files += [] if context["work"] is None else [f"parts/sm90_work_{context['work']}"]
        for file in files:
            source = (templates_dir() / f"{file}.j2").read_text(encoding="utf-8")
            read = meta.find_undeclared_variables(environment().parse(source))
            # A condition names what only other batches have.
            assert read - set(context) <= {"page_size", "key_lengths"}, file
            read_of_all |= read
        names_of_all |= set(context)
    assert names_of_all == read_of_all


class Memory(NamedTuple):
    """A pointer into numbers."""

    numbers: list[int]
    at: int = 0

    def __add__(self, step: int) -> Memory:  # type: ignore[override]
        return Memory(self.numbers, self.at + step)


def _loaded(where: Memory, *, mask: bool = True, other: int = 0) -> int:
    return where.numbers[where.at] if mask else other


def _cdiv(x: int, y: int) -> int:
    return int((x + y - 1) / y)  # as a GPU divides: towards zero


def _chosen(condition: bool, this: int, other: int) -> int:
    return this if condition else other


def functions(plan: KernelPlan) -> dict[str, Any]:
    """The scalar functions of a form as plain Python, and the bounds of its loops as functions."""
    tree = ast.parse(render_hopper(plan))
    scope: dict[str, Any] = {
        "gl": SimpleNamespace(
            minimum=min, maximum=max, cdiv=lambda x, y: int((x + y - 1) / y), load=_loaded, where=_chosen
        ),
        "_GROUPS": plan.hopper.groups if plan.hopper else 0,
        "_ROWS": 64,
        "_KEYS": plan.hopper.keys if plan.hopper else 0,
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("_key_tiles", "_place", "_work", "_find"):
            node.decorator_list = []
            exec(compile(ast.Module([node], []), "form", "exec"), scope)
    for bound in ast.walk(tree):
        if isinstance(bound, ast.Assign) and isinstance(bound.targets[0], ast.Name):
            name = bound.targets[0].id
            if name in ("full_begin", "full_end"):
                scope[name] = eval(f"lambda start_m, M, N: {ast.unparse(bound.value)}", scope)
    return scope


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("mask", WINDOWS)
def test_the_tiles_of_keys_are_those_that_the_rows_see(mask: str, head_dim: int) -> None:
    """Every visible key lies in begin .. end, and a tile that is not masked is wholly visible to 64 rows."""
    plan = plan_of(layer(mask, head_dim=head_dim))
    assert plan.hopper is not None
    f, (_, left, right), block = functions(plan), WINDOWS[mask], plan.hopper.keys
    for M, N in itertools.product((1, 63, 128, 129, 200, 513, 700), (0, 1, 127, 128, 129, 300, 640, 1000)):
        for row_tile in range(-(-M // plan.hopper.rows)):
            begin, end = f["_key_tiles"](N) if mask == "full" else f["_key_tiles"](row_tile, M, N)
            assert 0 <= begin < end <= max(1, -(-N // block))
            for group in range(plan.hopper.groups):
                start_m = row_tile * plan.hopper.rows + group * 64
                if start_m >= M:
                    continue
                positions = torch.arange(start_m, min(start_m + 64, M))[:, None] + N - M
                keys = torch.arange(max(1, -(-N // block)) * block)[None]
                seen = (keys < N).expand(len(positions), -1).clone()
                seen &= True if left is None else keys >= positions - left
                seen &= True if right is None else keys <= positions + right
                tiles = seen.reshape(len(positions), -1, block)
                touched = tiles.any(2).any(0).nonzero().flatten().tolist()
                assert all(begin <= tile < end for tile in touched), (M, N, row_tile, group)
                # The first tile is always masked; of the others those between the two edges are not.
                full_end = f["full_end"](start_m, M, N) if right is not None else end - 1
                full_begin = f["full_begin"](start_m, M, N) if left is not None else begin
                for tile in range(max(begin, full_begin), min(end - 1, full_end)):
                    assert tiles[:, tile].all(), (M, N, row_tile, group, tile)


def test_the_tiles_of_work_are_each_taken_once() -> None:
    place = functions(plan_of(layer()))["_place"]
    for row_tiles, heads, section in ((1, 1, 1), (7, 12, 5), (3, 8, 8), (5, 9, 4)):
        taken = [place(tile, row_tiles, heads, section) for tile in range(row_tiles * heads)]
        assert sorted(taken) == sorted(itertools.product(range(row_tiles), range(heads)))
        assert taken[0][0] == row_tiles - 1, "the longest rows come first"


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("lengths", [[], [0], [5], [0, 0, 1, 128, 129, 0, 700, 0], [3000, 1, 0, 2]])
def test_the_tiles_of_a_packed_batch_are_each_found_once(lengths: list[int], mask: str) -> None:
    plan = plan_of(layer(mask, prefill={"layout": "ragged"}))
    assert plan.hopper is not None
    scope, heads = functions(plan), plan.num_qo_heads
    queries = list(itertools.accumulate([7, *lengths]))
    keys = list(itertools.accumulate([3, *(3 * length for length in lengths)]))
    sizes = (Memory(queries), Memory(keys), len(lengths), max(lengths, default=0), 0)
    want = [
        (queries[b], length, 3 * length, row_tile, head)
        for b, length in enumerate(lengths)
        for row_tile in range(-(-length // plan.hopper.rows))
        for head in range(heads)
    ]
    for programs in (1, 3, 132):  # each finds every third tile, say, onward from the one before
        found = []
        for program in range(programs):
            request, first, count = scope["_find"](program, -1, 0, 0, sizes)
            tile = program
            while request < len(lengths):
                row_tile, head, q_start, M, N = scope["_work"](request, tile - first, sizes)
                found.append((q_start, M, N, row_tile, head))
                tile += programs
                request, first, count = scope["_find"](tile, request, first, count, sizes)
        assert sorted(found) == sorted(want)


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_the_tiles_of_a_padded_batch_have_the_lengths_of_their_request(mask: str) -> None:
    plan = plan_of(layer(mask, prefill={"padded": True}))
    assert plan.hopper is not None
    work, rows, lengths = functions(plan)["_work"], plan.hopper.rows, [0, 1, 129, 128, 400]
    row_tiles, batch_heads = 4, len(lengths) * plan.num_qo_heads
    sizes = (row_tiles * rows, Memory(lengths), row_tiles, batch_heads, 6)
    found = [work(tile, sizes) for tile in range(row_tiles * batch_heads)]
    assert sorted(found) == sorted(
        (row_tile, b * plan.num_qo_heads + head, length if row_tile * rows < length else 0)
        for row_tile in range(row_tiles)
        for b, length in enumerate(lengths)
        for head in range(plan.num_qo_heads)
    )


@pytest.fixture
def prefill(tmp_path: Path) -> ModuleType:
    loaded = layer()
    write(loaded, tmp_path)
    return load_package(tmp_path / loaded.spec.name)["prefill"]


def fake(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


def forms(module: ModuleType, target: str) -> list[str]:
    """What runs dense tensors, shared keys, no keys, rows off 16 bytes, one request, and strides TMA takes and not."""
    with recording(DEVICES[target], lambda launch: None):
        q, k = fake(2, 4, 300, 128), fake(2, 2, 500, 128)
        odd = fake(2, 2, 500, 129)[..., :128]
        calls = [
            (q, k, k),
            (q, k[:1].expand_as(k), k),
            (q, k[:, :, :0], k[:, :, :0]),
            (q, odd, k),
            (q[:1], k[:1], k[:1]),
        ]
        found = [module.form(*tensors) for tensors in calls]
        for stride in (2**38, 2**39):  # of elements of 2 bytes
            out = torch.empty_strided(q.shape, (stride, 2**30, 128, 1), dtype=q.dtype, device="cuda")
            found.append(module.form(q, k, k, out=out, return_lse=True))
    return found


def test_form_says_which_one_runs(prefill: ModuleType) -> None:
    assert forms(prefill, "sm_90") == ["sm_90", "portable", "portable", "portable", "sm_90", "sm_90", "portable"]
    assert set(forms(prefill, "sm_80")) == {"portable"}
    assert prefill.form(*(torch.zeros(1, heads, 8, 128, dtype=torch.bfloat16) for heads in (4, 2, 2))) == "portable"


def test_form_checks_as_attention_does(prefill: ModuleType) -> None:
    q, k = torch.zeros(1, 4, 8, 128, dtype=torch.bfloat16), torch.zeros(1, 2, 8, 128, dtype=torch.bfloat16)
    for arguments, error in (
        (("x", k, k), TypeError),
        ((q.float(), k, k), TypeError),
        ((q, k[..., :32], k), ValueError),
    ):
        with pytest.raises(error, match=r"^attention: [qk] must"):
            prefill.form(*arguments)


def test_the_stride_of_a_single_kv_head_does_not_matter(tmp_path: Path) -> None:
    write(layer(kv_heads=1, head_dim=64), tmp_path)
    module = load_package(tmp_path / "example")["prefill"]
    with recording(DEVICES["sm_90"], lambda launch: None):
        q, k = (
            fake(1, 4, 300, 64),
            torch.empty_strided((1, 1, 300, 64), (64 * 300, 3, 64, 1), dtype=torch.bfloat16, device="cuda"),
        )
        assert module.form(q, k, k) == "sm_90"


def test_attention_runs_the_form_that_form_names(tmp_path: Path) -> None:
    write(layer(), tmp_path)
    path = tmp_path / "example/prefill.py"
    launched, elsewhere = record_launches([(path, "sm_90"), (path, "sm_100")])
    assert {(call, launch.kernel) for launch in launched for call in launch.calls} == {
        ("prefill", "_prefill_sm90_kernel"),
        ("prefill with lse", "_prefill_sm90_kernel"),
        ("prefill of unaligned rows", "_prefill_kernel"),
        ("prefill of shared keys", "_prefill_kernel"),
    }
    assert {launch.kernel for launch in elsewhere} == {"_prefill_kernel"}


def test_other_releases_of_triton_run_the_portable_form_with_one_warning(
    prefill: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", "9.1.0")
    with pytest.warns(UserWarning, match=r"example.prefill runs in its portable form .* Triton 3.6 to 3.9, .* 9.1.0"):
        assert set(forms(prefill, "sm_90")) == {"portable"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(forms(prefill, "sm_90")) == {"portable"}
    assert sm90_tiles(prefill) is None


def test_cases_for_hopper_have_its_tile(prefill: ModuleType) -> None:
    tile = sm90_tiles(prefill)
    assert tile is not None
    assert (tile.rows, tile.keys) == (128, 128)
