"""All rows of a job as tables of plain columns, for files that other tools read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from sys import intern
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from accordion_service.schemas.history import CheckpointView
from accordion_service.schemas.jobs import AttemptView, DecisionView, EpochView
from accordion_service.schemas.overrides import OverrideView

if TYPE_CHECKING:
    from accordion_client import Client

Cell: TypeAlias = str | bool | int | float | datetime | None
"""One value of a table."""

_BY_LAYER = "_by_layer"
"""End of the names of fields that have a value per layer."""
_EPOCH_LAYER = {"epoch": int, "layer": str, "statistic": float, "regime": str, "level": str}
"""Columns of what an epoch says of a layer."""
_DECIDED_LAYER = {
    "epoch": int,
    "step": int,
    "layer": str,
    "regime": str,
    "level": str,
    "change": float,
    "override": str,
    "policy_level": str,
}
"""Columns of what a decision says of a layer."""


@dataclass
class RowTable:
    """Rows of one kind, kept in columns of equal length.

    A column that some rows lack has None there. New columns come last.
    """

    types: dict[str, type] = field(default_factory=dict)
    """Type of the values of each column that is there without rows."""
    columns: dict[str, list[Cell]] = field(init=False)
    num_rows: int = 0

    def __post_init__(self) -> None:
        self.columns = {name: [] for name in self.types}

    @classmethod
    def of(cls, *records: type) -> RowTable:
        """Return a table without rows that has a column for each plain field of these records,
        which are models or dataclasses.
        """
        fields = (pair for record in records for pair in _types_of_fields(record))
        types = {
            name: _choose_cell_type(annotation)
            for name, annotation in fields
            if _is_plain(annotation) and not name.endswith(_BY_LAYER)
        }
        return cls(types)

    def add(self, row: Mapping[str, Cell]) -> None:
        """Add a row; a name that no row had is a new column."""
        for name in row:
            if name not in self.columns:
                self.columns[name] = [None] * self.num_rows
        for name, column in self.columns.items():
            column.append(row.get(name))
        self.num_rows += 1

    def put_first(self, name: str, value: str) -> None:
        """Put a column before the others that has one value in all rows."""
        self.types[name] = str
        self.columns = {name: [value] * self.num_rows, **self.columns}


def collect_job_rows(client: Client, job_id: str) -> dict[str, RowTable]:
    """Read all epochs, decisions, overrides, attempts and checkpoints of a job, oldest first, with
    what an epoch and a decision say of each layer in tables of their own. All rows begin with the
    ID of the job, so that tables of several jobs can be put together.
    """
    epochs, layers = RowTable.of(EpochView), RowTable(dict(_EPOCH_LAYER))
    for epoch in client.all_epochs(job_id):
        _add_with_layers(epochs, layers, epoch.model_dump())
    decision = get_type_hints(DecisionView)["decision"]
    decisions, decided_layers = RowTable.of(decision, DecisionView), RowTable(dict(_DECIDED_LAYER))
    for row in client.all_decisions(job_id):
        values = row.model_dump()
        values["user_by_override"] = _as_text(row.user_by_override)  # its keys are no columns
        _add_with_layers(decisions, decided_layers, {**values.pop("decision"), **values})
    tables = {
        "epochs": epochs,
        "layers": layers,
        "decisions": decisions,
        "decided_layers": decided_layers,
        "overrides": _collect(
            OverrideView,
            (
                {**row.model_dump(), "level": _as_text(row.level), "apply_at": str(row.apply_at)}
                for row in client.overrides(job_id).items
            ),
        ),
        "attempts": _collect(
            AttemptView, (row.model_dump() for row in client.attempts(job_id).items)
        ),
        "checkpoints": _collect(
            CheckpointView, (row.model_dump() for row in client.checkpoints(job_id).items)
        ),
    }
    for table in tables.values():
        table.put_first("job_id", job_id)
    return tables


def _add_with_layers(whole: RowTable, layers: RowTable, row: dict[str, Any]) -> None:
    """Add a row without its fields by layer to `whole`, and these to `layers`, a row each layer."""
    by_layer = {
        name.removesuffix(_BY_LAYER): row.pop(name) or {}
        for name in list(row)
        if name.endswith(_BY_LAYER)
    }
    whole.add(dict(_flatten(row)))
    place: dict[str, Cell] = {
        name: row[name] for name in ("epoch", "step") if name in layers.columns
    }
    for layer in dict.fromkeys(layer for values in by_layer.values() for layer in values):
        values: dict[str, Cell] = {
            name: _short(values.get(layer)) for name, values in by_layer.items()
        }
        layers.add({**place, "layer": intern(layer), **values})


def _collect(model: type[BaseModel], rows: Iterable[Mapping[str, Any]]) -> RowTable:
    table = RowTable.of(model)
    for row in rows:
        table.add(dict(_flatten(row)))
    return table


def _types_of_fields(record: type) -> Iterable[tuple[str, Any]]:
    if issubclass(record, BaseModel):
        return ((name, info.annotation) for name, info in record.model_fields.items())
    return get_type_hints(record).items()


def _is_plain(annotation: object) -> bool:
    """Tell whether a field of this type is one column."""
    kind = get_origin(annotation) or annotation
    is_nested = isinstance(kind, type) and (
        issubclass(kind, (BaseModel, Mapping)) or is_dataclass(kind)
    )
    return not is_nested


def _choose_cell_type(annotation: object) -> type:
    """Return the type of the cells of a plain field, without None; text for choices and lists."""
    is_union = get_origin(annotation) in {Union, UnionType}
    options = {*(get_args(annotation) if is_union else (annotation,))} - {NoneType}
    [*kinds] = options & {bool, int, float, datetime}
    return kinds[0] if len(options) == len(kinds) == 1 else str


def _flatten(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Cell]]:
    """Iterate over the values of a row; those of a mapping in it are named `outer.inner`."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield intern(f"{prefix}{name}"), _as_text(value) if _is_list(value) else value


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _short(value: Any) -> Cell:
    """Name of a level; anything else as it is."""
    short = value["name"] if isinstance(value, Mapping) else value
    return intern(short) if isinstance(short, str) else short


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
