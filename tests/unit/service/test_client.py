"""Both clients: answers, refusals, and streams that survive lost connections."""

from __future__ import annotations

import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from accordion_client import (
    AmbiguousJob,
    Client,
    NotFound,
    Refused,
    ServiceFailed,
    Unreachable,
    Waiter,
)
from accordion_client.sdk.client import IDLE_CONNECTION_S
from accordion_client.sdk.request_sender import choose_certificates
from accordion_service.schemas.history import GapView
from accordion_service.schemas.jobs import EventView
from tests.unit.service.conftest import MakeClient

ClientOf = Callable[..., Client]
Handler = Callable[[httpx2.Request], httpx2.Response]
PROBLEM = {
    "title": "Unprocessable",
    "status": 422,
    "detail": "all of it",
    "code": "invalid",
    "request_id": "r",
}


EVENT_STREAM = {"content-type": "text/event-stream"}


class Clock:
    """Time passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def client_of(make_client: MakeClient) -> ClientOf:
    """Makes a client whose service is a function."""

    def make(handler: Handler, *, clock: Clock | None = None, **waiting: Any) -> Client:
        clock = clock or Clock()
        waiter = Waiter(clock=clock, sleep=clock.sleep, **waiting)
        transport = httpx2.MockTransport(handler)
        return make_client("http://service", transport=transport, waiter=waiter)

    return make


def answering(status: int, body: object) -> Handler:
    return lambda _: httpx2.Response(status, json=body)


def event(number: int, kind: str = "log") -> str:
    data = {"seq": number, "type": kind, "time": "2026-01-01T00:00:00Z", "data": {}}
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body for both clients; its connection may be lost at its end."""

    def __init__(self, *parts: str, breaks: bool) -> None:
        self._parts, self._breaks = parts, breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from (part.encode() for part in self._parts)
        if self._breaks:
            raise httpx2.ReadError("connection reset")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


class QuietBody(Body):
    """A body whose connection lasts for a minute."""

    def __init__(self, *parts: str, clock: Clock, breaks: bool) -> None:
        super().__init__(*parts, breaks=breaks)
        self._clock = clock

    def __iter__(self) -> Iterator[bytes]:
        self._clock.sleep(60.0)
        yield from super().__iter__()


def stream_of(*parts: str, breaks: bool = False) -> httpx2.Response:
    return httpx2.Response(200, stream=Body(*parts, breaks=breaks), headers=EVENT_STREAM)


class Outbox:
    """A service with ten events that ends every connection after three of them."""

    def __init__(self) -> None:
        self.asked_after: list[str | None] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        given = request.headers.get("last-event-id")
        self.asked_after.append(given)
        numbers = range(int(given or 0) + 1, 11)[:3]
        frames = [event(number, "end" if number == 10 else "log") for number in numbers]
        return stream_of("retry: 1000\n\n", *frames, breaks=len(self.asked_after) % 2 == 0)


def test_a_refusal_is_one_line_for_each_wrong_value(client_of: ClientOf) -> None:
    errors = [
        {"pointer": "/training/epochs", "detail": "too few"},
        {"pointer": "", "detail": "does not fit"},
    ]
    with pytest.raises(Refused, match=r"^training.epochs: too few\ndoes not fit$") as caught:
        client_of(answering(422, PROBLEM | {"errors": errors})).submit({})
    assert (caught.value.status, caught.value.code) == (422, "invalid")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFound), (409, Refused), (500, ServiceFailed), (503, ServiceFailed)],
)
def test_a_problem_becomes_the_error_of_its_status(
    client_of: ClientOf, status: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="all of it"):
        client_of(answering(status, PROBLEM | {"status": status})).job("x")


def test_a_missing_token_is_told_with_the_way_out(client_of: ClientOf) -> None:
    with pytest.raises(Refused, match="ACCORDION_ADMIN_TOKEN_FILE"):
        client_of(answering(401, PROBLEM | {"status": 401})).queue()


@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_of_another_program_is_told_as_such(client_of: ClientOf, status: int) -> None:
    with pytest.raises(Unreachable, match="not an Accordion service"):
        client_of(lambda _: httpx2.Response(status, text="<html>")).queue()


def test_nothing_at_the_address_is_told_with_the_way_out(client_of: ClientOf) -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(Unreachable, match=r"no service responds at http://service .*accordion up"):
        client_of(refuse).queue()


