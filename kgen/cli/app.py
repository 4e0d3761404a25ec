"""The verbs of ``kgen``, in the order a user meets them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kgen import __version__
from kgen.cli import bench, cost, environment, generate, importer, machine, plans, prove

app = typer.Typer(
    name="kgen",
    help="A kernel compiler for attention: specs in, readable Triton source out, proved against a reference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Frames and colour belong on a terminal; a pipe gets plain text.
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kgen {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What holds for every verb."""


for _verb in (
    generate.init,
    importer.import_,
    generate.build,
    generate.check,
    generate.diff,
    generate.list_,
    plans.explain,
    prove.verify,
    machine.inspect,
    cost.cost,
    bench.bench,
    plans.schema,
    environment.doctor,
):
    app.command(_verb.__name__.strip("_"))(_verb)
app.add_typer(environment.cache_app, name="cache")
