"""The report of a simulated run, from the records in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accordion_client.commands.simulations import LOG_FILE
from accordion_service.api.dashboard.report_content import ReportSource
from accordion_service.api.dashboard.report_page import choose_limits
from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from accordion_service.domain.performance.elasticity import ElasticityStats
from accordion_service.domain.performance.thinning import choose_epochs, choose_in_force
from accordion_service.errors import SettingsError
from accordion_service.schemas.jobs import (
    DecisionView,
    EpochView,
    JobView,
    ProgressView,
    ScheduleView,
)
from accordion_service.schemas.why import WhyView
from accordion_workers.common.plain_text import clean_for_terminal
from accordion_workers.records.contract import (
    Bytes,
    DecisionRecord,
    EpochRecord,
    Record,
    Started,
)
from accordion_workers.simulation.simulated_runs import (
    SimulatedRun,
    SimulatedStatus,
    list_runs,
    read_epochs,
    read_history,
)

_STATES = {
    SimulatedStatus.SUCCEEDED: (Status.SUCCEEDED, Reason.COMPLETED),
    SimulatedStatus.STOPPED: (Status.PAUSED, Reason.PAUSED_BY_USER),
    SimulatedStatus.FAILED: (Status.FAILED, Reason.TASK_RAISED),
}
"""States of jobs that mean the same."""
_MAX_LINES = 200
"""Number of the newest lines of output in a report."""
_MAX_LOG_BYTES = 1 << 18
"""Bytes of output that are read for them."""


def read_source(folder: Path, *, written_at: datetime) -> ReportSource:
    """Return what the report of the run in a folder is made of.

    Raises:
        RunError: there is no run, or it is damaged.
        OSError: its records cannot be read.
        SettingsError: its output cannot be read.
    """
    [(place, run)] = list_runs(folder)
    records, epochs = read_history(place), read_epochs(place)
    decisions = _list_decisions(records)
    layers = epochs[-1].level_by_layer if epochs else ()
    limits = choose_limits(len(layers)).history
    numbers = choose_epochs([row.epoch for row in epochs], [], limits.epochs)
    shown = [row for row in epochs if row.epoch in set(numbers)]
    return ReportSource(
        job=_describe_run(place, run, records=records, epochs=epochs),
        schedule=ScheduleView(epoch=len(epochs), step=0, layers=[], batch=None),
        why=WhyView(sentence=""),
        epochs=[EpochView(**dict(row), attempt=1, generation=1) for row in shown],
        num_epochs=len(epochs),
        decisions=_thin_decisions(decisions, shown, limits.decisions),
        num_decisions=len(decisions),
        log_lines=_read_log(place / LOG_FILE),
        written_at=written_at,
        simulated_workers=run.workers,
    )


def _list_decisions(records: Sequence[Record]) -> list[DecisionView]:
    """Return the decisions in order; a group that started voids those after its first step."""
    found: dict[tuple[int, int], DecisionView] = {}
    for record in records:
        payload = record.payload
        if isinstance(payload, Started):
            first = payload.step
            found = {place: view for place, view in found.items() if place[1] <= first}
        if isinstance(payload, DecisionRecord):
            decision = payload.decision
            found[decision.epoch, decision.step] = DecisionView(
                attempt=record.attempt,
                generation=record.generation,
                time=datetime.fromtimestamp(record.time, UTC),
                decision=decision,
            )
    return [found[place] for place in sorted(found)]


def _thin_decisions(
    views: Sequence[DecisionView], epochs: Sequence[EpochRecord], limit: int
) -> list[DecisionView]:
    """Return all decisions if they fit, otherwise those in force at the ends of the epochs."""
    if len(views) <= limit:
        return list(views)
    places = {(view.decision.epoch, view.decision.step): view for view in views}
    ends = [(row.epoch, row.step) for row in epochs]
    return [places[place] for place in choose_in_force(list(places), ends)]


def _describe_run(
    place: Path, run: SimulatedRun, *, records: Sequence[Record], epochs: Sequence[EpochRecord]
) -> JobView:
    """Return the run as a job without a service."""
    status, reason = _STATES[run.status]
    times = [datetime.fromtimestamp(record.time, UTC) for record in records]
    begun = times[0] if times else datetime.fromtimestamp(0, UTC)
    folder = place.absolute()
    labels = run.spec.get("labels")
    numbers = dict.fromkeys(("workers", "world_size", "min_workers", "max_workers"), run.workers)
    return JobView(
        id=f"{folder.parent.name}/{folder.name}",
        name=run.name,
        status=status,
        desired=Desired.RUN,
        reason=reason,
        message=run.message,
        trained_s=sum(sum(row.seconds_by_phase.values()) for row in epochs),
        spec=dict(run.spec),
        labels=labels if isinstance(labels, dict) else {},
        priority=0,
        attempt=1,
        **numbers,
        tally=ElasticityStats(),
        metrics=next((row.metrics for row in reversed(epochs) if row.metrics), {}),
        progress=_describe_progress(run, epochs, updated_at=times[-1]) if epochs else None,
        created_at=begun,
        started_at=begun if times else None,
        ended_at=None if status is Status.PAUSED else (times or [begun])[-1],
    )


def _describe_progress(
    run: SimulatedRun, epochs: Sequence[EpochRecord], *, updated_at: datetime
) -> ProgressView:
    last, training = epochs[-1], run.spec.get("training")
    planned: Any = training.get("epochs") if isinstance(training, dict) else None
    return ProgressView(
        epoch=len(epochs),
        epochs=planned,
        step=last.step,
        steps=None,
        samples_per_s=None,
        eta_s=None,
        loss=last.loss,
        lr=last.lr,
        bytes=Bytes.add_up(row.bytes for row in epochs),
        updated_at=updated_at,
    )


def _read_log(file: Path) -> list[str]:
    """Return the newest lines that the task printed; none if it printed nothing."""
    if not file.is_file():
        return []
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _MAX_LOG_BYTES))
            text = log.read().decode(errors="replace")
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read ({error.strerror}); make it readable, or remove it for a report"
            " without the task's output"
        ) from error
    return [clean_for_terminal(line) for line in text.splitlines()[-_MAX_LINES:]]
