"""How many requests a user may have open at once, and what is left for others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from accordion_service.api.http_connections import OpenConnections
from accordion_service.api.open_requests import OpenRequests
from accordion_service.domain.access import FULL_ACCESS, Caller, Scope
from accordion_service.errors import TooManyRequests, Unavailable

STREAM = "/api/v1/jobs/1/events"


def user(name: str, token: str, *, session: str = "", admin: bool = False) -> Caller:
    scopes = frozenset(Scope) if admin else frozenset({Scope.READ})
    return Caller(user=name, scopes=scopes, token_id=token, session_id=session)


def hold(
    places: ExitStack, requests: OpenRequests, callers: Iterable[Caller | None], path: str = STREAM
) -> int:
    """Open a request for each caller; return how many are accepted."""
    accepted = 0
    for caller in callers:
        try:
            places.enter_context(requests.hold_place(path, caller))
        except (TooManyRequests, Unavailable):
            continue
        accepted += 1
    return accepted


def test_a_token_has_a_tenth_of_the_connections_and_its_user_a_fifth() -> None:
    requests = OpenRequests(OpenConnections(limit=1000))
    with ExitStack() as places:
        assert hold(places, requests, [user("ada", "a")] * 1000) == 100
        assert hold(places, requests, [user("ada", "b")] * 60) == 60
        assert hold(places, requests, [user("ada", "b", session="s")] * 60) == 40
        assert hold(places, requests, [user("bob", "c")]) == 1
    with ExitStack() as places:
        assert hold(places, requests, [user("ada", "a")] * 1000) == 100


def test_the_last_connections_are_for_probes_and_admins() -> None:
    requests = OpenRequests(OpenConnections(limit=1000))
    with ExitStack() as places:
        crowd = [user(f"user-{n // 100}", f"t{n}") for n in range(2000)]
        assert hold(places, requests, crowd) == 950
        assert hold(places, requests, [None] * 9, "/livez") == 9
        assert hold(places, requests, [user("root", "r", admin=True)] * 9) == 9
        assert hold(places, requests, [FULL_ACCESS] * 2000) == 2000
        with (
            pytest.raises(Unavailable, match=r"959 requests are open.*reserved for probes"),
            requests.hold_place(STREAM, user("bob", "b")),
        ):
            pass


def test_downloads_without_a_token_take_no_place_of_logins() -> None:
    requests = OpenRequests(OpenConnections(limit=1000))
    with ExitStack() as places:
        assert hold(places, requests, [None] * 1000, "/static/pages/1/plotly.min.js") == 200
        assert hold(places, requests, [None] * 9, "/login/code") == 9


def test_a_few_pages_of_a_browser_stay_open_with_few_connections() -> None:
    requests = OpenRequests(OpenConnections(limit=50))
    with ExitStack() as places:
        assert hold(places, requests, [user("ada", "a")] * 100) == 20


def test_a_refused_token_is_told_its_limit() -> None:
    requests = OpenRequests(OpenConnections(limit=300))
    with ExitStack() as places:
        hold(places, requests, [user("ada", "a")] * 30)
        with (
            pytest.raises(TooManyRequests, match="token a of user 'ada' has 30 open requests"),
            requests.hold_place(STREAM, user("ada", "a")),
        ):
            pass
