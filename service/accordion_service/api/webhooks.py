"""Routes for webhooks, which notify other programs when a job changes its status."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.api.receiver_checks import check_receiver
from accordion_service.api.secrets import create_box
from accordion_service.domain.access import Scope
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.domain.webhooks.signatures import new_signing_secret
from accordion_service.domain.webhooks.targets import WebhookTarget
from accordion_service.schemas.queries import QueryParams
from accordion_service.schemas.webhooks import (
    WEBHOOK_NAME,
    DeliveryPage,
    DeliveryView,
    NewWebhook,
    WebhookList,
    WebhookRequest,
    WebhookView,
)
from accordion_service.store.reads.webhooks import ALL_USERS
from accordion_service.store.tables.models import DeliveryRow
from accordion_service.store.writes.webhooks import (
    CountedWebhook,
    DeliveryFilter,
    RequestedWebhook,
    WebhookStore,
)

router = APIRouter(prefix="/webhooks", tags=["webhooks"], responses=describe_problems())
_WebhookName = Annotated[
    str, Path(max_length=63, pattern=WEBHOOK_NAME, description="name of the webhook")
]
_DeliveryId = Annotated[
    str,
    Path(min_length=1, max_length=36, pattern=r"^[A-Za-z0-9-]+$", description="ID of the delivery"),
]


class _DeliveryQuery(QueryParams):
    """Query parameters of the list of deliveries."""

    state: DeliveryState | None = Field(
        default=None, description="only deliveries in this state (default: all)"
    )
    limit: int = Field(default=50, ge=1, le=200, description="deliveries per page (default 50)")
    cursor: str | None = Field(
        default=None,
        min_length=1,
        max_length=36,
        pattern=r"^[A-Za-z0-9-]+$",
        description="`next_cursor` of the previous page",
    )


@router.get("", dependencies=[require_scope(Scope.READ), NO_QUERY])
def get_webhooks(state: StateDep, caller: CallerDep) -> WebhookList:
    """List your webhooks, without their secrets."""
    found = _store_of(state).list_webhooks(caller.user)
    return WebhookList(items=[_describe_webhook(one) for one in found])


@router.post(
    "",
    status_code=201,
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 409, 415),
)
def add_webhook(
    body: WebhookRequest, *, request: Request, state: StateDep, caller: CallerDep
) -> NewWebhook:
    """Add a webhook. Only this response contains its secret.

    Each change of a job to one of `statuses` is sent as a POST request, at least once. The body
    `{"type": "job.status", "timestamp": ..., "data": {...}}` has the job's `job_id`, `name`,
    `owner`, `labels`, `status`, `previous_status`, `reason`, `message`, `url`, `by`, the user who
    requested the change (null if the service or the workers caused it), and the number of the
    `event`, by which the receiver can order messages. The headers `webhook-id`,
    `webhook-timestamp` and `webhook-signature` are those of the Standard Webhooks specification;
    the ID is the same in every attempt. A response from 200 to 299 within 10 seconds confirms the
    delivery. Otherwise it is tried again for 20 hours, with growing delays.
    """
    target = check_receiver(state, body.url, user=caller.user, pointer="/url")
    secret = new_signing_secret()
    wanted = RequestedWebhook(
        name=body.name or _name_after(target),
        url=body.url,
        statuses=list(dict.fromkeys(body.statuses)),
        label=body.label,
        all_jobs=body.all_jobs,
        service_url=state.settings.url or str(request.base_url),
        encrypted=create_box(state, caller).encrypt(secret),
    )
    row = _store_of(state).add_webhook(caller, wanted)
    view = _describe_webhook(CountedWebhook(row=row))
    return NewWebhook(**view.model_dump(), secret=secret)


@router.post(
    "/{name}/secret",
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404, 409),
)
def rotate_secret(name: _WebhookName, state: StateDep, caller: CallerDep) -> NewWebhook:
    """Give a webhook a new secret. Only this response contains it.

    For 24 hours, `webhook-signature` has a signature by each secret, separated by spaces, so that
    the receiver can take the new one at any time. If the service's key has changed since the old
    secret was made, it is valid no longer, and `previous_secret_until` is null. Each request makes
    another secret; at most three replaced ones are valid at a time.
    """
    secret, box = new_signing_secret(), create_box(state, caller, webhook=name)
    found = _store_of(state).rotate_secret(
        caller, name, box.encrypt(secret), is_readable=box.can_decrypt
    )
    return NewWebhook(**_describe_webhook(found).model_dump(), secret=secret)


@router.delete(
    "/{name}",
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404),
)
def remove_webhook(name: _WebhookName, state: StateDep, caller: CallerDep) -> WebhookView:
    """Remove a webhook with its deliveries, also those that wait."""
    row = _store_of(state).remove_webhook(caller, name)
    return _describe_webhook(CountedWebhook(row=row))


@router.get(
    "/{name}/deliveries",
    dependencies=[require_scope(Scope.READ)],
    responses=describe_problems(404),
)
def get_deliveries(
    name: _WebhookName,
    query: Annotated[_DeliveryQuery, Query()],
    *,
    state: StateDep,
    caller: CallerDep,
) -> DeliveryPage:
    """List the deliveries of a webhook, newest first, in pages. Pass `next_cursor` as `cursor` to
    get the next page. Those that succeeded are kept for 7 days, and those that were given up for 30
    days, unless their job is deleted before.
    """
    wanted = DeliveryFilter(limit=query.limit + 1, state=query.state, before_id=query.cursor)
    rows = _store_of(state).list_deliveries(caller, name, wanted)
    page = rows[: query.limit]
    return DeliveryPage(
        items=[_describe_delivery(row) for row in page],
        next_cursor=page[-1].id if len(rows) > len(page) else None,
    )


@router.post(
    "/{name}/deliveries/{delivery_id}/send",
    status_code=202,
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404, 409),
)
def send_delivery(
    name: _WebhookName, delivery_id: _DeliveryId, *, state: StateDep, caller: CallerDep
) -> DeliveryView:
    """Send a delivery again, in whatever state it is: at once, and then with all attempts of a new
    one. The receiver gets the same ID and body.
    """
    return _describe_delivery(_store_of(state).send_again(caller, name, delivery_id))


@router.post(
    "/{name}/test",
    status_code=202,
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404, 409),
)
def test_webhook(name: _WebhookName, state: StateDep, caller: CallerDep) -> DeliveryView:
    """Send a message of type `webhook.test`; its delivery says whether the receiver got it."""
    return _describe_delivery(_store_of(state).queue_test(caller, name))


def _name_after(target: WebhookTarget) -> str:
    """Return a name for the webhook of a URL."""
    return re.sub(r"[^a-z0-9.-]", "-", target.host)[:63].strip(".-") or "webhook"


def _store_of(state: AppState) -> WebhookStore:
    return WebhookStore(state.database, state.clock)


def _describe_webhook(found: CountedWebhook) -> WebhookView:
    row = found.row
    return WebhookView(
        name=row.name,
        url=row.url,
        statuses=[str(status) for status in row.statuses],
        label=row.label,
        all_jobs=row.jobs_of == ALL_USERS,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        disabled_reason=row.disabled_reason,
        pending=found.pending,
        dead=found.dead,
        previous_secret_until=None
        if found.previous_until is None
        else datetime.fromtimestamp(found.previous_until, UTC),
    )


def _describe_delivery(row: DeliveryRow) -> DeliveryView:
    return DeliveryView.model_validate(row)
