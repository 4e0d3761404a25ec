"""What a spec compiles to: registers, spills, shared memory and instruction kinds, target by target.

The source is rendered from the spec as it is now and compiled in a folder of its
own, so the answer never depends on whether the committed files are fresh.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgen.aot import CompiledKernel, compile_modules
from kgen.errors import InputError
from kgen.plan.lower import lower
from kgen.plan.model import HopperPlan, KernelPlan
from kgen.plan.targets import TARGET_INFO
from kgen.render.emit import render, render_hopper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.aot.model import Launch
    from kgen.plan.model import ModulePlan, RowTile, Tile
    from kgen.spec.loader import LoadedSpec

# What a reader of a kernel looks for: kind of instruction, and the prefixes that count towards it.
INSTRUCTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tensor core", ("HGMMA", "QGMMA", "UTCHMMA", "UTCQMMA", "HMMA", "IMMA", "v_mfma")),
    ("multiply-add", ("FFMA", "v_fma_f32", "v_fmac_f32", "v_pk_fma_f32")),
    ("exp2", ("MUFU.EX2", "v_exp_f32")),
    ("TMA load", ("UTMALDG",)),
    ("async copy 16 B", ("LDGSTS.128",)),
    ("async copy < 16 B", ("LDGSTS.64", "LDGSTS.32")),
    ("global load 16 B", ("LDG.128", "global_load_dwordx4", "buffer_load_dwordx4")),
    (
        "global load 1-2 B",
        ("LDG.8", "LDG.16", "global_load_u", "global_load_short", "buffer_load_u", "buffer_load_short"),
    ),
    ("shared load", ("LDS", "ds_read")),
    ("barrier", ("BAR", "s_barrier")),
    ("local memory", ("LDL", "STL", "scratch_")),
)


@dataclass(frozen=True)
class Row:
    """One kernel of one module on one target.

    ``spill_limit`` and ``shared_estimate`` are the plan's (rows that do not start on 16 bytes take a slow
    form of the kernel, which may spill: ``None``), ``shared_limit`` what the target gives a program,
    ``launch`` the tile and options, ``instructions`` counts by the names of ``INSTRUCTIONS``, only those that
    occur.
    """

    module: str
    kernel: str
    target: str
    calls: tuple[str, ...]
    launch: str
    registers: int
    spill_bytes: int
    spill_limit: int | None
    stack_bytes: int
    shared_bytes: int
    shared_estimate: int
    shared_limit: int
    instructions: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self) | {"instructions": dict(self.instructions)}


@dataclass(frozen=True)
class Inspection:
    """Rows in the order of specs, kernels and targets; ``failures`` names kernels that do not compile."""

    rows: tuple[Row, ...]
    failures: tuple[str, ...]
    triton_version: str


def inspect(specs: Sequence[LoadedSpec], targets: Sequence[str] = (), *, cache_dir: Path | None = None) -> Inspection:
    """Compile every kernel of ``specs`` for ``targets`` (default: each spec's own) and measure the machine code.

    Raises InputError where no spec is generated for a target, SpecError where a spec has no plan,
    MissingDependencyError without torch or Triton.
    """
    plans = [plan for loaded in specs for plan in lower(loaded)]
    known = {target for plan in plans for target, _ in plan.launch}
    for target in targets:
        if target not in known:
            raise InputError(f"no spec given is generated for {target}; their targets are {', '.join(sorted(known))}")
    with tempfile.TemporaryDirectory(prefix="kgen-inspect-") as folder:
        by_path: dict[str, ModulePlan] = {}
        requests: list[tuple[Path, str]] = []
        for plan in plans:
            path = Path(folder) / plan.spec_name / f"{plan.kernel}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(render(plan), encoding="utf-8")
            if isinstance(plan, KernelPlan) and plan.hopper is not None:
                path.with_stem(f"{plan.kernel}_sm90").write_text(render_hopper(plan), encoding="utf-8")
            by_path[str(path)] = plan
            requests.extend((path, target) for target, _ in plan.launch if not targets or target in targets)
        report = compile_modules(requests, cache_dir=cache_dir)
    return Inspection(
        rows=tuple(_row(by_path[kernel.launch.module], kernel) for kernel in report.kernels),
        failures=tuple(
            failure.text().replace(failure.module, _name(by_path[failure.module])) for failure in report.failures
        ),
        triton_version=report.triton_version,
    )


def _row(plan: ModulePlan, kernel: CompiledKernel) -> Row:
    launch, resources = kernel.launch, kernel.resources
    constants = [f"{name}={value}" for name, value in launch.constants]
    tile = plan.tile(launch.target, is_aligned=launch.is_aligned, form=launch.form)
    counts = ((name, resources.count(*prefixes)) for name, prefixes in INSTRUCTIONS)
    return Row(
        module=_name(plan) if launch.form == "portable" else _name(plan).replace(".py", "_sm90.py"),
        kernel=launch.kernel,
        target=launch.target,
        calls=launch.calls,
        launch=", ".join([*constants, *_options(launch, tile)]),
        registers=resources.registers,
        spill_bytes=resources.spill_bytes,
        spill_limit=tile.spill_bytes if launch.is_aligned else None,
        stack_bytes=resources.stack_bytes,
        shared_bytes=resources.shared_bytes,
        shared_estimate=tile.shared_bytes,
        shared_limit=TARGET_INFO[launch.target].shared_bytes,
        instructions=tuple((name, number) for name, number in counts if number),
        warnings=resources.warnings,
    )


def _options(launch: Launch, tile: Tile | RowTile | HopperPlan) -> list[str]:
    """What a kernel is launched with beside its constants."""
    if isinstance(tile, HopperPlan):
        return [f"num_warps={launch.num_warps}", f"maxnreg={tile.max_registers}"]
    return [f"num_warps={launch.num_warps}", f"num_stages={launch.num_stages}"]


def _name(plan: ModulePlan) -> str:
    return f"{plan.spec_name}/{plan.kernel}.py"
