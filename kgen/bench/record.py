"""What a run measured, and its JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from kgen.bench.timing import Timing
from kgen.errors import InputError
from kgen.models.accounting import KernelCost

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = 1  # raised when a field changes its meaning or goes
KGEN, READ = "kgen", "read"  # the columns that are no peer: ours, and a bare read of the workload's bytes

Status = Literal["measured", "not generated", "unsupported", "skipped", "missing", "failed", "wrong"]


@dataclass(frozen=True)
class Ceilings:
    """10^12 bytes or operations a second; ``None`` is a ceiling that was not measured."""

    read_tb_s: float | None
    copy_tb_s: float | None
    matmul_tflop_s: float | None


@dataclass(frozen=True)
class Cell:
    """One candidate on one workload.

    ``reason`` says why there is no figure. ``error`` is the largest relative error of the sampled rows, ``times``
    holds a timing for each flush.
    """

    status: Status
    reason: str | None = None
    note: str | None = None
    error: float | None = None
    times: Mapping[str, Timing] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A workload.

    ``tokens`` are the keys of all requests; ``work`` is ``None`` where the spec alone does not tell what the mask
    hides.
    """

    id: str
    group: str
    spec: str
    kernel: str
    kind: str
    layer: str
    shape: str
    dtype: str
    batch: int
    queries: int
    context: int
    tokens: int
    work: KernelCost | None
    cells: Mapping[str, Cell]

    @property
    def spec_name(self) -> str:
        """The name of the spec's file."""
        return PurePath(self.spec).stem

    def timing(self, name: str, flush: str) -> Timing | None:
        """The timing of a column."""
        cell = self.cells.get(name)
        return None if cell is None else cell.times.get(flush)


@dataclass(frozen=True)
class Record:
    """A run: where, with what, how, and what came of it. ``left_out`` says why workloads were not begun.

    ``order`` is that of the candidates in a round and ``warm_up_ms`` the time at the beginning of a turn that is not
    counted; both are of older runs where a record does not say.
    """

    date: str
    kgen: str
    device: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: int
    flushes: tuple[str, ...]
    baselines: tuple[str, ...]
    ceilings: Mapping[str, Ceilings]
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    order: str = "rotation"
    warm_up_ms: float = 0.0

    @property
    def device_name(self) -> str:
        """As the driver names it."""
        return str(self.device.get("name", "an unknown GPU"))

    def row(self, name: str) -> Row | None:
        """The row of a workload, by its id."""
        return next((row for row in self.rows if row.id == name), None)

    def best_peer(self, row: Row, flush: str) -> tuple[str, Timing] | None:
        """The fastest peer of a row; baselines and the bare read are none."""
        others = [
            (name, cell.times[flush])
            for name, cell in row.cells.items()
            if name not in (KGEN, READ, *self.baselines) and flush in cell.times
        ]
        return min(others, key=lambda one: one[1].us, default=None)


def as_json(record: Record) -> dict[str, Any]:
    """Plain data, with the number of the schema first."""
    return {"schema": SCHEMA, **dataclasses.asdict(record)}


def write(record: Record, path: Path) -> None:
    """Write a record. Raises ``InputError`` where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_json(record), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def read(path: Path) -> Record:
    """Read a record. Raises ``InputError`` that names what is wrong with the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise InputError(f"{path} is no record of kgen bench with schema {SCHEMA}; its schema is {found}")
    try:
        return _record(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no whole record of kgen bench: {type(error).__name__}: {error}") from None


def _record(data: dict[str, Any]) -> Record:
    fields = {name: value for name, value in data.items() if name != "schema"}
    fields["flushes"], fields["baselines"] = tuple(fields["flushes"]), tuple(fields["baselines"])
    fields["ceilings"] = {flush: Ceilings(**values) for flush, values in fields["ceilings"].items()}
    fields["rows"] = tuple(_row(values) for values in fields["rows"])
    return Record(**fields)


def _row(values: dict[str, Any]) -> Row:
    cells = {
        name: Cell(**{**cell, "times": {flush: Timing(**times) for flush, times in cell["times"].items()}})
        for name, cell in values["cells"].items()
    }
    work = None if values["work"] is None else KernelCost(**values["work"])
    return Row(**{**values, "cells": cells, "work": work})
