"""The errors kgen raises on purpose, each with the exit code of the command line.

Anything else that escapes is a fault of kgen itself (exit code 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgen.diagnostics import Diagnostic


class KgenError(Exception):
    """Base of kgen's own errors. ``exit_code`` is what the command line returns."""

    exit_code = 3


class InputError(KgenError):
    """The user's input cannot be used: a path, an argument, a file in the way."""

    exit_code = 2


class StaleError(KgenError):
    """Generated files are not what their specs generate: a finding, as in ``kgen check``."""

    exit_code = 1


class SpecError(InputError):
    """One or more spec files are wrong.

    ``diagnostics`` holds every problem found, in file order; ``str()`` is their
    text form.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(d.text() for d in self.diagnostics))


class MissingDependencyError(KgenError):
    """The environment lacks what the verb needs: torch, triton, a GPU."""

    exit_code = 4

    @classmethod
    def of(cls, error: ImportError) -> MissingDependencyError | None:
        """The error to tell, where it is torch, Triton or numpy that cannot be imported; else None."""
        name = (error.name or "").split(".")[0]
        if name not in ("torch", "triton", "numpy"):
            return None
        if isinstance(error, ModuleNotFoundError):
            return cls(f"this needs {error.name}, which is not installed; `kgen doctor` tells what is")
        return cls(f"{error.name} is installed but cannot be imported: {error}")
