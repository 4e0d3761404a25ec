"""Plan -> the text of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgen.render.context import CONTEXTS
from kgen.render.environment import environment
from kgen.render.header import with_header
from kgen.render.hopper import hopper_context

if TYPE_CHECKING:
    from kgen.plan.model import KernelPlan, ModulePlan


def render(plan: ModulePlan) -> str:
    """The whole module of one kernel, header included."""
    template = environment().get_template(f"kernels/{plan.template}.py.j2")
    body = template.render(CONTEXTS[plan.template](plan))
    return with_header(body, spec_path=plan.spec_path, kernel=plan.kernel, spec_digest=plan.spec_digest)


def render_hopper(plan: KernelPlan) -> str:
    """The module of a kernel's form for sm_90."""
    template = environment().get_template(f"sm90/{plan.template}.py.j2")
    body = template.render(hopper_context(plan))
    return with_header(body, spec_path=plan.spec_path, kernel=f"{plan.kernel}_sm90", spec_digest=plan.spec_digest)


def package_init(*, spec_path: str, spec_name: str, spec_digest: str, kernels: tuple[str, ...]) -> str:
    """The package's ``__init__.py``: the kernels by name."""
    names = sorted(kernels)
    template = environment().get_template("kernels/package.py.j2")
    body = template.render(spec_name=spec_name, kernels=names)
    return with_header(body, spec_path=spec_path, kernel="__init__", spec_digest=spec_digest)
