"""Filters of commands that list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from accordion_client import Client


def refuse_empty(filters: Mapping[str, Any], options: Mapping[str, str], *, without: str) -> None:
    """Check that no filter is empty, as with a variable of the shell that is not set.

    Args:
        filters: filters by the name of the request's parameter.
        options: options by that name, where they are called otherwise.
        without: what leaving a filter out is good for, such as "to list all jobs".

    Raises:
        BadParameter: one is empty.
    """
    for name, value in filters.items():
        if value == "" or (isinstance(value, list) and "" in value):
            option = options.get(name, name.replace("_", "-"))
            raise typer.BadParameter(f"--{option} is empty; leave it out {without}")


def describe_unknown_user(client: Client, user: str | None) -> str:
    """Return that there is no such user, to follow that nothing matches; empty if there is one, or
    if the caller may not see users.
    """
    from accordion_client import Refused
    from accordion_service.domain.access import ServiceUser

    if user is None or user in list(ServiceUser):
        return ""
    try:
        known = [one.name for one in client.users().items]
    except Refused:
        return ""
    return "" if user in known else f"; there is no user {user!r}, 'accordion user list' shows all"