@pytest.mark.parametrize("address", ["localhost:8080", "ftp://there", "http://[", "nonsense"])
def test_an_address_that_is_none_is_told_with_an_example(
    make_client: MakeClient, address: str
) -> None:
    with pytest.raises(Unreachable, match=r"like http://127.0.0.1:8080"):
        make_client(address)


def test_not_being_ready_is_an_answer(client_of: ClientOf) -> None:
    check = {"ok": False, "message": "has never run"}
    ready = client_of(answering(503, {"ready": False, "checks": {"scheduler": check}})).ready()
    assert not ready.ready
    assert ready.checks["scheduler"].message == "has never run"


def test_every_event_comes_once_and_in_order_over_lost_connections(client_of: ClientOf) -> None:
    outbox = Outbox()
    seen = [event.seq for event in client_of(outbox).events("job")]
    assert seen == list(range(1, 11))
    assert outbox.asked_after == [None, "3", "6", "9"]


def test_events_start_after_the_number_that_is_known(client_of: ClientOf) -> None:
    assert [event.seq for event in client_of(Outbox()).events("job", after=8)] == [9, 10]


def test_progress_does_not_move_the_number(client_of: ClientOf) -> None:
    numbers = {
        "epoch": 0,
        "epochs": 1,
        "step": 1,
        "steps": 2,
        "samples_per_s": 1.0,
        "eta_s": None,
        "loss": None,
    }
    view = numbers | {"lr": 0.1, "bytes": {}, "updated_at": "2026-01-01T00:00:00Z"}
    asked: list[str | None] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("last-event-id"))
        progress = f"event: progress\ndata: {json.dumps(view)}\n\n"
        return stream_of(event(1), progress) if len(asked) == 1 else stream_of(event(2, "end"))

    assert [getattr(item, "seq", None) for item in client_of(serve).events("job")] == [1, None, 2]
    assert asked == [None, "1"]


def test_a_stream_that_has_nothing_more_ends(client_of: ClientOf) -> None:
    assert list(client_of(lambda _: httpx2.Response(204)).events("job")) == []


def test_a_service_that_stays_away_is_told_once_and_then_given_up(client_of: ClientOf) -> None:
    told: list[Exception] = []
    client = client_of(answering(503, PROBLEM | {"status": 503}), patience_s=5.0, tell=told.append)
    with pytest.raises(ServiceFailed):
        list(client.events("job"))
    assert len(told) == 1


def test_a_quiet_stream_survives_lost_connections_for_longer_than_the_patience(
    client_of: ClientOf,
) -> None:
    requests, clock = itertools.count(), Clock()

    def serve(_: httpx2.Request) -> httpx2.Response:
        number = next(requests)
        if number == 20:
            return stream_of(event(1, "end"))
        quiet = QuietBody(": keep-alive\n\n", clock=clock, breaks=number % 2 == 0)
        return httpx2.Response(200, stream=quiet, headers=EVENT_STREAM)

    client = client_of(serve, clock=clock, patience_s=5.0, retry_s=1.0)
    assert [found.seq for found in client.events("job")] == [1]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_stream_that_ends_at_once_is_given_up_after_the_patience(
    client_of: ClientOf, *, breaks: bool
) -> None:
    requests: list[httpx2.Request] = []
    told: list[Exception] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return stream_of("retry: 1000\n\n", breaks=breaks)

    client = client_of(serve, patience_s=5.0, retry_s=1.0, tell=told.append)
    with pytest.raises(Unreachable):
        list(client.events("job"))
    assert (len(told), len(requests)) == (1, 7)


