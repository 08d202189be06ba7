"""Both clients: which requests are sent again after a failure, when, and how often."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from accordion_client import Refused, RetryBudget, ServiceFailed, Unreachable, Waiter
from tests.api.conftest import Live, serve_live
from tests.api.world import DIGITS
from tests.unit.service.conftest import MakeClient
from tests.unit.service.cutting_relay import Cut, relay_to

QUICK = RetryBudget(delay_s=0.01, timeout_s=120.0)
ADMIN = "the-admin-token-of-the-settings"


class Service:
    """A service that fails as often as it is told to, by a clock that only waiting moves."""

    def __init__(self, *failures: int | type[Exception], **headers: str) -> None:
        self.failures, self.headers = list(failures), headers
        self.keys: list[str | None] = []
        self.now = 0.0
        self.waited: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.keys.append(request.headers.get("idempotency-key"))
        failure = self.failures.pop(0) if self.failures else 200
        if not isinstance(failure, int):
            if issubclass(failure, httpx2.TimeoutException):
                self.now += request.extensions["timeout"]["read"]
            raise failure("lost")
        problem = {"title": "", "status": failure, "detail": "busy", "code": "x", "request_id": "r"}
        body = {"items": []} if failure == 200 else problem
        headers = {name.replace("_", "-"): value for name, value in self.headers.items()}
        return httpx2.Response(failure, json=body, headers=headers)

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def options(self, **budget: Any) -> dict[str, Any]:
        """Arguments of a client of this service, without randomness."""
        return {
            "transport": httpx2.MockTransport(self),
            "waiter": Waiter(clock=lambda: self.now, sleep=self.sleep),
            "retries": RetryBudget(random=lambda: 1.0, **budget),
        }


LOST = [httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError]


@pytest.mark.parametrize("failure", [502, 503, 504, 429, httpx2.ConnectError, *LOST])
def test_a_read_is_repeated_after_a_temporary_failure(
    make_client: MakeClient, failure: int | type[Exception]
) -> None:
    service = Service(failure, failure)
    assert make_client("http://service", **service.options()).users().items == []
    assert service.waited == [0.2, 0.4]


@pytest.mark.parametrize("failure", [400, 404, 409, 500, httpx2.UnsupportedProtocol])
def test_a_failure_that_remains_is_not_repeated(
    make_client: MakeClient, failure: int | type[Exception]
) -> None:
    service = Service(failure)
    with pytest.raises((Refused, ServiceFailed, Unreachable)):
        make_client("http://service", **service.options()).users()
    assert len(service.keys) == 1


@pytest.mark.parametrize("failure", [503, httpx2.ReadTimeout, *LOST])
def test_a_change_that_may_have_arrived_is_not_repeated(
    make_client: MakeClient, failure: int | type[Exception]
) -> None:
    service = Service(failure)
    with pytest.raises((ServiceFailed, Unreachable)):
        make_client("http://service", **service.options()).add_user("ada")
    assert len(service.keys) == 1


@pytest.mark.parametrize("failure", [429, httpx2.ConnectError, httpx2.ConnectTimeout])
def test_a_change_that_did_not_arrive_is_repeated(
    make_client: MakeClient, failure: int | type[Exception]
) -> None:
    service = Service(failure, 409)
    with pytest.raises(Refused, match="busy"):
        make_client("http://service", **service.options()).add_user("ada")
    assert len(service.keys) == 2


def test_a_repeated_submit_has_the_key_of_the_first_one(make_client: MakeClient) -> None:
    service = Service(503, httpx2.ReadError, 409, 409)
    client = make_client("http://service", **service.options())
    for _ in range(2):
        with pytest.raises(Refused):
            client.submit({})
    first, second, third, other = service.keys
    assert first == second == third
    assert other not in {None, first}


def test_a_key_of_the_caller_is_sent(make_client: MakeClient) -> None:
    service = Service(503, 409)
    with pytest.raises(Refused):
        make_client("http://service", **service.options()).submit({}, idempotency_key="mine")
    assert service.keys == ["mine", "mine"]


def test_a_read_that_timed_out_is_repeated(make_client: MakeClient) -> None:
    service = Service(httpx2.ReadTimeout)
    assert make_client("http://service", **service.options()).users().items == []
    assert (service.waited, service.now) == ([0.2], 10.2)


def test_a_submit_that_timed_out_is_repeated_with_its_key(make_client: MakeClient) -> None:
    service = Service(httpx2.ReadTimeout, 409)
    with pytest.raises(Refused, match="busy"):
        make_client("http://service", **service.options()).submit({})
    first, second = service.keys
    assert first == second is not None


@pytest.mark.parametrize(
    ("budget", "attempts"),
    [
        ({}, 2),  # They start after 0 and 10.2 s; another would start after 20.6 s.
        ({"timeout_s": 3.0, "total_s": 10.0}, 3),  # They start after 0, 3.2 and 6.6 s.
        ({"timeout_s": 20.0}, 1),
    ],
)
def test_a_service_that_hangs_is_given_up_after_the_budget(
    make_client: MakeClient, budget: dict[str, Any], attempts: int
) -> None:
    service = Service(*[httpx2.ReadTimeout] * 99)
    with pytest.raises(Unreachable, match="did not respond in time"):
        make_client("http://service", **service.options(**budget)).users()
    assert len(service.keys) == attempts


def test_the_service_may_ask_to_wait(make_client: MakeClient) -> None:
    service = Service(503, Retry_After="2")
    make_client("http://service", **service.options()).users()
    assert service.waited == [2.2]


@pytest.mark.parametrize(
    ("budget", "headers", "attempts"),
    [
        ({"attempts": 3}, {}, 3),
        ({"attempts": 1}, {}, 1),
        ({"attempts": 99, "total_s": 5.0}, {}, 5),  # They start after 0, 0.2, 0.6, 1.4 and 3.0 s.
        ({"total_s": 5.0}, {"Retry_After": "6"}, 1),
        ({}, {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 4),
    ],
)
def test_retries_end_with_their_budget_and_the_last_error(
    make_client: MakeClient, budget: dict[str, Any], headers: dict[str, str], attempts: int
) -> None:
    service = Service(*[503] * 99, **headers)
    with pytest.raises(ServiceFailed, match="busy"):
        make_client("http://service", **service.options(**budget)).users()
    assert len(service.keys) == attempts
    assert service.now <= budget.get("total_s", 10.0)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"attempts": 0}, "attempts is 0; give at least 1, for no retries"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; give seconds above 0"),
    ],
)
def test_a_budget_for_no_response_is_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryBudget(**limits)


def test_a_limit_of_time_is_one_of_retries_too(make_client: MakeClient) -> None:
    service = Service(*[503] * 99)
    client = make_client("http://service", **service.options(attempts=99))
    client.limit_time(0.5)
    with pytest.raises(ServiceFailed):
        client.users()
    assert service.waited == [0.2]


def test_a_request_of_limited_time_that_timed_out_is_not_repeated(make_client: MakeClient) -> None:
    service = Service(httpx2.ReadTimeout)
    client = make_client("http://service", **service.options())
    client.limit_time(0.5)
    with pytest.raises(Unreachable):
        client.users()
    assert (service.waited, service.now) == ([], 0.5)


def test_a_probe_is_not_repeated(make_client: MakeClient) -> None:
    service = Service(httpx2.ConnectError)
    with pytest.raises(Unreachable):
        make_client("http://service", **service.options()).ready()
    assert service.waited == []


@pytest.mark.parametrize("cut", ["nothing", "head"])
def test_a_submit_whose_responses_are_lost_makes_one_job(
    make_client: MakeClient, service: Live, cut: Cut
) -> None:
    direct = make_client(service.url)
    before = {job.id for job in direct.all_jobs()}
    with relay_to(service.url, cuts=2, cut=cut) as relay:
        job = make_client(relay.url, retries=QUICK).submit(DIGITS)
        assert relay.connections == 3
    assert {found.id for found in direct.all_jobs()} - before == {job.id}


def test_a_submit_that_the_service_never_answered_makes_one_job(
    make_client: MakeClient, service: Live
) -> None:
    direct = make_client(service.url)
    before = {job.id for job in direct.all_jobs()}
    patient = RetryBudget(attempts=30, timeout_s=2.0, total_s=120.0, delay_s=0.01)
    with relay_to(service.url, cuts=1, cut="hang") as relay:
        job = make_client(relay.url, retries=patient).submit(DIGITS)
        assert relay.connections >= 2
    assert {found.id for found in direct.all_jobs()} - before == {job.id}


def test_a_change_without_a_key_arrives_once_when_its_response_is_lost(
    make_client: MakeClient, service: Live, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.lower()
    with relay_to(service.url, cuts=1) as relay:
        client = make_client(relay.url, retries=QUICK)
        with pytest.raises(Unreachable, match="no service responds"):
            client.add_user(name)
        assert relay.connections == 1
        assert [user.name for user in client.users().items].count(name) == 1


def test_a_service_that_never_responds_is_given_up(make_client: MakeClient, service: Live) -> None:
    with relay_to(service.url, cuts=99) as relay:
        client = make_client(relay.url, retries=replace(QUICK, attempts=3))
        with pytest.raises(Unreachable, match="no service responds"):
            client.queue()
        assert relay.connections == 3


def test_events_arrive_once_over_connections_that_are_lost(
    make_client: MakeClient, service: Live
) -> None:
    job = make_client(service.url).submit({**DIGITS, "training": {"epochs": 2}})
    with relay_to(service.url, cuts=2, cut="head") as relay:
        client = make_client(relay.url, waiter=Waiter(retry_s=0.01))
        seen = [event.seq for event in client.events(job.id) if hasattr(event, "seq")]
        assert relay.connections == 3
    assert seen == list(range(1, len(seen) + 1))
    assert make_client(service.url).job(job.id).status == "SUCCEEDED"


def test_a_user_above_the_rate_limit_waits_as_long_as_the_service_asks(
    make_client: MakeClient, tmp_path: Path
) -> None:
    serve = contextmanager(serve_live)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        time.sleep(seconds)

    with serve(tmp_path, admin_token=ADMIN, requests_per_second=2.0, request_burst=1) as live:
        admin = make_client(live.url, ADMIN)
        token = admin.add_token("laptop", user=admin.add_user("ada").name).token
        client = make_client(live.url, token, waiter=Waiter(sleep=sleep))
        while not waited:
            assert client.caller().user == "ada"
    assert 1.0 <= waited[0] <= 1.2
