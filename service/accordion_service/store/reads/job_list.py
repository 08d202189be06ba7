"""The list of jobs: its filters, and the queries that read one page of it.

A page is read in the order of an index, up to the last job that it shows. `ix_jobs_list` has the
columns of all filters but the status, and `ix_jobs_status_list` has that as well: lists with a
filter by status read the latter, except those of one name or of one owner, whose indexes have the
status too. With labels, the index of the label that the fewest jobs have is read, and for filters
whose columns it lacks, each of these jobs is looked up in `ix_jobs_list`, or by its row for the
status. If a filter by status leaves fewer, the index of the statuses is read instead, and the
labels of its jobs are looked up.

Without statistics, SQLite chooses an index by the number of columns that a query compares with
values; a column inside `coalesce` does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ConfigDict
from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    false,
    func,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from accordion_service.schemas.queries import Archived, JobQuery
from accordion_service.store.tables.job_labels import JobLabelRow
from accordion_service.store.tables.models import JobRow

MAX_ROWS = 5000
"""Jobs with a label whose rows may be looked up to read a page; how many more there are is not
counted.
"""
ROW_COST = 4
"""Look-ups of labels that take as long as that of one row; the rows of jobs are large."""
_LOWEST_ID, _HIGHEST_ID = (
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)
_OF_ONE = frozenset(
    {"status", "name", "label", "owner", "archived", "created_after", "created_before"}
    | {"before", "limit"}
)
"""Filters whose columns the index of names has, and that of owners."""
Label = tuple[str, str]
"""Key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingState:
    """Labels, priority and size of a job; None and empty match all."""

    labels: Sequence[tuple[str, str | None]] = ()
    """Labels as key and value; None for a key that the job does not have."""
    priority: int | None = None
    limits: tuple[int, int] | None = None
    """Fewest and most workers."""


