"""Where the files that come with kgen lie: in a checkout, and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from kgen.errors import KgenError

PACKAGE = Path(__file__).resolve().parent


def templates_dir() -> Path:
    """The folder of the templates: ``kgen/templates`` in a wheel, ``templates`` beside ``kgen`` in a checkout."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if (folder / "kernels").is_dir():
            return folder
    raise KgenError(f"the templates of kgen are missing beside {PACKAGE}; install kgen again")


def shipped(name: str) -> Path:
    """A spec that comes with kgen, by its path below the repository: ``specs/llama3_8b.yaml``.

    Raises ``KgenError`` where it is missing.
    """
    for folder in (PACKAGE, PACKAGE.parent):
        if (folder / name).is_file():
            return folder / name
    raise KgenError(f"{name} is missing beside {PACKAGE}; install kgen again")
