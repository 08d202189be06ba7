"""Ray's dashboard: whether one answers, and which of its pages a job leads to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from accordion_service.domain.jobs.ray_links import link_to_workers
from accordion_service.domain.jobs.ray_run import RayRun
from accordion_service.runtime.ray_dashboard import PROBE_INTERVAL_S, DashboardProbe, serves_pages

JOB = RayRun(engine="ray-train", train_run="digits-a.1")
GUEST = RayRun(engine="ray-train", train_run="mine", ray_job_id="01000000")


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.server.has_page else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), _Page)
    server.has_page = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_dashboard_counts_only_where_it_serves_a_page(server: HTTPServer) -> None:
    address = f"127.0.0.1:{server.server_port}"
    assert serves_pages(address)
    server.has_page = False
    assert not serves_pages(address)
    assert not serves_pages("127.0.0.1:1")
    assert not serves_pages("no port:here")


def test_dashboard_is_probed_once_a_minute_and_at_a_new_address() -> None:
    now, probed = [0.0], []
    probe = DashboardProbe(
        lambda address: probed.append(address) or address != "b:1", clock=lambda: now[0]
    )
    assert [probe.url("a:1"), probe.url("a:1"), probe.url("b:1"), probe.url(None)] == [
        "http://a:1"
    ] * 2 + [None] * 2
    now[0] = PROBE_INTERVAL_S
    assert probe.url("b:1") is None
    assert probed == ["a:1", "b:1", "b:1"]


@pytest.mark.parametrize(
    ("url", "run", "seen_from", "link"),
    [
        ("http://ray:8265", JOB, "example.org", "http://ray:8265/#/actors"),
        ("http://ray:8265", GUEST, "example.org", "http://ray:8265/#/jobs/01000000/actors"),
        ("http://127.0.0.1:8265", JOB, "127.0.0.1", "http://127.0.0.1:8265/#/actors"),
        ("http://127.0.0.1:8265", JOB, "example.org", None),
        ("http://0.0.0.0:8265", JOB, "127.0.0.1", "http://0.0.0.0:8265/#/actors"),
        ("http://0.0.0.0:8265", JOB, "example.org", None),
        ("http://[::]:8265", JOB, "example.org", None),
        ("http://ray:8265", None, "example.org", None),
        (None, JOB, "example.org", None),
    ],
)
def test_link_leads_to_the_workers_or_is_not_there(url, run, seen_from, link) -> None:
    assert link_to_workers(url, run, seen_from=seen_from) == link
