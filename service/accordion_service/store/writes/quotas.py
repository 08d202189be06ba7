"""Quotas in the database."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from accordion_service.domain.audit import AuditAction
from accordion_service.domain.capacity.quotas import ANY_USER, Quota, split_account
from accordion_service.errors import NotFound
from accordion_service.store.tables.models import QuotaRow, UserRow
from accordion_service.store.writes.caller_writes import CallerWrites


class QuotaStore(CallerWrites):
    """Writes quotas; `read_quotas` reads them."""

    def set_quota(self, account: str, quota: Quota) -> None:
        """Set the quota of an account; it replaces the previous one.

        Raises:
            NotFound: it is the account of a user who does not exist.
        """
        try:
            self._set_quota(account, quota)
        except IntegrityError:
            # PostgreSQL runs writers concurrently: another one inserted it meanwhile.
            self._set_quota(account, quota)

    def remove_quota(self, account: str) -> Quota:
        """Remove a quota, and return it.

        Raises:
            NotFound: there is none.
        """
        with self._database.write() as session:
            row = session.get(QuotaRow, account, with_for_update=True)
            if row is None:
                raise NotFound(
                    f"{account} has no quota; 'accordion quota list' (GET /api/v1/quotas) lists all"
                )
            session.delete(row)
            before, now = _describe_limits(row), self._clock()
            self._append_audit(session, AuditAction.QUOTA_REMOVED, account, before=before, now=now)
            return Quota(jobs=row.jobs, workers=row.workers, gpus=row.gpus)

    def _set_quota(self, account: str, quota: Quota) -> None:
        with self._database.write() as session:
            _check_user(session, split_account(account).user)
            row = session.get(QuotaRow, account, with_for_update=True)
            before = None if row is None else _describe_limits(row)
            if row is None:
                row = QuotaRow(account=account)
                session.add(row)
            row.jobs, row.workers, row.gpus = quota.jobs, quota.workers, quota.gpus
            after = _describe_limits(row)
            if after != before:
                row.changed_at = self._clock()
                action, now = AuditAction.QUOTA_SET, self._clock()
                self._append_audit(session, action, account, before=before, after=after, now=now)


def _check_user(session: Session, name: str | None) -> None:
    """Check that a quota is for a user who exists, or for any user.

    Raises:
        NotFound: there is no such user.
    """
    if name not in {None, ANY_USER} and session.get(UserRow, name) is None:
        raise NotFound(
            f"there is no user {name!r}; 'accordion user list' (GET /api/v1/users) lists all, and"
            f" {ANY_USER!r} is any user without a quota"
        )


def _describe_limits(row: QuotaRow) -> dict[str, Any]:
    return {"jobs": row.jobs, "workers": row.workers, "gpus": row.gpus}