def test_an_event_between_breaks_ends_the_outage(client_of: ClientOf) -> None:
    requests = itertools.count()

    def serve(_: httpx2.Request) -> httpx2.Response:
        number = next(requests)
        if number == 40:
            return stream_of(event(5, "end"))
        return stream_of(event(1 + number // 10)) if number % 10 == 0 else stream_of()

    client = client_of(serve, patience_s=9.0, retry_s=1.0)
    assert [found.seq for found in client.events("job")] == [1, 2, 3, 4, 5]


def test_removed_events_are_handed_on_as_a_gap(client_of: ClientOf) -> None:
    gap = {"type": "gap", "from_seq": 3, "to_seq": 8, "why": "only the newest are kept"}
    asked: list[str | None] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("last-event-id"))
        if len(asked) > 1:
            return stream_of(event(9, "end"))
        return stream_of(f"id: 8\nevent: gap\ndata: {json.dumps(gap)}\n\n", breaks=True)

    found, end = client_of(serve).events("job", after=2)
    assert found == GapView(from_seq=3, to_seq=8, why="only the newest are kept")
    assert isinstance(end, EventView)
    assert (end.seq, asked) == (9, ["2", "8"])


def test_events_of_unknown_types_are_left_out(client_of: ClientOf) -> None:
    unknown = 'id: 1\nevent: later\ndata: {"type": "later"}\n\n'
    client = client_of(lambda _: stream_of(unknown, event(2, "end")))
    assert [found.seq for found in client.events("job")] == [2]


def test_a_stream_of_an_unknown_job_is_not_tried_again(client_of: ClientOf) -> None:
    requests: list[httpx2.Request] = []

    def missing(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(404, json=PROBLEM | {"status": 404})

    with pytest.raises(NotFound):
        list(client_of(missing).events("job"))
    assert len(requests) == 1


def jobs_named(*names: str) -> Handler:
    """A service whose list has these jobs."""
    times = {"created_at": "2026-01-01T00:00:00Z", "started_at": None, "ended_at": None}
    rest = {
        "desired": "RUN",
        "reason": "SUBMITTED",
        "message": "",
        "labels": {},
        "priority": 50,
        "attempt": 0,
    }
    rest |= {
        "status": "QUEUED",
        "spec": {"task": {"name": "synthetic"}},
        "world_size": 0,
        "metrics": {},
    }
    rest |= {"workers": 0, "min_workers": 1, "max_workers": 2, "tally": {}}
    jobs = [
        {"id": f"0{n}-abc", "name": name, "progress": None} | rest | times
        for n, name in enumerate(names)
    ]

    def serve(request: httpx2.Request) -> httpx2.Response:
        name, beginning = request.url.params.get("name"), request.url.params.get("id", "")
        found = [
            job for job in jobs if name in {None, job["name"]} and job["id"].startswith(beginning)
        ]
        return httpx2.Response(200, json={"items": found, "next_cursor": None})

    return serve


@pytest.mark.parametrize(
    ("reference", "found"), [("02", "02-abc"), ("01-abc", "01-abc"), ("b", "01-abc")]
)
def test_a_job_is_found_by_its_name_or_the_beginning_of_its_id(
    client_of: ClientOf, reference: str, found: str
) -> None:
    assert client_of(jobs_named("a", "b", "c")).find(reference).id == found


def test_a_reference_that_fits_several_jobs_lists_them(client_of: ClientOf) -> None:
    with pytest.raises(AmbiguousJob, match=r"fits 2 jobs: 00-abc \(QUEUED\), 02-abc \(QUEUED\)"):
        client_of(jobs_named("a", "b", "a")).find("a")


def test_of_several_jobs_of_a_name_the_one_that_has_not_ended_is_meant(client_of: ClientOf) -> None:
    def serve(request: httpx2.Request) -> httpx2.Response:
        answer = json.loads(jobs_named("a", "a")(request).text)
        for job in answer["items"][:1]:
            job |= {"status": "SUCCEEDED", "ended_at": "2026-01-01T00:00:00Z"}
        return httpx2.Response(200, json=answer)

    assert client_of(serve).find("a").id == "01-abc"


def test_of_several_ended_jobs_of_a_name_the_newest_is_known(client_of: ClientOf) -> None:
    def serve(request: httpx2.Request) -> httpx2.Response:
        answer = json.loads(jobs_named("a", "a")(request).text)
        for job, day in zip(answer["items"], (2, 1), strict=False):
            job |= {
                "status": "SUCCEEDED",
                "created_at": f"2026-01-0{day}T00:00:00Z",
                "ended_at": "2026-02-01T00:00:00Z",
            }
        return httpx2.Response(200, json=answer)

    with pytest.raises(
        AmbiguousJob, match=r"no unfinished job matches 'a'; .* is 00-abc \(SUCCEEDED\)"
    ) as caught:
        client_of(serve).find("a")
    assert caught.value.newest_ended == "00-abc"


def test_a_job_is_found_with_as_many_requests_however_many_there_are(client_of: ClientOf) -> None:
    asked: list[httpx2.Request] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return jobs_named(*(f"job-{number}" for number in range(300)))(request)

    assert client_of(serve).find("job-250").name == "job-250"
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("archived", "archive_first", "found"),
    [
        (("00-abc",), False, "01-abc"),
        (("00-abc",), True, "00-abc"),
        (("00-abc", "01-abc"), False, ""),
    ],
)
def test_an_archived_job_is_found_by_name_only_if_no_other_matches(
    client_of: ClientOf, archived: tuple[str, ...], archive_first: bool, found: str
) -> None:
    def serve(request: httpx2.Request) -> httpx2.Response:
        answer = json.loads(jobs_named("a", "a")(request).text)
        asked = request.url.params.get("archived") == "true"
        answer["items"] = [job for job in answer["items"] if (job["id"] in archived) == asked]
        return httpx2.Response(200, json=answer)

    client = client_of(serve)
    if found:
        assert client.find("a", archived=archive_first).id == found
    else:
        with pytest.raises(AmbiguousJob, match="fits 2 jobs"):
            client.find("a", archived=archive_first)


def test_a_list_asks_for_the_archive_only_if_it_is_wanted(client_of: ClientOf) -> None:
    asked: list[str | None] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.params.get("archived"))
        return jobs_named("x")(request)

    client = client_of(serve)
    for archived in (False, True, None):
        client.jobs(archived=archived)
        list(client.all_jobs(archived=archived))
    client.find("x")
    assert asked == [None, None, "true", "true", "any", "any", None]


