"""Routes for the secrets of users, which the `env` of a spec refers to by name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from service.api.app_state import AppState
from service.api.callers import CallerDep, require_scope
from service.api.deps import NO_QUERY, WRITES_ROWS, QueryParams, StateDep
from service.api.problems import describe_problems
from service.api.secret_schemas import SecretList, SecretRequest, SecretView
from service.domain.access import Caller, Scope
from service.errors import Invalid, SettingsError, Unavailable
from service.security.secret_box import SecretBox, WrongKeyError, create_secret_box
from service.store.models import SecretRow
from service.store.secret_refs import describe_missing, locate_env_secrets
from service.store.secret_rows import SecretStore
from workers.contract import SECRET_NAME_PATTERN, JobSpec

router = APIRouter(prefix="/secrets", tags=["secrets"], responses=describe_problems())
_SecretName = Annotated[
    str, Path(max_length=63, pattern=SECRET_NAME_PATTERN, description="name of the secret")
]


class _RemovalQuery(QueryParams):
    """Query parameters of the removal of a secret."""

    force: bool = Field(
        default=False, description="remove it although jobs of yours, or their loggers, need it"
    )


@router.get("", dependencies=[require_scope(Scope.READ), NO_QUERY])
def get_secrets(state: StateDep, caller: CallerDep) -> SecretList:
    """List your secrets, without their values."""
    rows = _store_of(state).list_secrets(caller.user)
    return SecretList(items=[_describe_secret(row) for row in rows])


@router.put(
    "/{name}",
    dependencies=[require_scope(Scope.SUBMIT), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 409, 415),
)
def set_secret(
    name: _SecretName, body: SecretRequest, *, state: StateDep, caller: CallerDep
) -> SecretView:
    """Set one of your secrets; it replaces the previous value. Jobs get the value that the secret
    has when an attempt starts.
    """
    encrypted = create_box(state).encrypt(body.value)
    return _describe_secret(_store_of(state).set_secret(caller, name, encrypted))


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
    return _describe_secret(_store_of(state).remove_secret(caller, name, force=query.force))


def check_secrets(state: AppState, caller: Caller, spec: JobSpec, *, pointer: str = "/env") -> None:
    """Check that the caller has the secrets that the variables of a spec refer to.

    Raises:
        Invalid: one is missing, or was encrypted with another key.
        Unavailable: the key of the service cannot be read or written.
    """
    check_owned(state, caller, locate_env_secrets(spec, pointer))


def check_owned(state: AppState, caller: Caller, name_by_pointer: Mapping[str, str]) -> None:
    """Check that the caller has the secrets that are named at these places of a body.

    Raises:
        Invalid: one is missing, or was encrypted with another key.
        Unavailable: the key of the service cannot be read or written.
    """
    if not name_by_pointer:
        return
    known = _store_of(state).read_encrypted(caller.user, set(name_by_pointer.values()))
    box = create_box(state)
    for place, name in name_by_pointer.items():
        if name not in known:
            raise Invalid(describe_missing(caller.user, name), place)
        try:
            box.decrypt(known[name])
        except WrongKeyError:
            raise Invalid(
                f"the secret {name!r} was encrypted with another key than the service has now; set"
                f" it again with 'accordion secret set {name}' (PUT /api/v1/secrets/{name})",
                place,
            ) from None


def _store_of(state: AppState) -> SecretStore:
    return SecretStore(state.database, state.clock)


def create_box(state: AppState) -> SecretBox:
    """Return the box that encrypts secrets; the first one creates its key.

    Raises:
        Unavailable: the key of the service cannot be read or written.
    """
    try:
        return create_secret_box(state.settings)
    except SettingsError as error:
        raise Unavailable(f"secrets cannot be encrypted: {error}") from error
    except OSError as error:
        raise Unavailable(
            f"the key of secrets cannot be written to {state.settings.home_secrets_key}"
            f" ({error.strerror}); free some space, or give one in ACCORDION_SECRETS_KEY_FILE"
        ) from error


def _describe_secret(row: SecretRow) -> SecretView:
    return SecretView(name=row.name, set_at=datetime.fromtimestamp(row.set_at, UTC))
