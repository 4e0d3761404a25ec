"""The Jinja environment: how strictly the templates are read."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kgen.resources import templates_dir

if TYPE_CHECKING:
    from pathlib import Path


@cache
def environment(root: Path | None = None) -> Environment:
    """The environment over ``root`` (default the templates that come with kgen); an undefined name is an error."""
    return Environment(
        loader=FileSystemLoader(root or templates_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,
    )
