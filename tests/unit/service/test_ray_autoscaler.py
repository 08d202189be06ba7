"""Requests to Ray's autoscaler, and what is read of its reports, over a GCS that is patched out.
`tests/e2e` asks a real one.
"""

from __future__ import annotations

import inspect
import math
import runpy
import sys
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from accordion_service.domain.capacity.resources import Resources
from accordion_service.runtime.protocol import AutoscalerReport
from accordion_service.runtime.ray_autoscaler import (
    POLL_INTERVAL_S,
    REPEAT_INTERVAL_S,
    SEARCH_INTERVAL_S,
    RayAutoscaler,
)
from accordion_workers.common.node_selectors import read_selector
from tests.unit.service.fake_gcs import FakeGcs, build_constraint

CPU = Resources(cpus=1.0, gpus=0.0)
GPU = Resources(
    cpus=2.0,
    gpus=1.0,
    memory=4e9,
    custom=(("fpga", 0.5),),
    selector=read_selector({"zone": "a"}),
    node="a",
)


class Exchanges:
    """An autoscaler's client whose clock and cluster the test moves."""

    def __init__(self, **parts: Any) -> None:
        self.gcs = FakeGcs()
        self.now = 0.0
        parts = {"connect": self.gcs.connect, **parts}
        self.autoscaler = RayAutoscaler(clock=lambda: self.now, **parts)

    def begin(self, *bundles: Resources, sender: int = 1, always: bool = False) -> AutoscalerReport:
        return self.autoscaler.exchange("gcs:6379", bundles, sender=sender, always=always)

    def run(
        self, *bundles: Resources, after: float = POLL_INTERVAL_S, **options: Any
    ) -> AutoscalerReport:
        """Exchange once, after so many seconds; return what was found."""
        self.now += after
        self.begin(*bundles, **options)
        assert self.autoscaler.wait(timeout_s=60.0)
        return self.begin(*bundles, **options)  # too early for another one


@pytest.fixture
def exchanges() -> Exchanges:
    return Exchanges()


@pytest.fixture
def version_2(exchanges: Exchanges) -> Exchanges:
    exchanges.gcs.start_version_2("head", "gpu")
    exchanges.gcs.judge()
    return exchanges


@pytest.mark.parametrize("node_types", [(), ("node_ab12", "node_cd34")])
def test_nothing_is_requested_where_no_node_has_a_type(exchanges: Exchanges, node_types) -> None:
    exchanges.gcs.report_version_1(*node_types)
    assert exchanges.run(CPU).exists is False
    assert exchanges.run(CPU, after=SEARCH_INTERVAL_S).request is None
    assert exchanges.gcs.requests == []


def test_nothing_is_requested_before_version_2_has_reported(exchanges: Exchanges) -> None:
    exchanges.gcs.start_version_2("head", "gpu")
    assert exchanges.run(CPU).exists is False
    exchanges.gcs.judge()
    assert exchanges.run(CPU, after=SEARCH_INTERVAL_S).exists is True


def test_a_request_is_made_without_an_autoscaler_if_it_always_is(exchanges: Exchanges) -> None:
    report = exchanges.run(CPU, always=True)
    assert (report.exists, report.request, report.num_requests) == (False, (CPU,), 1)
    assert exchanges.gcs.requests == [([{"CPU": 1.0}], [{}])]


def test_a_bundle_has_all_resources_and_labels_of_a_worker(version_2: Exchanges) -> None:
    assert version_2.run(GPU, CPU).exists is True
    bundle = {"CPU": 2.0, "GPU": 1.0, "memory": 4e9, "fpga": 0.5}
    assert version_2.gcs.requests == [([bundle, {"CPU": 1.0}], [{"zone": "a"}, {}])]


@pytest.mark.parametrize("text", ["a", "!a", "in(b, a)", "!in(a,b)"])
def test_a_standing_request_is_compared_with_its_conditions_on_labels(
    version_2: Exchanges, text: str
) -> None:
    part = Resources(cpus=1.0, gpus=0.0, selector=read_selector({"zone": text}))
    assert version_2.run(part).problem == ""
    version_2.gcs.hold(build_constraint([{"CPU": 1.0}], [{"zone": "!c"}]))
    assert version_2.run(part).problem.startswith("another program")


def test_version_1_gets_the_resources_of_each_part(exchanges: Exchanges) -> None:
    exchanges.gcs.report_version_1("head", "gpu")
    report = exchanges.run(CPU, CPU)
    assert (report.exists, report.reports_feasibility) == (True, False)
    assert exchanges.gcs.requests == [([{"CPU": 1.0}] * 2, [{}, {}])]


def test_a_request_is_made_when_it_changes_and_again_after_a_while(version_2: Exchanges) -> None:
    for _ in range(3):
        version_2.run(CPU)
    assert len(version_2.gcs.requests) == 1
    version_2.run(CPU, CPU)
    assert version_2.gcs.requests[-1] == ([{"CPU": 1.0}] * 2, [{}, {}])
    assert version_2.run(CPU, CPU, after=REPEAT_INTERVAL_S).num_requests == 3


def test_an_empty_request_is_made_and_not_repeated(version_2: Exchanges) -> None:
    assert version_2.run().request == ()
    version_2.run(after=REPEAT_INTERVAL_S)
    assert version_2.gcs.requests == [([], [])]


def test_an_empty_request_leaves_the_request_of_another_program(version_2: Exchanges) -> None:
    version_2.run(CPU)
    version_2.gcs.hold(build_constraint([{"CPU": 7.0}], [{}]))
    report = version_2.run()
    assert (report.request, report.problem, len(version_2.gcs.requests)) == ((), "", 1)


