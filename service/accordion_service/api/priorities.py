"""Checks the priority that a user gives a job."""

from __future__ import annotations

from accordion_service.api.app_state import AppState
from accordion_service.domain.access import Caller, Scope
from accordion_service.errors import Invalid


def check_priority(state: AppState, caller: Caller, priority: int, *, pointer: str) -> None:
    """Check that the caller may give a job this priority.

    Raises:
        Invalid: it is above the limit of callers without `write:all`: a higher priority takes
            workers from jobs of other users.
    """
    limit = state.settings.max_priority
    if priority > limit and Scope.WRITE_ALL not in caller.scopes:
        raise Invalid(
            f"priority is {priority}; without the scope 'write:all', at most {limit} is allowed"
            " (ACCORDION_MAX_PRIORITY)",
            pointer,
        )
