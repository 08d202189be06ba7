"""FastAPI dependencies: who makes the request, and the scope that a route requires."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from accordion_service.domain.access import Caller, Scope, describe_missing_scope
from accordion_service.errors import Forbidden


async def _caller(request: Request) -> Caller:
    """Return who makes the request, as the outermost layer found out."""
    caller: Caller = request.state.caller
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]


class RequiredScope:
    """Dependency of a route that refuses callers without a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, caller: CallerDep) -> None:
        """Check the caller.

        Raises:
            Forbidden: the caller's token does not have the scope.
        """
        check_scope(caller, self.scope)


def check_scope(caller: Caller, scope: Scope) -> None:
    """Check that the caller's token has a scope.

    Raises:
        Forbidden: it does not have it.
    """
    if scope not in caller.scopes:
        raise Forbidden(describe_missing_scope(caller, scope))


def require_scope(scope: Scope) -> Any:
    """Return the dependency that refuses callers without this scope."""
    return Depends(RequiredScope(scope))