def test_a_poll_requests_nothing(version_2: Exchanges) -> None:
    version_2.now += POLL_INTERVAL_S
    version_2.autoscaler.exchange("gcs:6379", None, sender=1, always=True)
    assert version_2.autoscaler.wait(timeout_s=60.0)
    report = version_2.begin()
    assert (report.exists, report.request, version_2.gcs.requests) == (True, None, [])


def test_a_request_is_cleared_without_waiting_for_the_next_poll(version_2: Exchanges) -> None:
    version_2.run(CPU)
    assert version_2.autoscaler.clear("gcs:6379", sender=1, timeout_s=60.0)
    assert version_2.gcs.requests[-1] == ([], [])


def test_a_request_that_cannot_be_cleared_is_reported(version_2: Exchanges) -> None:
    version_2.run(CPU)
    version_2.gcs.error = TimeoutError("GCS took 10 s")
    assert not version_2.autoscaler.clear("gcs:6379", sender=1, timeout_s=60.0)


PRIVATE = ["ray._private.ray_constants", "ray.core.generated.autoscaler_pb2"]


@pytest.mark.parametrize("name", PRIVATE)
def test_private_parts_of_ray_are_imported_by_an_exchange_only(
    version_2: Exchanges, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert runpy.run_path(inspect.getfile(RayAutoscaler))["RayAutoscaler"]
    report = version_2.run(CPU)
    assert (report.num_failed, version_2.gcs.requests) == (1, [])
    assert report.problem.startswith("the request to the autoscaler failed (")


def test_a_new_sender_repeats_the_request(version_2: Exchanges) -> None:
    version_2.run(CPU, sender=1)
    version_2.run(CPU, sender=2)
    version_2.run(CPU, sender=2)
    assert len(version_2.gcs.requests) == 2


def test_version_2_has_judged_a_request_once_it_read_a_state_that_had_it(
    version_2: Exchanges,
) -> None:
    assert version_2.run(CPU).is_feasible is None
    version_2.gcs.judge(is_feasible=False)
    assert version_2.run(CPU).is_feasible is False
    version_2.gcs.judge()
    assert version_2.run(CPU).is_feasible is True
    assert version_2.run(CPU, CPU).is_feasible is None


def test_version_1_judges_nothing(exchanges: Exchanges) -> None:
    exchanges.gcs.report_version_1("head")
    exchanges.run(CPU)
    assert exchanges.run(CPU).is_feasible is None


def test_a_request_that_ray_has_forgotten_is_repeated_at_once(version_2: Exchanges) -> None:
    version_2.run(CPU)
    version_2.gcs.hold()
    version_2.run(CPU)
    assert len(version_2.gcs.requests) == 2


def test_a_request_that_another_program_replaced_is_reported_and_repeated_later(
    version_2: Exchanges,
) -> None:
    version_2.run(CPU)
    version_2.gcs.hold(build_constraint([{"CPU": 7.0}], [{}]))
    version_2.gcs.judge()
    report = version_2.run(CPU)
    assert report.problem.startswith("another program, such as Ray Data or a second installation")
    assert (report.is_feasible, len(version_2.gcs.requests)) == (None, 1)
    assert version_2.run(CPU, after=REPEAT_INTERVAL_S).problem == ""


def test_a_failure_is_reported_counted_and_logged_when_it_changes(version_2: Exchanges) -> None:
    version_2.gcs.error = TimeoutError("GCS took 10 s\nstack")
    with capture_logs() as logs:
        version_2.run(CPU)
        report = version_2.run(CPU)
        assert (report.num_failed, report.request) == (2, None)
        version_2.gcs.error = None
        assert version_2.run(CPU).problem == ""
    problem = "the request to the autoscaler failed (TimeoutError: GCS took 10 s)"
    assert report.problem == problem
    assert [line["problem"] for line in logs] == [problem, "solved"]
    assert isinstance(logs[0]["exc_info"], TimeoutError)
    assert version_2.gcs.requests == [([{"CPU": 1.0}], [{}])]


def test_no_call_waits_for_an_exchange_and_no_second_one_begins_meanwhile() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def connect(address: str) -> FakeGcs:
        calls.append(address)
        begun.set()
        assert go_on.wait(60.0)
        return FakeGcs()

    exchanges = Exchanges(connect=connect)
    exchanges.begin(CPU, always=True)
    assert begun.wait(60.0)
    exchanges.now += 100.0
    assert exchanges.begin(CPU, CPU, always=True) == AutoscalerReport()
    go_on.set()
    assert exchanges.autoscaler.wait(timeout_s=60.0)
    assert len(calls) == 1


def test_an_exchange_is_started_again_after_its_interval_only(exchanges: Exchanges) -> None:
    assert exchanges.run(CPU).num_exchanges == 1
    assert exchanges.run(CPU, after=POLL_INTERVAL_S).num_exchanges == 1
    assert exchanges.run(CPU, after=SEARCH_INTERVAL_S).num_exchanges == 2


def test_node_types_are_read_where_an_autoscaler_reports_them(exchanges: Exchanges) -> None:
    exchanges.gcs.configure(gpu={"CPU": 16, "GPU": 4, "fpga": 1}, cpu={"CPU": 8, "memory": 10})
    report = exchanges.run(CPU)
    assert report.exists
    types = {kind.name: kind.resources for kind in report.node_types}
    assert types["gpu"] == Resources(cpus=16.0, gpus=4.0, memory=math.inf, custom=(("fpga", 1.0),))
    assert types["cpu"] == Resources(cpus=8.0, gpus=0.0, memory=10.0)
