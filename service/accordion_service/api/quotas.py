"""Routes for quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Scope
from accordion_service.domain.capacity.quota_reservations import measure_usage
from accordion_service.domain.capacity.quotas import (
    ANY_USER,
    Quota,
    QuotaUsage,
    Usage,
    label_account,
    split_account,
    user_account,
)
from accordion_service.errors import Invalid
from accordion_service.job_inputs.queue import QueueReader
from accordion_service.schemas.queries import QueryParams
from accordion_service.schemas.quotas import (
    LABEL,
    USER_OR_ANY,
    QuotaList,
    QuotaRequest,
    QuotaUsageView,
    QuotaView,
)
from accordion_service.store.reads.quotas import read_quotas
from accordion_service.store.writes.quotas import QuotaStore

router = APIRouter(prefix="/quotas", tags=["quotas"], responses=describe_problems())


class _AccountQuery(QueryParams):
    """Query parameters that name a quota; one of them is required."""

    user: str | None = Field(
        default=None, max_length=63, pattern=USER_OR_ANY, description="user of the quota, or `*`"
    )
    label: str | None = Field(
        default=None, max_length=127, pattern=LABEL, description="label of the quota, `key:value`"
    )


@router.get("", dependencies=[require_scope(Scope.READ), NO_QUERY])
def get_quotas(state: StateDep, caller: CallerDep) -> QuotaList:
    """List all quotas, and what the jobs hold of them."""
    table, usage = read_quotas(state.database), _measure_usage(state)
    accounts = sorted(table.quotas, key=lambda one: (split_account(one).user is None, one))
    items = [_describe_quota(account, table.quotas[account], usage) for account in accounts]
    for quota in items:
        for user in list(quota.used_by_user):
            if not caller.may_see(user):
                del quota.used_by_user[user]
    return QuotaList(items=items)


@router.put(
    "",
    dependencies=[require_scope(Scope.ADMIN), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 404, 415),
)
def set_quota(body: QuotaRequest, state: StateDep, caller: CallerDep) -> QuotaView:
    """Set the quota of a user or a label; it replaces the previous one. Jobs that run keep their
    workers; waiting ones start, and running ones grow, as far as it allows.
    """
    quota = Quota(jobs=body.jobs, workers=body.workers, gpus=body.gpus)
    account = _find_account(body.user, body.label)
    QuotaStore(state.database, state.clock, caller).set_quota(account, quota)
    return _describe_quota(account, quota, _measure_usage(state))


@router.delete(
    "",
    dependencies=[require_scope(Scope.ADMIN), *WRITES_ROWS],
    responses=describe_problems(404),
)
def remove_quota(
    query: Annotated[_AccountQuery, Query()], state: StateDep, caller: CallerDep
) -> QuotaView:
    """Remove the quota of a user or a label, and return it as it was."""
    if (query.user is None) == (query.label is None):
        raise Invalid("give either 'user' or 'label'", "query/user")
    account = _find_account(query.user, query.label)
    usage = _measure_usage(state)
    quota = QuotaStore(state.database, state.clock, caller).remove_quota(account)
    return _describe_quota(account, quota, usage)


def _find_account(user: str | None, label: str | None) -> str:
    """Return the account of a user or of a label `key:value`, whichever is given."""
    if user is not None:
        return user_account(user)
    key, _, value = (label or "").partition(":")
    return label_account(key, value)


def _measure_usage(state: AppState) -> QuotaUsage:
    reader = QueueReader(state.database, state.settings)
    jobs = reader.list_allocated(state.queue.allocated())
    return measure_usage(jobs, reader.rules.quotas)


def _describe_quota(account: str, quota: Quota, usage: QuotaUsage) -> QuotaView:
    subject = split_account(account)
    for_any = subject.user == ANY_USER
    others = usage.list_other_users() if for_any else {}
    return QuotaView(
        user=subject.user,
        label=subject.label,
        jobs=quota.jobs,
        workers=quota.workers,
        gpus=quota.gpus,
        used=None if for_any else _describe_usage(usage.find_usage(account)),
        used_by_user={user: _describe_usage(used) for user, used in others.items()},
    )


def _describe_usage(used: Usage) -> QuotaUsageView:
    return QuotaUsageView(jobs=used.jobs, workers=used.workers, gpus=used.gpus)
