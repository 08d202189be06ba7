"""Routes for the secrets of users, which the `env` of a spec refers to by name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Query
from pydantic import Field

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Caller, Scope, describe_missing_scope
from accordion_service.errors import Conflict, Forbidden, Invalid, SettingsError, Unavailable
from accordion_service.schemas.queries import QueryParams
from accordion_service.schemas.secrets import SecretList, SecretRequest, SecretView
from accordion_service.settings.secret_box import (
    MAKE_KEY_FIRST,
    SecretBox,
    ServiceKey,
    create_secret_box,
    describe_wrong_key,
    find_service_key,
    open_secret_box,
)
from accordion_service.store.tables.models import SecretRow
from accordion_service.store.writes.secret_refs import (
    describe_missing,
    describe_unreadable,
    locate_env_secrets,
)
from accordion_service.store.writes.secrets import SecretStore
from accordion_workers.records.contract import SECRET_NAME_PATTERN, JobSpec

router = APIRouter(prefix="/secrets", tags=["secrets"], responses=describe_problems())
_SecretName = Annotated[
    str, Path(max_length=63, pattern=SECRET_NAME_PATTERN, description="name of the secret")
]
_log = structlog.get_logger()


class _SettingQuery(QueryParams):
    """Query parameters of a new value of a secret."""

    force: bool = Field(
        default=False,
        description="if the key of the service is gone, make a new one although other secrets were"
        " encrypted with it, which must be set again; needs the scope `admin`",
    )


class _RemovalQuery(QueryParams):
    """Query parameters of the removal of a secret."""

    force: bool = Field(
        default=False, description="remove it although jobs of yours, or their loggers, need it"
    )


@router.get("", dependencies=[require_scope(Scope.READ), NO_QUERY])
def get_secrets(state: StateDep, caller: CallerDep) -> SecretList:
    """List your secrets, without their values, and whether jobs can use them."""
    rows, key = _store_of(state).list_secrets(caller.user), find_service_key(state.settings)
    return SecretList(items=[_describe_secret(row, key) for row in rows])


@router.put(
    "/{name}",
    dependencies=[require_scope(Scope.SUBMIT), *WRITES_ROWS],
    responses=describe_problems(400, 409, 415),
)
def set_secret(
    name: _SecretName,
    query: Annotated[_SettingQuery, Query()],
    body: SecretRequest,
    *,
    state: StateDep,
    caller: CallerDep,
) -> SecretView:
    """Set one of your secrets; it replaces the previous value. Jobs get the value that the secret
    has when an attempt starts. It is refused while the key of the service is gone and other
    secrets, or those of webhooks, can be decrypted with that key only, unless `force` is set.
    """
    makes_key = _open_box(state) is None
    box = create_box(state, caller, secret=name, force=query.force)
    encrypted = box.encrypt(body.value)
    row = _store_of(state).set_secret(caller, name, encrypted, makes_key=makes_key)
    return _describe_secret(row, find_service_key(state.settings))


@router.delete(
    "/{name}",
    dependencies=[require_scope(Scope.SUBMIT), *WRITES_ROWS],
    responses=describe_problems(404, 409),
)
def remove_secret(
    name: _SecretName,
    query: Annotated[_RemovalQuery, Query()],
    *,
    state: StateDep,
    caller: CallerDep,
) -> SecretView:
    """Remove one of your secrets. It is refused while unfinished jobs of yours use the secret, in
    `env` or in loggers, or loggers of ended ones still send, unless `force` is set: then workers
    that run keep its value, and an attempt or logger that starts without it fails.
    """
    row = _store_of(state).remove_secret(caller, name, force=query.force)
    return _describe_secret(row, find_service_key(state.settings))


def check_secrets(state: AppState, caller: Caller, spec: JobSpec, *, pointer: str = "/env") -> None:
    """Check that the caller has the secrets that the variables of a spec refer to.

    Raises:
        Invalid: one is missing, or cannot be decrypted: the key of the service is another one, or
            it is gone.
        Unavailable: the key of the service cannot be read.
    """
    check_owned(state, caller, locate_env_secrets(spec, pointer))


def check_owned(state: AppState, caller: Caller, name_by_pointer: Mapping[str, str]) -> None:
    """Check that the caller has the secrets that are named at these places of a body.

    Raises:
        Invalid: one is missing, or cannot be decrypted: the key of the service is another one, or
            it is gone.
        Unavailable: the key of the service cannot be read.
    """
    if not name_by_pointer:
        return
    known = _store_of(state).read_encrypted(caller.user, set(name_by_pointer.values()))
    box = _open_box(state)
    for place, name in name_by_pointer.items():
        if name not in known:
            raise Invalid(describe_missing(caller.user, name), place)
        if box is None or not box.can_decrypt(known[name]):
            why = describe_unreadable(caller.user, [name], describe_wrong_key(state.settings, box))
            first = MAKE_KEY_FIRST if box is None else ""
            raise Invalid(f"{why} (PUT /api/v1/secrets/{name}){first}", place)


def create_box(
    state: AppState, caller: Caller, *, secret: str = "", webhook: str = "", force: bool = False
) -> SecretBox:
    """Return the box that encrypts a value of this secret or webhook of the caller; the first one
    creates its key.

    Raises:
        Conflict: the key is gone, only it decrypts other values, and `force` is not set.
        Forbidden: `force` gives these values up, but the caller is not an admin.
        Unavailable: the key of the service cannot be read or written.
    """
    # Counted first: if another process makes the first key meanwhile, it is found below.
    num_others = _store_of(state).count_others(caller.user, secret=secret, webhook=webhook)
    if num_others and _open_box(state) is None:
        _check_new_key(state, caller, num_others, force=force)
    try:
        return create_secret_box(state.settings)
    except SettingsError as error:
        raise _unusable_key(error) from error
    except OSError as error:
        raise Unavailable(
            f"the key of secrets cannot be written to {state.settings.home_secrets_key}"
            f" ({error.strerror}); free some space, or give one in ACCORDION_SECRETS_KEY_FILE"
        ) from error


def _check_new_key(state: AppState, caller: Caller, num_others: int, *, force: bool) -> None:
    """Check that the caller gives up the lost key, and with it the `num_others` values that only it
    decrypts.

    Raises:
        Conflict: `force` is not set.
        Forbidden: `force` is set by a caller who is not an admin.
    """
    if force and Scope.ADMIN not in caller.scopes:
        raise Forbidden(describe_missing_scope(caller, Scope.ADMIN))
    if force:
        _log.warning("new key of secrets", user=caller.user, num_unreadable=num_others)
        return
    others = "1 other secret" if num_others == 1 else f"{num_others} other secrets"
    raise Conflict(
        f"the key of the service is gone ({state.settings.home_secrets_key} does not exist), and"
        f" {others} of jobs and webhooks can be decrypted with it only; put it back there, in"
        " ACCORDION_SECRETS_KEY_FILE or in ACCORDION_SECRETS_KEY. If it is lost, an admin makes a"
        " new one with 'accordion secret set NAME --force' (PUT /api/v1/secrets/NAME?force=true),"
        " and the others must be set again"
    )


def _open_box(state: AppState) -> SecretBox | None:
    """Return the box of the service's key; None while it has none.

    Raises:
        Unavailable: the key cannot be read.
    """
    try:
        return open_secret_box(state.settings)
    except SettingsError as error:
        raise _unusable_key(error) from error


def _unusable_key(error: SettingsError) -> Unavailable:
    return Unavailable(f"secrets cannot be encrypted or decrypted: {error}")


def _store_of(state: AppState) -> SecretStore:
    return SecretStore(state.database, state.clock)


def _describe_secret(row: SecretRow, key: ServiceKey) -> SecretView:
    return SecretView(
        name=row.name,
        set_at=datetime.fromtimestamp(row.set_at, UTC),
        readable=key.can_decrypt(row.encrypted),
    )
