"""Plans in the database: predictions that users request, and the answers of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import uuid_utils
from sqlalchemy import delete, func, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.jobs.plans import PlanStatus
from accordion_service.errors import Conflict, Forbidden, NotFound, Unavailable
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import PlanRow
from accordion_service.store.writes.audit import append_audit

MAX_OPEN = 20
"""Largest number of plans that wait or run; each takes half a minute or more."""
KEPT_S = 86_400.0
"""Seconds for which a plan that has ended is kept."""
_OPEN = (PlanStatus.QUEUED, PlanStatus.RUNNING)


class PlanStore:
    """Reads and writes plans."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def add(self, caller: Caller, request: Mapping[str, Any]) -> PlanRow:
        """Store a request, and remove plans that ended and are older than a day.

        Raises:
            Unavailable: too many plans wait already.
        """
        now = self._clock()
        with self._database.write() as session:
            session.execute(
                delete(PlanRow).where(
                    PlanRow.created_at < now - KEPT_S, PlanRow.status.not_in(_OPEN)
                )
            )
            waiting = session.scalar(
                select(func.count()).select_from(PlanRow).where(PlanRow.status.in_(_OPEN))
            )
            if waiting is not None and waiting >= MAX_OPEN:
                raise Unavailable(
                    f"{waiting} plans wait or run, and at most {MAX_OPEN} may; try again in some"
                    " minutes, or run 'accordion plan' on a machine with the workers' packages"
                )
            row = PlanRow(
                id=str(uuid_utils.uuid7()),
                owner=caller.user,
                status=PlanStatus.QUEUED,
                request=dict(request),
                created_at=now,
            )
            session.add(row)
            after = {"link": request["link"], "task": request["spec"]["task"]["name"]}
            append_audit(
                session, caller, AuditAction.PLAN_ADDED, subject=row.id, after=after, now=now
            )
            return row

    def get(self, caller: Caller, plan_id: str) -> PlanRow:
        """Get a plan.

        Raises:
            NotFound: there is none with this ID, or the caller may not see it.
        """
        with self._database.read() as session:
            return _get_row(session, caller, plan_id)

    def oldest_open(self) -> PlanRow | None:
        """Get the running plan, or else the one that has waited longest; None if there is none."""
        oldest = select(PlanRow).where(PlanRow.status.in_(_OPEN))
        with self._database.read() as session:
            return session.scalar(
                oldest.order_by(PlanRow.status.desc(), PlanRow.created_at, PlanRow.id).limit(1)
            )

    def start(self, plan_id: str) -> None:
        """Mark a waiting plan as running; a running one stays as it is."""
        self._update(
            plan_id, PlanStatus.QUEUED, status=PlanStatus.RUNNING, started_at=self._clock()
        )

    def succeed(self, plan_id: str, answer: Mapping[str, Any]) -> bool:
        """Store the answer of a running plan; return whether it was running."""
        return self._update(
            plan_id, PlanStatus.RUNNING, status=PlanStatus.SUCCEEDED, answer=dict(answer)
        )

    def fail(self, plan_id: str, message: str) -> bool:
        """Store why a running plan has no answer; return whether it was running."""
        return self._update(plan_id, PlanStatus.RUNNING, status=PlanStatus.FAILED, message=message)

    def cancel(self, caller: Caller, plan_id: str) -> PlanRow:
        """Cancel an unfinished plan; a cancelled one does not change.

        Raises:
            NotFound: there is none with this ID, or the caller may not see it.
            Forbidden: the caller may not change it.
            Conflict: it has succeeded or failed.
        """
        with self._database.write() as session:
            row = _get_row(session, caller, plan_id, for_update=True)
            if not caller.may_change(row.owner):
                raise Forbidden(
                    f"plan {plan_id} belongs to user {row.owner!r}; to change plans of other users,"
                    " use a token with the scope 'write:all'"
                )
            if row.status == PlanStatus.CANCELLED:
                return row
            if row.status not in _OPEN:
                raise Conflict(f"the plan has ended already: it is {row.status}")
            before = {"status": row.status}
            session.execute(
                update(PlanRow)
                .where(PlanRow.id == plan_id)
                .values({PlanRow.status: PlanStatus.CANCELLED})
            )
            append_audit(
                session,
                caller,
                AuditAction.PLAN_CANCELLED,
                subject=row.id,
                before=before,
                now=self._clock(),
            )
            return row

    def _update(self, plan_id: str, before: PlanStatus, **values: Any) -> bool:
        """Change a plan unless its status has changed meanwhile; return whether it was changed."""
        with self._database.write() as session:
            found = session.execute(
                update(PlanRow)
                .where(PlanRow.id == plan_id, PlanRow.status == before)
                .values(**values)
            )
            return isinstance(found, CursorResult) and found.rowcount == 1


def _get_row(
    session: Session, caller: Caller, plan_id: str, *, for_update: bool = False
) -> PlanRow:
    row = session.get(PlanRow, plan_id, with_for_update=for_update)
    if row is None or not caller.may_see(row.owner):
        raise NotFound(
            f"there is no plan with the ID {plan_id}; plans are kept for a day, and 'accordion"
            " plan' (POST /api/v1/plans) makes another one"
        )
    return row
