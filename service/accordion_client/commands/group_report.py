"""The report of several runs: their means and intervals over seeds, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from accordion_client.commands.compared_history import ComparedHistory
from accordion_client.commands.comparison import (
    IncomparableError,
    check_given_once,
    choose_metric,
    find_differences,
    get_present_spec,
)
from accordion_client.commands.group_tables import (
    TextTable,
    list_epochs,
    list_methods,
    list_seeds,
)
from accordion_client.commands.run_groups import EpochResult, RunGroup
from accordion_client.commands.simulated_jobs import SimulatedJob
from accordion_service.api.dashboard.report_content import METHODS_NOTE, ReportTable
from accordion_service.api.dashboard.report_frame import BYTES_SENTENCE, PageParts
from accordion_service.api.dashboard.router import Chart
from accordion_service.domain.jobs.shareable_spec import TextMask, hide_secrets
from accordion_service.domain.performance.thinning import thin_evenly
from accordion_service.schemas.format import format_level

MAX_EPOCHS = 200
"""Most epochs of a group in the charts and tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedGroup:
    """A group of runs, and what is shown of it once."""

    group: RunGroup
    spec: Mapping[str, Any]
    """Spec of its first run, without secrets."""
    messages: Sequence[str]
    """Why runs failed, without secrets."""
    is_simulated: bool
    num_epochs: int
    """Number of epochs, also of those that are left out."""


def collect_groups(
    names: Sequence[str], histories: Sequence[Sequence[ComparedHistory]]
) -> list[ReportedGroup]:
    """Return the groups that were named, each a folder of simulations or a job.

    Raises:
        IncomparableError: a run is given twice, or none of a group has finished an epoch.
    """
    runs = [run for found in histories for run in found]
    check_given_once(runs)
    for name, found in zip(names, histories, strict=True):
        if not any(run.epochs for run in found):
            raise IncomparableError(f"{name} has finished no epoch; leave it out, or wait for one")
    metric = choose_metric(runs, None)
    titles = _title_groups(names, histories)
    return [
        _collect_group(title, found, metric) for title, found in zip(titles, histories, strict=True)
    ]


def _title_groups(
    names: Sequence[str], histories: Sequence[Sequence[ComparedHistory]]
) -> list[str]:
    """Return the names of folders and jobs; of several with one name, what was given."""
    titles = [
        Path(name).resolve().name if len(found) > 1 else found[0].job.name
        for name, found in zip(names, histories, strict=True)
    ]
    counts = Counter(titles)
    return [
        title if counts[title] == 1 else name for title, name in zip(titles, names, strict=True)
    ]


def _collect_group(
    title: str, histories: Sequence[ComparedHistory], metric: str | None
) -> ReportedGroup:
    first = next(one for one in histories if one.epochs)
    group = RunGroup.of_histories(
        title, histories, workers=first.epochs[-1].world_size, metric=metric
    )
    failed = [one.job for one in histories if one.job.message and one.job.status.value == "FAILED"]
    return ReportedGroup(
        group=replace(group, epochs=thin_evenly(group.epochs, MAX_EPOCHS)),
        spec=hide_secrets(get_present_spec(first.job)),
        messages=[f"{job.name}: {TextMask(job.spec).apply(job.message)}" for job in failed],
        is_simulated=isinstance(first.job, SimulatedJob),
        num_epochs=len(group.epochs),
    )


def describe_groups(reported: Sequence[ReportedGroup], *, written_at: datetime) -> PageParts:
    """Return the parts of a page with groups side by side."""
    groups = [one.group for one in reported]
    has_means = any(len(group.counted) > 1 for group in groups)
    about = "; ± and shaded: the 95 % interval of the mean, by Student's t" if has_means else ""
    return PageParts(
        title=", ".join(group.name for group in groups),
        kind="Means over seeds" if has_means else "Side by side",
        about=about,
        message="; ".join(message for one in reported for message in one.messages),
        is_failed=True,
        notes=[
            f"{one.group.name}: {len(one.group.epochs)} of {one.num_epochs} epochs are shown, at"
            " equal distances from the first to the last."
            for one in reported
            if len(one.group.epochs) < one.num_epochs
        ],
        charts=_list_charts(groups),
        tables=_list_tables(reported),
        specs={f"Spec of {one.group.name}": one.spec for one in reported},
        measured=_describe_measures(reported),
        script="comparison",
        data={
            "metric_name": groups[0].metric_name,
            "groups": [
                {"name": group.name, "epochs": [asdict(row) for row in group.epochs]}
                for group in groups
            ],
        },
        written_at=written_at,
    )


def _list_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return the charts that have something to show."""
    rows = [row for group in groups for row in group.epochs]

    def changes(read: Callable[[EpochResult], float]) -> bool:
        return len({read(row) for row in rows}) > 1

    charts = [Chart(id="loss", title="Training loss", note="mean over the epoch")]
    metric = groups[0].metric_name
    if metric is not None:
        charts.append(Chart(id="metric", title=metric.capitalize(), note="on held-out samples"))
    charts += [
        Chart(id="wire", title="Bytes sent per worker", note="on the wire, per epoch, log scale"),
        Chart(id="lr", title="Learning rate", note="at the end of the epoch"),
    ]
    if changes(lambda row: row.local_steps):
        charts.append(Chart(id="local_steps", title="Local steps", note="between two exchanges"))
    if changes(lambda row: row.global_batch):
        charts.append(Chart(id="global_batch", title="Batch", note="samples per step"))
    if any(row.agreement is not None for row in rows):
        note = "of the workers' gradients or changes: 1 alike, 0 noise"
        charts.append(Chart(id="agreement", title="Agreement", note=note))
    return charts


def _list_tables(reported: Sequence[ReportedGroup]) -> list[ReportTable]:
    groups = [one.group for one in reported]
    tables = [
        replace(
            _join_tables(groups, list_seeds, id="seeds", title="Runs"),
            note="; ".join(map(_count_workers, groups)),
        ),
        _tabulate_specs(reported),
        replace(
            _join_tables(groups, list_methods, id="methods", title="Bytes by method"),
            note=f"{METHODS_NOTE}; means over the runs",
        ),
        _join_tables(groups, list_epochs, id="epochs", title="Epochs"),
    ]
    return [table for table in tables if table.rows]


def _count_workers(group: RunGroup) -> str:
    return f"{group.name}: {group.workers} worker{'s' if group.workers > 1 else ''}"


def _join_tables(
    groups: Sequence[RunGroup], list_rows: Callable[[RunGroup], TextTable], **names: str
) -> ReportTable:
    """Return a table, by its `id` and `title`, with the rows of all groups under their names."""
    found = [(group.name, list_rows(group)) for group in groups]
    return ReportTable(
        **names,
        columns=("Name", *found[0][1].columns),
        rows=[(name, *row) for name, table in found for row in table.rows],
    )


def _tabulate_specs(reported: Sequence[ReportedGroup]) -> ReportTable:
    differences = find_differences([one.spec for one in reported])
    return ReportTable(
        id="differences",
        title="What differs in the specs",
        columns=("Field", *(one.group.name for one in reported)),
        rows=[
            (place, *("-" if value is None else format_level(value) for value in values))
            for place, values in differences.items()
            if place != "training.seed"
        ],
    )


def _describe_measures(reported: Sequence[ReportedGroup]) -> str:
    simulated = (
        "Times of simulations are those of one process in which the workers took turns, not of a"
        " cluster; "
        if any(one.is_simulated for one in reported)
        else ""
    )
    return f"{simulated}{BYTES_SENTENCE if simulated else BYTES_SENTENCE.capitalize()}"
