"""Routes for users, their tokens, and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import (
    NO_QUERY,
    WRITES_ROWS,
    StateDep,
)
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import USER_NAME, Caller, Scope, describe_missing_scope
from accordion_service.domain.tokens import DAY_S, TOKEN_ID, new_token
from accordion_service.errors import Forbidden
from accordion_service.schemas.accounts import (
    AuditEntry,
    AuditPage,
    CallerView,
    NewToken,
    TokenList,
    TokenRequest,
    TokenView,
    UserChange,
    UserList,
    UserRequest,
    UserView,
)
from accordion_service.schemas.queries import AuditQuery, QueryParams
from accordion_service.store.reads.audit import read_audit
from accordion_service.store.reads.audit_subjects import read_subject_names
from accordion_service.store.writes.accounts import AccountStore, RequestedToken

router = APIRouter(tags=["accounts"], responses=describe_problems())
_UserName = Annotated[str, Path(max_length=63, pattern=USER_NAME, description="name of the user")]
_TokenId = Annotated[
    str, Path(max_length=16, pattern=TOKEN_ID, description="ID of the token, without `acc_`")
]


class _TokenQuery(QueryParams):
    """Query parameters of the list of tokens."""

    user: str | None = Field(
        default=None,
        max_length=63,
        pattern=USER_NAME,
        description="user whose tokens to list (default: you); others need the scope `admin`",
    )


class _AuditPageQuery(AuditQuery):
    """Query parameters of the audit log."""

    limit: int = Field(default=50, ge=1, le=200, description="entries per page (default 50)")
    cursor: int | None = Field(
        default=None, ge=1, lt=2**63, description="`next_cursor` of the previous page"
    )


@router.get("/me", dependencies=[require_scope(Scope.READ), NO_QUERY])
async def get_caller(caller: CallerDep) -> CallerView:
    """Show who you are, and what your token allows."""
    return CallerView(
        user=caller.user,
        scopes=sorted(caller.scopes),
        token_id=caller.token_id,
        expires_at=caller.expires_at,
    )


@router.get("/tokens", dependencies=[require_scope(Scope.READ)], responses=describe_problems())
def get_tokens(
    query: Annotated[_TokenQuery, Query()], state: StateDep, caller: CallerDep
) -> TokenList:
    """List tokens, newest first, with those that were revoked or expired in the last 90 days."""
    user = query.user or caller.user
    if user != caller.user and Scope.ADMIN not in caller.scopes:
        raise Forbidden(describe_missing_scope(caller, Scope.ADMIN))
    rows = AccountStore(state.database, state.clock).tokens(user)
    return TokenList(items=[TokenView.model_validate(row) for row in rows])


@router.post(
    "/tokens",
    status_code=201,
    dependencies=[require_scope(Scope.TOKENS), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 404, 415),
)
def add_token(body: TokenRequest, state: StateDep, caller: CallerDep) -> NewToken:
    """Create a token. Only this response contains its text."""
    token = new_token()
    request = RequestedToken(
        user=body.user or caller.user,
        label=body.label,
        scopes=body.scopes,
        expires_at=_choose_expiry(body, caller, state.clock()),
    )
    row = AccountStore(state.database, state.clock).add_token(caller, token, request)
    view = TokenView.model_validate(row)
    return NewToken(**view.model_dump(), token=str(token))


def _choose_expiry(body: TokenRequest, caller: Caller, now: float) -> float | None:
    """Return the end that was asked for; the default ends with the caller's own token at latest."""
    expires_at = None if body.days is None else now + body.days * DAY_S
    is_default = "days" not in body.model_fields_set and body.user in {None, caller.user}
    ends = [end for end in (expires_at, caller.expires_at) if end is not None]
    return min(ends) if is_default else expires_at


@router.delete(
    "/tokens/{token_id}",
    dependencies=[require_scope(Scope.TOKENS), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404),
)
def revoke_token(token_id: _TokenId, state: StateDep, caller: CallerDep) -> TokenView:
    """Revoke a token, and those created with it: they are refused at once, also in browsers that
    they logged in. Repeating the request has no effect.
    """
    row = AccountStore(state.database, state.clock).revoke_token(caller, token_id)
    return TokenView.model_validate(row)


@router.get("/users", dependencies=[require_scope(Scope.ADMIN), NO_QUERY])
def get_users(state: StateDep) -> UserList:
    """List all users, by name."""
    rows = AccountStore(state.database, state.clock).users()
    return UserList(items=[UserView.model_validate(row) for row in rows])


@router.post(
    "/users",
    status_code=201,
    dependencies=[require_scope(Scope.ADMIN), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 409, 415),
)
def add_user(body: UserRequest, state: StateDep, caller: CallerDep) -> UserView:
    """Add a user. Create the user's first token with `POST /tokens`."""
    row = AccountStore(state.database, state.clock).add_user(caller, body.name, body.role)
    return UserView.model_validate(row)


@router.patch(
    "/users/{name}",
    dependencies=[require_scope(Scope.ADMIN), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 404, 409, 415),
)
def change_user(
    name: _UserName, body: UserChange, *, state: StateDep, caller: CallerDep
) -> UserView:
    """Change the role of a user, or disable the user. Jobs of a disabled user go on."""
    row = AccountStore(state.database, state.clock).change_user(
        caller, name, role=body.role, disabled=body.disabled
    )
    return UserView.model_validate(row)


@router.get("/audit", dependencies=[require_scope(Scope.AUDIT)])
def get_audit(query: Annotated[_AuditPageQuery, Query()], state: StateDep) -> AuditPage:
    """List the changes that users made and that match all filters, newest first, in pages. Pass
    `next_cursor` as `cursor` to get the next page.
    """
    rows = read_audit(state.database, query, limit=query.limit + 1, before_id=query.cursor)
    page = rows[: query.limit]
    names = read_subject_names(state.database, page)
    entries = [AuditEntry.model_validate(row) for row in page]
    return AuditPage(
        items=[entry.model_copy(update={"subject_name": names.get(entry.id)}) for entry in entries],
        next_cursor=page[-1].id if len(rows) > len(page) else None,
    )
