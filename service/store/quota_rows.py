"""Quotas in the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from service.domain.access import Caller
from service.domain.quotas import ANY_USER, Quota, label_account, user_account
from service.errors import NotFound
from service.store.audit_log import append_audit
from service.store.database import Database
from service.store.models import QuotaRow, UserRow


class QuotaStore:
    """Writes quotas; `Repository.quotas` reads them."""

    def __init__(self, database: Database, clock: Callable[[], float], caller: Caller) -> None:
        self._database = database
        self._clock = clock
        self._caller = caller

    def set_user_quota(self, name: str, quota: Quota) -> str:
        """Set the quota of a user, or of any user; return its account.

        Raises:
            NotFound: there is no such user.
        """
        with self._database.write() as session:
            if name != ANY_USER and session.get(UserRow, name) is None:
                raise NotFound(
                    f"there is no user {name!r}; GET /api/v1/users lists all, and {ANY_USER!r} is"
                    " any user without a quota"
                )
            return self._set_quota(session, user_account(name), quota)

    def set_label_quota(self, key: str, value: str, quota: Quota) -> str:
        """Set the quota of the jobs with a label; return its account."""
        with self._database.write() as session:
            return self._set_quota(session, label_account(key, value), quota)

    def remove_quota(self, account: str) -> Quota:
        """Remove a quota, and return it.

        Raises:
            NotFound: there is none.
        """
        with self._database.write() as session:
            row = session.get(QuotaRow, account, with_for_update=True)
            if row is None:
                raise NotFound(f"{account} has no quota; GET /api/v1/quotas lists all")
            session.delete(row)
            self._append_audit(session, "quota.removed", account, before=_describe_limits(row))
            return Quota(jobs=row.jobs, workers=row.workers, gpus=row.gpus)

    def _set_quota(self, session: Session, account: str, quota: Quota) -> str:
        row = session.get(QuotaRow, account, with_for_update=True)
        before = None if row is None else _describe_limits(row)
        if row is None:
            row = QuotaRow(account=account)
            session.add(row)
        row.jobs, row.workers, row.gpus = quota.jobs, quota.workers, quota.gpus
        after = _describe_limits(row)
        if after != before:
            row.changed_at = self._clock()
            self._append_audit(session, "quota.set", account, before=before, after=after)
        return account

    def _append_audit(
        self, session: Session, action: str, account: str, **values: dict[str, Any] | None
    ) -> None:
        append_audit(session, self._caller, action, subject=account, now=self._clock(), **values)


def _describe_limits(row: QuotaRow) -> dict[str, Any]:
    return {"jobs": row.jobs, "workers": row.workers, "gpus": row.gpus}