def test_a_list_sends_filters_under_the_names_of_the_api(client_of: ClientOf) -> None:
    asked: list[tuple[str, str]] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        asked.extend(request.url.params.multi_items())
        return jobs_named("x")(request)

    client, since = client_of(serve), datetime(2027, 1, 31, tzinfo=UTC)
    client.jobs(id="a", status=("RUNNING", "QUEUED"), created_after=since, owner=None)
    expected = {("id", "a"), ("status", "RUNNING"), ("status", "QUEUED"), ("limit", "50")}
    assert set(asked) == expected | {("created_after", since.isoformat())}
    with pytest.raises(TypeError, match="no filter 'stats'; there are status, name, "):
        client.jobs(stats=["RUNNING"])


def test_events_after_the_end_do_not_open_the_stream_again(client_of: ClientOf) -> None:
    requests: list[httpx2.Request] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return stream_of(event(1, "end"), event(2, "archive"))

    assert [found.seq for found in client_of(serve).events("job")] == [1, 2]
    assert len(requests) == 1


def test_a_reference_that_fits_no_job_is_told_with_the_way_out(client_of: ClientOf) -> None:
    with pytest.raises(AmbiguousJob, match="there is no job 'z'; 'accordion list'"):
        client_of(jobs_named("a", "b")).find("z")


def test_an_idle_connection_is_dropped_before_the_service_closes_it() -> None:
    async def app(*_: object) -> None:
        """Never called."""

    assert uvicorn.Config(app).timeout_keep_alive > 2 * IDLE_CONNECTION_S


def test_a_download_is_whole_or_not_there(client_of: ClientOf, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with pytest.raises(Unreachable):
        client_of(lambda _: httpx2.Response(200, stream=Body("first", breaks=True))).download_model(
            "a", file
        )
    gone = {**PROBLEM, "status": 404, "code": "not_found"}
    with pytest.raises(NotFound):
        client_of(answering(404, gone)).download_model("a", file)
    assert list(tmp_path.iterdir()) == []
    headers = {"Accordion-Checkpoint": "g1"}
    whole = client_of(lambda _: httpx2.Response(200, content=b"all of it", headers=headers))
    assert whole.download_model("a", file, checkpoint="g1") == "g1"
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"all of it"]


def test_a_client_trusts_no_certificate_if_its_address_has_no_tls() -> None:
    context = choose_certificates("http://127.0.0.1:8080")
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.get_ca_certs()) == (ssl.CERT_REQUIRED, [])


def test_a_client_verifies_the_certificate_of_a_service_with_tls() -> None:
    assert choose_certificates("https://accordion.example") is True
