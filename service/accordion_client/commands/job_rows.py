"""All rows of a job as tables of plain columns, for files that other tools read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from sys import intern
from typing import TYPE_CHECKING, Any, TypeAlias, get_origin

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


@dataclass
class RowTable:
    """Rows of one kind, kept in columns of equal length.

    A column that some rows lack has None there. New columns come last.
    """

    columns: dict[str, list[Cell]] = field(default_factory=dict)
    num_rows: int = 0

    @classmethod
    def of(cls, model: type[BaseModel]) -> RowTable:
        """Return a table without rows that has a column for each plain field of a model."""
        fields = model.model_fields.items()
        names = (
            name
            for name, info in fields
            if _is_plain(info.annotation) and not name.endswith(_BY_LAYER)
        )
        return cls(_empty_columns(*names))

    def add(self, row: Mapping[str, Cell]) -> None:
        """Add a row; a name that no row had is a new column."""
        for name in row:
            if name not in self.columns:
                self.columns[name] = [None] * self.num_rows
        for name, column in self.columns.items():
            column.append(row.get(name))
        self.num_rows += 1


def collect_job_rows(client: Client, job_id: str) -> dict[str, RowTable]:
    """Read all epochs, decisions, overrides, attempts and checkpoints of a job, oldest first, with
    what an epoch and a decision say of each layer in tables of their own.
    """
    epochs, layers = RowTable.of(EpochView), RowTable(_empty_columns("epoch", "layer"))
    for epoch in client.all_epochs(job_id):
        _add_with_layers(epochs, layers, epoch.model_dump())
    decisions = RowTable.of(DecisionView)
    decided_layers = RowTable(_empty_columns("epoch", "step", "layer"))
    for row in client.all_decisions(job_id):
        values = row.model_dump()
        values["user_by_override"] = _as_text(row.user_by_override)  # its keys are no columns
        _add_with_layers(decisions, decided_layers, {**values.pop("decision"), **values})
    return {
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


def _empty_columns(*names: str) -> dict[str, list[Cell]]:
    return {name: [] for name in names}


def _is_plain(annotation: object) -> bool:
    """Tell whether a field of this type is one column."""
    is_model = isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    )
    return not is_model and get_origin(annotation) is not dict


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
