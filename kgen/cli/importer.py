"""``import``: specs from the ``config.json`` of models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgen.cli import output
from kgen.cli.generate import FormatOption
from kgen.cli.guard import guarded
from kgen.cli.output import Format
from kgen.errors import InputError, SpecError

if TYPE_CHECKING:
    from kgen.diagnostics import Diagnostic
    from kgen.models.huggingface import Imported


@dataclass(frozen=True)
class _Spec:
    """One file to write, its text, and what of it kgen does not generate yet."""

    config: Path
    name: str
    path: Path
    text: str
    unmet: tuple[str, ...]


@guarded
def import_(
    configs: Annotated[
        list[Path], typer.Argument(help="config.json files of Hugging Face models.", metavar="CONFIG...")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write specs to.")] = Path("specs"),
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the spec; default the model's folder, or the file.", show_default=False),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="bfloat16, float16 or float32 in place of the file's.", show_default=False),
    ] = None,
    page_size: Annotated[
        int | None,
        typer.Option(
            "--page-size",
            min=1,
            max=2**20,
            help="Tokens in a page of the cache; default 16, of latent layers 64.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace specs that say something else.")] = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Write specs from the config.json of Hugging Face models.

    One spec a type of attention layer, commented with the key that each value came from. What kgen does not know is
    told and nothing is written. Ends with exit code 1 if a part of a model, such as an encoder of images, is left out.
    """
    if dtype not in (None, "bfloat16", "float16", "float32"):
        raise InputError(f"--dtype {dtype}: expected bfloat16, float16 or float32")
    if name is not None and len(configs) > 1:
        raise InputError("--name is for one config.json; without it each has the name of its folder")
    imported = _import_all(configs, dtype)
    specs = [
        spec for config, found in imported for spec in _specs(config, found, name or _name_of(config), out, page_size)
    ]
    _refuse_same_paths(specs)
    states = [_state(spec) for spec in specs]
    _refuse_other_content(specs, states, force=force)
    _write(specs, states)
    left_out = [(config, part) for config, found in imported for part in found.left_out]
    rows = [
        {
            "config": str(spec.config),
            "spec": spec.name,
            "path": spec.path.as_posix(),
            "state": state,
            "not_generated": list(spec.unmet),
        }
        for spec, state in zip(specs, states, strict=True)
    ]
    if format is Format.JSON:
        parts = [{"config": str(config), "part": part.part, "reason": part.reason} for config, part in left_out]
        output.data({"specs": rows, "left_out": parts})
    else:
        for spec, state in zip(specs, states, strict=True):
            output.line(f"{state} {spec.path.as_posix()}")
    for spec in specs:
        if spec.unmet:
            output.note(f"{spec.path.as_posix()}: not generated yet: {', '.join(spec.unmet)}")
    for config, part in left_out:
        output.warning(f"{config}: {part.part} is left out: {part.reason}")
    return 1 if left_out else 0


def _import_all(configs: list[Path], dtype: str | None) -> list[tuple[Path, Imported]]:
    """What every file describes; ``SpecError`` with the faults of all of them."""
    from kgen.models import huggingface
    from kgen.models.huggingface.document import MAX_BYTES
    from kgen.spec.files import read

    found: list[tuple[Path, Imported]] = []
    diagnostics: list[Diagnostic] = []
    for path in dict.fromkeys(configs):
        data = read(path, what="a config.json", most=MAX_BYTES)
        try:
            document = huggingface.read(data, str(path))
            found.append((path, huggingface.import_config(document.data, dtype)))
        except huggingface.RefusedError as refusal:
            diagnostics.append(document.diagnostic(refusal.problem))
        except SpecError as error:
            diagnostics += error.diagnostics
    if diagnostics:
        raise SpecError(diagnostics)
    return found


def _name_of(config: Path) -> str:
    """A spec's name from the path: the folder of a ``config.json``, in a cache of the Hub its repository, else the
    file; ``InputError`` where that makes no name."""
    from kgen.spec import names

    where = config.resolve().parent
    if where.parent.name == "snapshots":
        said = where.parent.parent.name.rpartition("--")[2]
    else:
        said = where.name if config.name == "config.json" else config.name.removesuffix(".json")
    made = names.usable(said, names.fault)
    if made is None:
        raise InputError(f"{config}: {said!r} makes no name for a spec; give one with --name")
    return made


def _specs(config: Path, found: Imported, name: str, out: Path, page_size: int | None) -> list[_Spec]:
    from kgen.models.huggingface import spec_text
    from kgen.plan.features import unmet
    from kgen.spec.loader import load_text
    from kgen.spec.names import fault

    made = []
    for layer in found.layers:
        spec = f"{name}_{layer.suffix}" if layer.suffix else name
        reason = fault(spec)
        if reason:
            raise InputError(f"{spec!r} cannot name a spec: {reason}; give another name with --name")
        path = out / f"{spec}.yaml"
        text = spec_text(layer, spec, page_size)
        made.append(_Spec(config, spec, path, text, unmet(load_text(text, str(path), ungenerated="allowed").spec)))
    return made


def _refuse_same_paths(specs: list[_Spec]) -> None:
    first: dict[Path, _Spec] = {}
    for spec in specs:
        other = first.setdefault(spec.path, spec)
        if other is not spec:
            raise InputError(
                f"{other.config} and {spec.config} would both be {spec.path}; import one of them with --name"
            )


def _state(spec: _Spec) -> str:
    """``wrote``, ``replaced`` or ``unchanged``: what writing would do."""
    try:
        if not spec.path.exists() and not spec.path.is_symlink():
            return "wrote"
        if not spec.path.is_file() or spec.path.is_symlink():
            raise InputError(f"{spec.path} is there and is no regular file; move it away")
        return "unchanged" if spec.path.read_bytes() == spec.text.encode() else "replaced"
    except OSError as error:
        raise InputError(f"{spec.path}: cannot be read: {error.strerror or error}") from None


def _refuse_other_content(specs: list[_Spec], states: list[str], *, force: bool) -> None:
    if force:
        return
    others = [spec.path.as_posix() for spec, state in zip(specs, states, strict=True) if state == "replaced"]
    if others:
        raise InputError(
            f"{', '.join(others)}: there already, and with other content; nothing is written. "
            "--force replaces it, --name or --out writes elsewhere"
        )


def _write(specs: list[_Spec], states: list[str]) -> None:
    from kgen.sync import write

    for spec, state in zip(specs, states, strict=True):
        if state != "unchanged":
            write(spec.path, spec.text)
