"""The pure map from specs to source text, the same for build, check, diff and the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.errors import InputError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.diagnostics import Diagnostic
    from kgen.spec.loader import LoadedSpec


def project(specs: Sequence[LoadedSpec]) -> dict[str, str]:
    """Every generated file, by its posix path below the output folder, in the order of the paths.

    The text depends on the specs alone: not on their order, the clock, the machine or the process.
    Raises ``SpecError`` with the problems of all specs that no plan fits, and ``InputError`` where two
    specs have one name.
    """
    files: dict[str, str] = {}
    owner: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for loaded in specs:
        try:
            rendered = _package(loaded)
        except SpecError as error:
            problems.extend(error.diagnostics)
            continue
        first = owner.setdefault(loaded.spec.name, loaded.display)
        if first != loaded.display:
            raise InputError(f"{first} and {loaded.display} have the same name: {loaded.spec.name}; rename one of them")
        files.update(rendered)
    if problems:
        raise SpecError(problems)
    return dict(sorted(files.items()))


def _package(loaded: LoadedSpec) -> dict[str, str]:
    """The package of one spec: a module a kernel, and the ``__init__.py`` that exports them."""
    # Imported here: a build that finds everything in the cache needs neither the planner nor Jinja.
    from kgen.plan.lower import lower
    from kgen.plan.model import KernelPlan
    from kgen.render.emit import package_init, render, render_hopper

    plans = lower(loaded)
    files = {f"{loaded.spec.name}/{plan.kernel}.py": render(plan) for plan in plans}
    for plan in plans:
        if isinstance(plan, KernelPlan) and plan.hopper is not None:
            files[f"{loaded.spec.name}/{plan.kernel}_sm90.py"] = render_hopper(plan)
    files[f"{loaded.spec.name}/__init__.py"] = package_init(
        spec_path=plans[0].spec_path,
        spec_name=loaded.spec.name,
        spec_digest=loaded.digest,
        kernels=tuple(plan.kernel for plan in plans),
    )
    return files
