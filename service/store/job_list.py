"""The list of jobs: its filters, and the queries that read one page of it.

A page is read in the order of an index, and none reads more rows than a filter leaves. With labels,
two indexes can give the order: that of one label, whose entries have most columns of the filters,
and that of the list without labels. The former is read for the label with the fewest jobs, unless
each of these jobs would have to be looked up for the other filters and they are many; then the list
is read by its own index, and the labels are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    false,
    func,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.store.job_label_table import JobLabelRow
from service.store.models import JobRow

MAX_LOOKUPS = 1000
"""Jobs with a label that may be looked up one by one to read a page."""
_LOWEST_ID, _HIGHEST_ID = (
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)
Label = tuple[str, str]
"""Key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Filter of a job list; None and empty match all."""

    statuses: Sequence[str] = ()
    desired: Sequence[str] = ()
    """Requested states."""
    name: str | None = None
    id_prefix: str | None = None
    """Prefix of the job id."""
    labels: Sequence[Label] = ()
    """Labels as key and value; a job must have all of them."""
    owner: str | None = None
    name_prefix: str | None = None
    kind: str | None = None
    created_after: float | None = None
    """Earliest time of submission, in seconds since 1970."""
    created_before: float | None = None
    archived: bool | None = False
    """Only archived jobs, or only others; None for both."""
    visible_to: str | None = None
    """User whose jobs, and guest runs, are visible; None if all jobs are."""
    before: tuple[float, str] | None = None
    """Creation time and id of the last job of the previous page."""
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """Columns of the table whose index gives the order of a list."""

    id: InstrumentedAttribute[str]
    archived: InstrumentedAttribute[bool]
    created_at: InstrumentedAttribute[float]
    kind: InstrumentedAttribute[str]
    owner: InstrumentedAttribute[str | None]


_JOBS = _Listed(
    id=JobRow.id,
    archived=JobRow.archived,
    created_at=JobRow.created_at,
    kind=JobRow.kind,
    owner=JobRow.owner,
)
_ENTRIES = _Listed(
    id=JobLabelRow.job_id,
    archived=JobLabelRow.archived,
    created_at=JobLabelRow.created_at,
    kind=JobLabelRow.kind,
    owner=JobLabelRow.owner,
)


def read_page(session: Session, wanted: JobFilter) -> list[JobRow]:
    """Return the jobs that match a filter, newest first."""
    label = _choose_label(session, wanted) if wanted.labels else None
    ids = _select_by_jobs(wanted) if label is None else _select_by_label(wanted, label)
    order = JobRow.created_at.desc(), JobRow.id.desc()
    query = select(JobRow).where(JobRow.id.in_(ids)).order_by(*order).limit(wanted.limit)
    return list(session.scalars(query))


def _choose_label(session: Session, wanted: JobFilter) -> Label | None:
    """Return the label by whose index to read the list; None to read it by one of the jobs."""
    counts = {label: _count_entries(session, wanted, label) for label in wanted.labels}
    rarest = min(counts, key=lambda label: counts[label])
    is_covered = not _row_conditions(wanted)
    return rarest if is_covered or counts[rarest] <= MAX_LOOKUPS else None


def _count_entries(session: Session, wanted: JobFilter, label: Label) -> int:
    """Count the entries of a label from which the page is taken; stop beyond `MAX_LOOKUPS`."""
    entries = select(JobLabelRow.job_id).where(
        *_is_label(label), *_time_conditions(wanted, _ENTRIES)
    )
    pages = [
        entries.where(_is_archived(_ENTRIES, archived)).limit(MAX_LOOKUPS + 1).subquery()
        for archived in _archived_values(wanted)
    ]
    counts = (session.scalar(select(func.count()).select_from(page)) for page in pages)
    return sum(count or 0 for count in counts)


def _select_by_label(wanted: JobFilter, label: Label) -> CompoundSelect[str]:
    """Select the ids of a page by the index of one of its labels."""
    others = [_has_label(_ENTRIES, other) for other in wanted.labels if other != label]
    conditions = [*_is_label(label), *_index_conditions(wanted, _ENTRIES), *others]
    rows = _row_conditions(wanted)
    if rows:
        row = select(JobRow.id).where(JobRow.id == JobLabelRow.job_id, *rows)
        conditions.append(row.scalar_subquery().is_not(None))
    return _merge_pages(select(JobLabelRow.job_id).where(*conditions), wanted, _ENTRIES)


def _select_by_jobs(wanted: JobFilter) -> CompoundSelect[str]:
    """Select the ids of a page by an index of the jobs."""
    labels = [_has_label(_JOBS, label) for label in wanted.labels]
    conditions = [*_index_conditions(wanted, _JOBS), *_row_conditions(wanted), *labels]
    query = select(JobRow.id).where(*conditions)
    if wanted.id_prefix is None:
        return _merge_pages(query, wanted, _JOBS)
    if wanted.archived is not None:
        # SQLite would prefer an index of this column to the primary key.
        archived = func.coalesce(JobRow.archived, false())
        query = query.where(archived == _constant(wanted.archived))
    return _merge([_cut(query, wanted, _JOBS)])


def _merge_pages(query: Select[str], wanted: JobFilter, listed: _Listed) -> CompoundSelect[str]:
    """Select a page of archived jobs, one of others, or both: indexes hold them apart."""
    by_archived = (query.where(_is_archived(listed, value)) for value in _archived_values(wanted))
    return _merge([_cut(page, wanted, listed) for page in by_archived])


def _merge(pages: Sequence[Select[str]]) -> CompoundSelect[str]:
    return union_all(*(select(page.subquery().c[0]) for page in pages))


def _cut(query: Select[str], wanted: JobFilter, listed: _Listed) -> Select[str]:
    return query.order_by(listed.created_at.desc(), listed.id.desc()).limit(wanted.limit)


def _archived_values(wanted: JobFilter) -> tuple[bool, ...]:
    return (False, True) if wanted.archived is None else (wanted.archived,)


def _index_conditions(wanted: JobFilter, listed: _Listed) -> list[ColumnElement[bool]]:
    """Return the conditions that need only the entries of an index."""
    user = wanted.visible_to
    return _time_conditions(wanted, listed) + _conditions(
        (wanted.id_prefix, lambda prefix: _has_id_prefix(listed, prefix)),
        (wanted.kind, lambda kind: listed.kind == kind),
        (wanted.owner, lambda owner: listed.owner == owner),
        (user, lambda user: or_(listed.owner == user, listed.owner.is_(None))),
    )


def _time_conditions(wanted: JobFilter, listed: _Listed) -> list[ColumnElement[bool]]:
    """Return the conditions that bound a range of an index."""
    place = tuple_(listed.created_at, listed.id)
    return _conditions(
        (wanted.before, lambda last: place < last),
        (wanted.created_after, lambda time: listed.created_at >= time),
        (wanted.created_before, lambda time: listed.created_at < time),
    )


def _row_conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    """Return the conditions that need the rows of the jobs, or an index of them."""
    return _conditions(
        (wanted.statuses or None, JobRow.status.in_),
        (wanted.desired or None, JobRow.desired.in_),
        (wanted.name, lambda name: JobRow.name == name),
        # LIKE ignores case in SQLite only.
        (wanted.name_prefix, lambda start: func.substr(JobRow.name, 1, len(start)) == start),
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
    """Look a label up by the primary key, which neither database turns into a join."""
    (key, value), row = label, aliased(JobLabelRow)
    found = select(row.value).where(row.job_id == listed.id, row.key == key)
    return found.scalar_subquery() == value


def _is_archived(listed: _Listed, archived: bool) -> ColumnElement[bool]:
    """An equation, which an index serves on both databases."""
    return listed.archived == _constant(archived)


def _constant(value: bool) -> ColumnElement[bool]:
    return true() if value else false()


def _has_id_prefix(listed: _Listed, prefix: str) -> ColumnElement[bool]:
    """A range of full ids can use the primary key in every collation."""
    lowest, highest = (prefix + end[len(prefix) :] for end in (_LOWEST_ID, _HIGHEST_ID))
    return listed.id.between(lowest, highest)


__all__ = ["MAX_LOOKUPS", "JobFilter", "read_page"]