class JobFilter(JobQuery):
    """Filters of a job list, with those that requests do not name; None and empty match all."""

    model_config = ConfigDict(frozen=True)

    ids: Sequence[str] = ()
    """Whole ids, of which a job must have one."""
    unlike: ListingState | None = None
    """Only jobs of which at least one of these differs."""
    visible_to: str | None = None
    """User whose jobs, and guest runs, are visible; None if all jobs are."""
    before: tuple[float, str] | None = None
    """Creation time and id of the last job of the previous page."""
    limit: int = 50

    @property
    def labels(self) -> list[Label]:
        """Labels as key and value, each once; a job must have all of them."""
        pairs = (text.partition(":") for text in dict.fromkeys(self.label))
        return [(key, value) for key, _, value in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """Columns of the table whose index gives the order of a list."""

    id: InstrumentedAttribute[str]
    archived: InstrumentedAttribute[bool]
    created_at: InstrumentedAttribute[float]
    kind: InstrumentedAttribute[str]
    owner: ColumnElement[str | None] | InstrumentedAttribute[str | None]
    name: ColumnElement[str] | InstrumentedAttribute[str]


_JOBS = _Listed(
    id=JobRow.id,
    archived=JobRow.archived,
    created_at=JobRow.created_at,
    kind=JobRow.kind,
    owner=JobRow.owner,
    name=JobRow.name,
)
_ENTRIES = _Listed(
    id=JobLabelRow.job_id,
    archived=JobLabelRow.archived,
    created_at=JobLabelRow.created_at,
    kind=JobLabelRow.kind,
    owner=JobLabelRow.owner,
    name=JobLabelRow.name,
)


def read_page(session: Session, wanted: JobFilter) -> list[JobRow]:
    """Return the jobs that match a filter, newest first."""
    label = _choose_label(session, wanted)
    pages = _select_by_jobs(wanted) if label is None else _select_by_label(wanted, label)
    ids = union_all(*(select(page.subquery().c[0]) for page in pages))
    order = JobRow.created_at.desc(), JobRow.id.desc()
    query = select(JobRow).where(JobRow.id.in_(ids)).order_by(*order).limit(wanted.limit)
    return list(session.scalars(query))


def count_listed(session: Session, visible_to: str | None) -> dict[tuple[str, str], int]:
    """Count jobs by kind and status, without archived ones; `visible_to` as in `JobFilter`.

    With its columns hidden, the query reads `ix_jobs_status_list` and no row.
    """
    kind, owner = _hide(JobRow.kind), _hide(JobRow.owner)
    query = select(kind, JobRow.status, func.count()).where(_hide(JobRow.archived) == false())
    if visible_to is not None:
        query = query.where(or_(owner == visible_to, owner.is_(None)))
    rows = session.execute(query.group_by(JobRow.status, kind))
    return {(str(kind), str(status)): int(count) for kind, status, count in rows}


def _choose_label(session: Session, wanted: JobFilter) -> Label | None:
    """Return the label by whose index to read a list; None to read it by an index of the jobs."""
    labels = wanted.labels
    if len(labels) <= 1 and not wanted.status:
        return labels[0] if labels else None
    times = _time_conditions(wanted, _ENTRIES)
    entries = {
        label: _split_by_archived(
            select(JobLabelRow.job_id).where(*_is_label(label), *times), wanted, _ENTRIES
        )
        for label in labels
    }
    counts = {label: _count_ids(session, entries[label], MAX_ROWS + 1) for label in labels}
    rarest = min(counts, key=lambda label: counts[label], default=None)
    if rarest is None or not wanted.status:
        return rarest
    listed = select(JobRow.id).where(*_time_conditions(wanted, _JOBS))
    num_listed = _count_ids(session, _split_by_status(listed, wanted), MAX_ROWS * ROW_COST)
    return rarest if counts[rarest] * ROW_COST <= num_listed else None


def _count_ids(session: Session, parts: Sequence[Select[str]], limit: int) -> int:
    """Count the ids of several queries; stop at `limit`."""
    some = union_all(*parts).limit(limit).subquery()
    return session.scalar(select(func.count()).select_from(some)) or 0


def _select_by_label(wanted: JobFilter, label: Label) -> list[Select[str]]:
    """Select the ids of a page by the index of one of its labels."""
    others = [_has_label(_ENTRIES, other) for other in wanted.labels if other != label]
    conditions = [*_is_label(label), *_index_conditions(wanted, _ENTRIES), *others]
    rows = _status_conditions(wanted) + _job_conditions(wanted)
    if rows:
        conditions.append(_is_found(select(JobRow.id).where(*_same_job(wanted), *rows)))
    query = select(JobLabelRow.job_id).where(*conditions)
    return [
        _take_page(part, wanted, _ENTRIES) for part in _split_by_archived(query, wanted, _ENTRIES)
    ]


def _same_job(wanted: JobFilter) -> list[ColumnElement[bool]]:
    """Return the conditions by which the job of a label is looked up: in `ix_jobs_list`, whose
    entries are small, or by its row if the index lacks a column.
    """
    has_limits = wanted.unlike is not None and wanted.unlike.limits is not None
    if wanted.status or has_limits:
        return [JobRow.id == JobLabelRow.job_id]
    return [
        JobRow.archived == JobLabelRow.archived,
        JobRow.created_at == JobLabelRow.created_at,
        _hide(JobRow.id) == JobLabelRow.job_id,
    ]


def _select_by_jobs(wanted: JobFilter) -> list[Select[str]]:
    """Select the ids of a page by an index of the jobs."""
    labels = [_has_label(_JOBS, label) for label in wanted.labels]
    conditions = [*_index_conditions(wanted, _JOBS), *_job_conditions(wanted), *labels]
    if wanted.id is not None:
        query = select(JobRow.id).where(*conditions, *_hidden_status(wanted))
        if wanted.archived != Archived.ANY:
            is_archived = _as_literal(wanted.archived == Archived.TRUE)
            query = query.where(_hide(JobRow.archived) == is_archived)
        return [_take_page(query, wanted, _JOBS)]
    if not wanted.status:
        query = select(JobRow.id).where(*conditions)
        parts = _split_by_archived(query, wanted, _JOBS)
    elif _is_of_one(wanted):
        query = select(JobRow.id).where(*conditions, *_hidden_status(wanted))
        parts = _split_by_archived(query, wanted, _JOBS)
    else:
        listed = replace(_JOBS, name=_hide(JobRow.name), owner=_hide(JobRow.owner))
        query = select(JobRow.id).where(
            *_index_conditions(wanted, listed), *_job_conditions(wanted), *labels
        )
        parts = _split_by_status(query, wanted)
    return [_take_page(part, wanted, _JOBS) for part in parts]


def _is_of_one(wanted: JobFilter) -> bool:
    """Return whether a list with a filter by status is of one name, or of one owner, alone: the
    index of names, or that of owners, has all columns of the filter.
    """
    alone = {*_OF_ONE, *(["visible_to"] if wanted.owner is not None else [])}
    has_more = wanted.model_dump(exclude=alone, exclude_defaults=True)
    return (wanted.name is None) != (wanted.owner is None) and not has_more


def _split_by_status(query: Select[str], wanted: JobFilter) -> list[Select[str]]:
    """Split a query of jobs into one for each status: only then the index gives the order."""
    parts = _split_by_archived(query, wanted, _JOBS)
    return [
        part.where(JobRow.status == status)
        for part in parts
        for status in dict.fromkeys(wanted.status)
    ]


def _split_by_archived(query: Select[str], wanted: JobFilter, listed: _Listed) -> list[Select[str]]:
    """Split a query into one for archived jobs and one for others: indexes hold them apart."""
    both = (False, True)
    values = both if wanted.archived == Archived.ANY else (wanted.archived == Archived.TRUE,)
    # A comparison with `=`, which an index serves on both databases.
    return [query.where(listed.archived == _as_literal(value)) for value in values]


def _take_page(query: Select[str], wanted: JobFilter, listed: _Listed) -> Select[str]:
    return query.order_by(listed.created_at.desc(), listed.id.desc()).limit(wanted.limit)


def _index_conditions(wanted: JobFilter, listed: _Listed) -> list[ColumnElement[bool]]:
    """Return the conditions whose columns are in the index of labels, too."""
    return _time_conditions(wanted, listed) + _conditions(
        (wanted.id, lambda prefix: _has_id_prefix(listed, prefix)),
        (wanted.ids or None, listed.id.in_),
        (wanted.kind, lambda kind: listed.kind == kind),
        (wanted.owner, lambda owner: listed.owner == owner),
        (
            wanted.visible_to,
            lambda user: or_(listed.owner == user, listed.owner.is_(None)),
        ),
        (wanted.name, lambda name: listed.name == name),
        # LIKE ignores case in SQLite only.
        (wanted.name_prefix, lambda start: func.substr(listed.name, 1, len(start)) == start),
    )


def _time_conditions(wanted: JobFilter, listed: _Listed) -> list[ColumnElement[bool]]:
    """Return the conditions that bound a range of an index."""
    place = tuple_(listed.created_at, listed.id)
    return _conditions(
        (wanted.before, lambda last: place < last),
        (wanted.created_after, lambda time: listed.created_at >= time.timestamp()),
        (wanted.created_before, lambda time: listed.created_at < time.timestamp()),
    )


def _status_conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    return _conditions((wanted.status or None, JobRow.status.in_))


def _hidden_status(wanted: JobFilter) -> list[ColumnElement[bool]]:
    return _conditions((wanted.status or None, _hide(JobRow.status).in_))


def _job_conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    """Return the conditions, except that of the status, whose columns only jobs have."""
    return _conditions(
        (wanted.desired or None, JobRow.desired.in_),
        (wanted.reason or None, JobRow.reason.in_),
        (wanted.priority, lambda priority: JobRow.priority == priority),
        (wanted.workers, lambda workers: JobRow.workers == workers),
        (wanted.task, lambda task: JobRow.task == task),
        (wanted.method, lambda method: JobRow.method == method),
        (wanted.policy, lambda policy: JobRow.policy == policy),
        (wanted.cloned_from, lambda job_id: JobRow.cloned_from == job_id),
        (wanted.started_after, lambda time: JobRow.started_at >= time.timestamp()),
        (wanted.started_before, lambda time: JobRow.started_at < time.timestamp()),
        (wanted.ended_after, lambda time: JobRow.ended_at >= time.timestamp()),
        (wanted.ended_before, lambda time: JobRow.ended_at < time.timestamp()),
        (wanted.unlike, _is_unlike),
    )


def _is_unlike(state: ListingState) -> ColumnElement[bool]:
    """Return the condition that a job differs from a state."""
    min_workers, max_workers = state.limits or (None, None)
    return or_(
        *_conditions(
            (state.priority, lambda priority: JobRow.priority != priority),
            (min_workers, lambda number: JobRow.min_workers != number),
            (max_workers, lambda number: JobRow.max_workers != number),
        ),
        *(_label_value(key).is_distinct_from(value) for key, value in state.labels),
    )


def _conditions(
    *filters: tuple[Any, Callable[[Any], ColumnElement[bool]]],
) -> list[ColumnElement[bool]]:
    """Return the conditions of the filters that are set."""
    return [condition(value) for value, condition in filters if value is not None]


def _is_label(label: Label) -> list[ColumnElement[bool]]:
    key, value = label
    return [JobLabelRow.key == key, JobLabelRow.value == value]


def _has_label(listed: _Listed, label: Label) -> ColumnElement[bool]:
    (key, value), entry = label, aliased(JobLabelRow)
    is_label = entry.job_id == listed.id, entry.key == key, entry.value == value
    return _is_found(select(entry.job_id).where(*is_label))


def _label_value(key: str) -> ScalarSelect[str]:
    """Select the value of a job's label; null if the job does not have it."""
    entry = aliased(JobLabelRow)
    query = select(entry.value).where(entry.job_id == JobRow.id, entry.key == key)
    return query.scalar_subquery()


def _is_found(query: Select[str]) -> ColumnElement[bool]:
    """Look a row up for each entry of an index.

    Unlike `EXISTS`, no database makes this a join, whose order it may choose by a wrong estimate.
    PostgreSQL takes it for true of almost all entries, so it reads the index in the order of the
    page.
    """
    return query.scalar_subquery().is_not(None)


def _hide(column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    """Return a column by which no index is chosen; those that have it still serve it."""
    return func.coalesce(column, null())


def _as_literal(value: bool) -> ColumnElement[bool]:
    return true() if value else false()


def _has_id_prefix(listed: _Listed, prefix: str) -> ColumnElement[bool]:
    """A range of full ids can use the primary key in every collation."""
    lowest, highest = (prefix + end[len(prefix) :] for end in (_LOWEST_ID, _HIGHEST_ID))
    return listed.id.between(lowest, highest)


__all__ = ["MAX_ROWS", "ROW_COST", "JobFilter", "ListingState", "count_listed", "read_page"]
