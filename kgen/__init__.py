"""kgen: a kernel compiler for attention.

A spec file says what a model's attention is; kgen renders specialised Triton
source for it and proves that source against a reference derived from the same
spec. Importing this package imports neither torch nor triton.

``kgen.load`` and ``kgen.loads`` import the kernels of a spec (see ``kgen.runtime.load``).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgen.runtime.load import load, loads

__version__ = "0.1.0"
__all__ = ["__version__", "load", "loads"]


def __getattr__(name: str) -> Any:
    """The functions for use from Python, imported when they are first asked for."""
    if name not in ("load", "loads"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kgen.runtime import load

    return getattr(load, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
