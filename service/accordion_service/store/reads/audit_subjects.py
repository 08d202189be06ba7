"""Names of the jobs and tokens in the audit log, whose entries have only their IDs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session

from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import AuditRow, JobRow, TokenRow

_JOB_ACTIONS = ("job.", "override.")
_TOKEN_ACTIONS = ("token.",)
_Column = InstrumentedAttribute[str]


def read_subject_names(database: Database, entries: Collection[AuditRow]) -> dict[int, str]:
    """Return the names of the jobs, and the labels of the tokens, that these entries are about, by
    the IDs of the entries. A job that is deleted has the name that an entry of it has.
    """
    jobs = [entry for entry in entries if entry.action.startswith(_JOB_ACTIONS)]
    tokens = [entry for entry in entries if entry.action.startswith(_TOKEN_ACTIONS)]
    with database.read() as session:
        names = _read_by_id(session, (JobRow.id, JobRow.name), jobs)
        labels = _read_by_id(session, (TokenRow.id, TokenRow.label), tokens)
    names = {**_list_recorded_names(jobs), **names}
    found = {entry.id: names.get(entry.subject) for entry in jobs}
    found |= {entry.id: labels.get(entry.subject) for entry in tokens}
    return {entry_id: name for entry_id, name in found.items() if name}


def _read_by_id(
    session: Session, columns: tuple[_Column, _Column], entries: Iterable[AuditRow]
) -> dict[str, str]:
    subjects = {entry.subject for entry in entries}
    if not subjects:
        return {}
    rows = session.execute(select(*columns).where(columns[0].in_(subjects)))
    return {row[0]: row[1] for row in rows}


def _list_recorded_names(entries: Iterable[AuditRow]) -> dict[str, str]:
    """Return the names of jobs by ID as the entries have them."""
    found: dict[str, str] = {}
    for entry in entries:
        name = {**(entry.after or {}), **(entry.before or {})}.get("name")
        if isinstance(name, str):
            found.setdefault(entry.subject, name)
    return found
