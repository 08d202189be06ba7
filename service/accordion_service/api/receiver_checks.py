"""Checks of the URLs at which users let the service send requests."""

from __future__ import annotations

from accordion_service.access.host_lookup import LookupFailed, LookupPostponed, look_up_host
from accordion_service.api.app_state import AppState
from accordion_service.domain.webhooks.targets import (
    RefusedTarget,
    WebhookTarget,
    choose_address,
    parse_target,
)
from accordion_service.errors import Invalid

_LOOKUP_S = 2.0
"""Longest wait for the address of a receiver, which is checked again before each request."""


def check_receiver(state: AppState, url: str, *, user: str, pointer: str) -> WebhookTarget:
    """Parse the URL of a user's new receiver, and check its address if its host has one now.

    Raises:
        Invalid: the URL is malformed, or no receiver may have its address.
    """
    try:
        target = parse_target(url)
        found = look_up_host(target.host, _LOOKUP_S, user)
        choose_address(target, found, state.settings.webhook_networks)
    except RefusedTarget as error:
        raise Invalid(str(error), pointer) from None
    except (LookupFailed, LookupPostponed):
        # A receiver may get its name later; each attempt checks the address.
        pass
    return target


__all__ = ["check_receiver"]
