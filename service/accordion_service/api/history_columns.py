"""Route with the whole history of a job in a bounded answer: thinned, and as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from accordion_service.api.callers import require_scope
from accordion_service.api.deps import JobDep, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.schemas.history_columns import DecisionColumns, EpochColumns, HistoryView
from accordion_service.schemas.jobs import DecisionView, EpochView
from accordion_service.schemas.queries import QueryParams
from accordion_service.store.reads.thinned_history import HistoryShare, thin_history
from accordion_service.store.tables.stored_documents import layer_names
from accordion_service.views.jobs import decision_views, epoch_views

MAX_CELLS = 100_000
"""Pairs of epoch and layer of a history, about 10 bytes each: 200 epochs of 500 layers."""
_MIN_POINTS = 10
_PLAIN = (
    *("epoch", "step", "attempt", "generation", "world_size"),
    *("loss", "lr", "local_steps", "agreement"),
)
"""Columns of epochs that have one value for each."""


router = APIRouter(
    prefix="/jobs/{job_id}", tags=["history"], dependencies=[require_scope(Scope.READ)]
)


class PointsQuery(QueryParams):
    """Query parameters of a thinned history."""

    points: int = Field(
        default=400,
        ge=10,
        le=1000,
        description="most epochs to return (default 400), and most decisions; for a job with more"
        " than 100 layers there may be fewer",
    )


@router.get("/history", responses=describe_problems(404))
def get_history(
    job: JobDep, query: Annotated[PointsQuery, Query()], state: StateDep
) -> HistoryView:
    """Get what charts of the whole history show, in one bounded answer. Of a long history, it has
    epochs at equal distances and those in which decisions began, and the decisions that were in
    force in them; `GET /epochs` and `GET /decisions` have all.
    """
    points = _limit_points(query.points, len(layer_names(job)))
    share = HistoryShare(epochs=points, decisions=points)
    with state.database.read() as session:
        history = thin_history(session, job.id, share)
    names: list[str] = []
    return HistoryView(
        num_epochs=history.num_epochs,
        num_decisions=history.num_decisions,
        epochs=_epoch_columns(epoch_views(history.epochs), names),
        decisions=_decision_columns(decision_views(history.decisions, ()), names),
        names=names,
    )


def _limit_points(points: int, num_layers: int) -> int:
    """Return how many epochs the history of a model with so many layers has at most."""
    return min(points, max(_MIN_POINTS, MAX_CELLS // max(1, num_layers)))


def _epoch_columns(rows: Sequence[EpochView], names: list[str]) -> EpochColumns:
    """Arrange epochs in columns; texts that are not among `names` yet are added to it."""
    encode = _encoder(names)
    return EpochColumns(
        **{name: [getattr(row, name) for row in rows] for name in _PLAIN},
        metrics=_columns([row.metrics for row in rows]),
        seconds_by_phase=_columns([row.seconds_by_phase for row in rows]),
        bytes=_columns([row.bytes.totals() for row in rows]),
        regime_by_layer=_columns([row.regime_by_layer for row in rows], encode),
        level_by_layer=_columns([row.level_by_layer for row in rows], encode),
    )


def _decision_columns(views: Sequence[DecisionView], names: list[str]) -> DecisionColumns:
    """Arrange decisions in columns; texts that are not among `names` yet are added to it."""
    decisions = [view.decision for view in views]
    return DecisionColumns(
        epoch=[decision.epoch for decision in decisions],
        step=[decision.step for decision in decisions],
        attempt=[view.attempt for view in views],
        generation=[view.generation for view in views],
        batch_override=[decision.batch_override for decision in decisions],
        local_steps_override=[decision.local_steps_override for decision in decisions],
        optimizer_overrides=_columns([decision.optimizer_overrides for decision in decisions]),
        change_by_layer=_columns([decision.change_by_layer for decision in decisions], _round),
        override_by_layer=_columns(
            [decision.override_by_layer for decision in decisions], _encoder(names)
        ),
    )


def _columns(
    rows: Sequence[Mapping[str, Any]], convert: Callable[[Any], Any] = lambda value: value
) -> dict[str, list[Any]]:
    """Return a list for each key of the mappings, with None where one lacks it."""
    columns: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        for key, value in row.items():
            if key not in columns:
                columns[key] = [None] * len(rows)
            columns[key][place] = convert(value)
    return columns


def _encoder(names: list[str]) -> Callable[[str], int]:
    places = {name: place for place, name in enumerate(names)}

    def encode(name: str) -> int:
        if name not in places:
            places[name] = len(names)
            names.append(name)
        return places[name]

    return encode


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
