"""A workload's generated kernel: from its spec to an imported module, or why there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from kgen.bench.workloads import YOURS
from kgen.errors import InputError, SpecError
from kgen.plan import features
from kgen.project import project
from kgen.resources import shipped
from kgen.spec.loader import load_specs
from kgen.verify.modules import load_package

if TYPE_CHECKING:
    from types import ModuleType

    from kgen.bench.workloads import Workload
    from kgen.spec.loader import LoadedSpec


class NotGeneratedError(Exception):
    """kgen generates no kernel for this workload; the message says why."""


class Kernels:
    """The modules of a run, each spec rendered once, into a folder that stays until the run ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._specs: dict[str, LoadedSpec] = {}
        self._modules: dict[tuple[str, str], ModuleType] = {}

    def spec(self, workload: Workload) -> LoadedSpec:
        """The spec of a workload, also one of what is not generated yet.

        Raises ``InputError`` where it cannot be read.
        """
        if workload.spec not in self._specs:
            path = Path(workload.spec) if workload.group == YOURS else shipped(workload.spec)
            (loaded,) = load_specs([path], ungenerated="allowed")
            self._specs[workload.spec] = loaded
        return self._specs[workload.spec]

    def module(self, workload: Workload) -> ModuleType:
        """The module of a workload's kernel. Raises ``NotGeneratedError``."""
        key = (workload.spec, workload.kernel)
        if key not in self._modules:
            loaded = self.spec(workload)
            if features.unmet(loaded.spec):
                # Other kernels of the spec must not keep this one back.
                kernels = {workload.kernel: loaded.spec.kernels[workload.kernel]}
                loaded = dataclasses.replace(loaded, spec=loaded.spec.model_copy(update={"kernels": kernels}))
            missing = features.unmet(loaded.spec)
            if missing:
                raise NotGeneratedError(", ".join(missing))
            self._modules |= {(workload.spec, name): module for name, module in self._import(loaded).items()}
        return self._modules[key]

    def _import(self, loaded: LoadedSpec) -> dict[str, ModuleType]:
        try:
            files = project([loaded])
        except SpecError as error:
            raise NotGeneratedError(error.diagnostics[0].message) from error
        folder = self._folder / f"{len(self._modules)}_{loaded.spec.name}"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            return load_package(folder / loaded.spec.name)
        except InputError as error:
            raise NotGeneratedError(str(error)) from error
