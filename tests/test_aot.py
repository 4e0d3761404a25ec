"""Every committed kernel compiles for every family of GPUs, without spills and within the plan's shared memory.

Compiling takes a second or two a kernel, so what is compiled depends on the release of Triton: the
oldest one supported (``FULL_ON``), or any with ``--aot-full``, compiles all specs; a newer one compiles
``SAMPLE``, one spec for each path through the templates. CI runs both. ``TRITON_CACHE_DIR`` keeps
compiled kernels between runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from kgen.aot import CompiledKernel, Report, compile_modules, record_launches
from kgen.aot.calls import Sizes
from kgen.plan.lower import lower
from kgen.plan.model import KernelPlan
from kgen.plan.targets import TARGET_INFO
from kgen.spec.loader import load_specs
from tests.aot_support import MATRIX_PRODUCTS, NARROW_LOADS, WIDE_LOADS, assert_vectorised

if TYPE_CHECKING:
    from kgen.plan.model import HopperPlan, ModulePlan, RowTile, Tile

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parents[1]
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# Rows that do not start on 16 bytes are loaded 2 bytes at a time, the same way everywhere: one target a vendor.
UNALIGNED_TARGETS = ("sm_80", "gfx942")
FULL_ON = "3.6."
# One block a head dimension and a mask with one edge, dense and in pages; a latent that is key and value; two blocks
# without a mask; a mask with two edges.
SAMPLE = (
    "llama3_8b/prefill",
    "llama3_8b/decode",
    "llama3_8b_paged/decode_page16",
    "llama3_8b_paged/prefill_page16",
    "deepseek_v3/decode",
    "llama3_8b_prefix/merge_states",
    "siglip/prefill",
    "mistral_7b/prefill",
)


@dataclass(frozen=True)
class Module:
    """A committed module with the plan it was rendered from."""

    plan: ModulePlan
    path: Path

    @property
    def name(self) -> str:
        return f"{self.plan.spec_name}/{self.plan.kernel}"


MODULES = [
    Module(plan, ROOT / "generated" / plan.spec_name / f"{plan.kernel}.py")
    for loaded in load_specs([ROOT / "specs"])
    for plan in lower(loaded)
]


@dataclass(frozen=True)
class Compiled:
    """What this run compiles, and the report of it."""

    modules: list[Module]
    report: Report

    def tile(self, kernel: CompiledKernel) -> Tile | RowTile | HopperPlan:
        """What the kernel was planned with."""
        plan = next(module.plan for module in self.modules if str(module.path) == kernel.launch.module)
        return plan.tile(kernel.target, is_aligned=kernel.launch.is_aligned, form=kernel.launch.form)


@pytest.fixture(scope="session")
def compiled(pytestconfig: pytest.Config) -> Compiled:
    in_full = pytestconfig.getoption("--aot-full") or version("triton").startswith(FULL_ON)
    modules = [module for module in MODULES if in_full or module.name in SAMPLE]
    requests = [(module.path, target) for module in modules for target in TARGETS]
    return Compiled(
        modules,
        compile_modules(
            requests,
            keep=lambda launch: launch.target in UNALIGNED_TARGETS or launch.is_aligned,
        ),
    )


def named(kernel: CompiledKernel) -> str:
    module = Path(kernel.launch.module)
    return f"{module.parent.name}/{module.stem} {kernel.kernel} {kernel.target}"


def test_the_sample_names_committed_kernels_and_takes_every_template() -> None:
    sampled = [module for module in MODULES if module.name in SAMPLE]
    assert len(sampled) == len(SAMPLE)
    assert {module.plan.template for module in sampled} == {module.plan.template for module in MODULES}


def test_every_kernel_compiles_for_every_target(compiled: Compiled) -> None:
    assert [failure.text() for failure in compiled.report.failures] == []
    assert {(kernel.launch.module, kernel.target) for kernel in compiled.report.kernels} == {
        (str(module.path), target) for module in compiled.modules for target in TARGETS
    }


def test_no_kernel_spills_more_than_its_plan_allows(compiled: Compiled) -> None:
    for kernel in compiled.report.kernels:
        if kernel.launch.is_aligned:
            limit, spilled = compiled.tile(kernel).spill_bytes, kernel.resources.spill_bytes
            assert spilled <= limit, f"{named(kernel)} spills {spilled} bytes, its plan allows {limit}"
            assert limit or not kernel.resources.stack_bytes, named(kernel)


def test_only_tiles_that_were_measured_may_spill() -> None:
    assert {target for module in MODULES for target, tile in module.plan.launch if tile.spill_bytes} == {"sm_90"}


def test_shared_memory_is_estimated_from_above_and_fits_the_target(compiled: Compiled) -> None:
    for kernel in compiled.report.kernels:
        estimate, truth = compiled.tile(kernel).shared_bytes, kernel.resources.shared_bytes
        assert truth <= estimate, f"{named(kernel)} takes {truth:,} bytes, its plan says {estimate:,}"
        limit = TARGET_INFO[kernel.target].shared_bytes
        # The tile of rows that do not start on 16 bytes is the same everywhere, and so is its estimate.
        assert (estimate if kernel.launch.is_aligned else truth) <= limit, named(kernel)


def test_the_estimate_is_not_far_above_the_truth(compiled: Compiled) -> None:
    """Where shared memory decides which tile fits; an estimate of twice the truth would give away pipeline stages."""
    for kernel in compiled.report.kernels:
        truth = kernel.resources.shared_bytes
        if kernel.launch.is_aligned and kernel.resources.count(*MATRIX_PRODUCTS) and truth > 32 * 1024:
            assert compiled.tile(kernel).shared_bytes <= 1.5 * truth, named(kernel)


def test_aligned_rows_are_loaded_16_bytes_at_a_time(compiled: Compiled) -> None:
    attending = [
        kernel
        for kernel in compiled.report.kernels
        if kernel.launch.is_aligned and kernel.resources.count("HMMA", "HGMMA", "UTCHMMA", "v_mfma")
    ]
    products = [module for module in compiled.modules if module.plan.template != "merge_states"]
    assert len(attending) >= len(products) * len(TARGETS)
    for kernel in attending:
        assert_vectorised(kernel)


def test_merges_load_16_bytes_at_a_time_and_parts_ahead(compiled: Compiled) -> None:
    merging = [
        kernel
        for kernel in compiled.report.kernels
        if kernel.launch.is_aligned and kernel.kernel in ("_merge_pair_kernel", "_merge_stack_kernel")
    ]
    merges = [module for module in compiled.modules if module.plan.template == "merge_states"]
    assert len(merging) == 2 * len(merges) * len(TARGETS)
    for kernel in merging:
        count, where = kernel.resources.count, named(kernel)
        assert count(*WIDE_LOADS), where
        assert not count(*NARROW_LOADS), where
        if kernel.kernel == "_merge_stack_kernel" and kernel.target != "gfx942":
            assert count("LDGSTS.128"), f"{where} does not load parts ahead"


def test_merges_of_splits_wait_for_the_parts_where_they_are_launched_early(compiled: Compiled) -> None:
    """Programmatic dependent launch: PREEXIT lets the merge in, ACQBULK is its wait for the results."""
    merges, parts = ("_merge_balanced_kernel", "_merge_splits_kernel"), ("_balanced_kernel", "_split_kernel")
    seen = [kernel for kernel in compiled.report.kernels if kernel.kernel in merges + parts]
    assert {kernel.kernel for kernel in seen} == {*merges, *parts}
    for kernel in seen:
        count, is_early = kernel.resources.count, TARGET_INFO[kernel.target].has_pdl and kernel.launch.is_aligned
        assert (count("ACQBULK") == 1) == (is_early and kernel.kernel in merges), named(kernel)
        assert (count("PREEXIT") >= 1) == (is_early and kernel.kernel in parts), named(kernel)


def test_the_form_for_hopper_takes_turns_and_has_no_note_of_the_assembler(compiled: Compiled) -> None:
    """A warpgroup starts the products of a tile in its turn; all its exponentials come after it has passed the turn."""
    hopper = [kernel for kernel in compiled.report.kernels if kernel.launch.form == "sm_90"]
    planned = [module for module in compiled.modules if isinstance(module.plan, KernelPlan) and module.plan.hopper]
    assert {kernel.launch.module for kernel in hopper} == {str(module.path) for module in planned}
    for kernel in hopper:
        plan = next(module.plan for module in planned if str(module.path) == kernel.launch.module)
        assert isinstance(plan, KernelPlan)
        assert plan.hopper is not None
        assert not kernel.resources.warnings, named(kernel)
        assert kernel.resources.count("UTMALDG"), named(kernel)
        assert kernel.resources.count("UTMASTG"), named(kernel)
        order, groups = kernel.resources.order, plan.hopper.groups
        # wgmma takes 16 at a time of what is summed: Q . K^T of a tile, and P . V of the one before.
        products = plan.head_dim_qk // 16 + plan.hopper.keys // 16
        exponentials = plan.hopper.keys // 2  # of a thread, of which 128 own 64 rows; and one or two of alpha
        loops = 1 + sum(edge is not None for edge in (plan.window.left, plan.window.right))
        for group in range(groups):
            turn = (f"BAR.SYNC {8 + group}", 1)
            steps = [order[index + 1 : index + 5] for index, run in enumerate(order) if run == turn]
            assert len(steps) == loops, named(kernel)
            for started, passed, waits, (kind, number) in steps:
                assert started == ("HGMMA", products), named(kernel)
                assert passed == (f"BAR.ARV {8 + (group + 1) % groups}", 1), named(kernel)
                # For the scores, then for P . V: the largest score is found between them.
                assert waits == ("WARPGROUP.DEPBAR", 2), named(kernel)
                assert kind == "MUFU.EX2", named(kernel)
                assert exponentials <= number <= exponentials + 4, named(kernel)


def test_one_compile_serves_every_batch_and_length() -> None:
    """A kernel has one compile for aligned rows and one for others, whatever the sizes."""
    sizes = [Sizes(1, 1, 1), Sizes(2, 16, 16), Sizes(3, 1019, 4099), Sizes(64, 512, 8192)]
    sampled = [module.path for module in MODULES if module.name in SAMPLE]
    for launches in record_launches([(path, "sm_90") for path in sampled], sizes=sizes):
        variants = [(launch.kernel, launch.is_aligned) for launch in launches]
        assert len(variants) == len(set(variants)), launches[0].module
