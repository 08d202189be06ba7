"""Requests to Ray's autoscaler, and what is read of its reports, over a GCS that is patched out.
`tests/e2e` asks a real one.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from service.domain.resources import Resources
from service.runtime.protocol import AutoscalerReport
from service.runtime.ray_autoscaler import (
    LOOK_INTERVAL_S,
    RESEND_INTERVAL_S,
    SEARCH_INTERVAL_S,
    RayAutoscaler,
)
from tests.unit.service.fake_gcs import FakeGcs, build_constraint

CPU = Resources(cpus=1.0, gpus=0.0)
GPU = Resources(
    cpus=2.0,
    gpus=1.0,
    memory=4e9,
    custom=(("fpga", 0.5),),
    labels=frozenset({("zone", "a")}),
    node="a",
)


class Exchanges:
    """An autoscaler's client whose clock and cluster the test moves."""

    def __init__(self, **parts: Any) -> None:
        self.gcs = FakeGcs()
        self.now = 0.0
        parts = {"connect": self.gcs.connect, "send": self.gcs.send, **parts}
        self.autoscaler = RayAutoscaler(clock=lambda: self.now, **parts)

    def begin(self, *bundles: Resources, sender: int = 1, always: bool = False) -> AutoscalerReport:
        return self.autoscaler.exchange("gcs:6379", bundles, sender=sender, always=always)

    def run(
        self, *bundles: Resources, after: float = LOOK_INTERVAL_S, **options: Any
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
def test_nothing_is_sent_where_no_node_has_a_type(exchanges: Exchanges, node_types) -> None:
    exchanges.gcs.report_version_1(*node_types)
    assert exchanges.run(CPU).exists is False
    assert exchanges.run(CPU, after=SEARCH_INTERVAL_S).sent is None
    assert exchanges.gcs.sent == []


def test_nothing_is_sent_before_version_2_has_reported(exchanges: Exchanges) -> None:
    exchanges.gcs.start_version_2("head", "gpu")
    assert exchanges.run(CPU).exists is False
    exchanges.gcs.judge()
    assert exchanges.run(CPU, after=SEARCH_INTERVAL_S).exists is True


def test_a_request_is_sent_without_an_autoscaler_if_it_always_is(exchanges: Exchanges) -> None:
    report = exchanges.run(CPU, always=True)
    assert (report.exists, report.sent, report.num_sent) == (False, (CPU,), 1)
    assert exchanges.gcs.sent == [([{"CPU": 1.0}], [{}])]


def test_a_bundle_has_all_resources_and_labels_of_a_worker(exchanges: Exchanges) -> None:
    exchanges.gcs.report_version_1("head", "gpu")
    assert exchanges.run(GPU, CPU).exists is True
    bundle = {"CPU": 2.0, "GPU": 1.0, "memory": 4e9, "fpga": 0.5}
    assert exchanges.gcs.sent == [([bundle, {"CPU": 1.0}], [{"zone": "a"}, {}])]


def test_a_request_is_sent_when_it_changes_and_again_after_a_while(version_2: Exchanges) -> None:
    for _ in range(3):
        version_2.run(CPU)
    assert len(version_2.gcs.sent) == 1
    version_2.run(CPU, CPU)
    assert version_2.gcs.sent[-1] == ([{"CPU": 1.0}] * 2, [{}, {}])
    assert version_2.run(CPU, CPU, after=RESEND_INTERVAL_S).num_sent == 3


def test_an_empty_request_is_sent_first_and_not_repeated(version_2: Exchanges) -> None:
    assert version_2.run().sent == ()
    version_2.run(after=RESEND_INTERVAL_S)
    assert version_2.gcs.sent == [([], [])]


def test_a_new_sender_sends_the_same_request_again(version_2: Exchanges) -> None:
    version_2.run(CPU, sender=1)
    version_2.run(CPU, sender=2)
    version_2.run(CPU, sender=2)
    assert len(version_2.gcs.sent) == 2


def test_version_2_has_judged_a_request_once_it_read_a_state_that_had_it(
    version_2: Exchanges,
) -> None:
    assert version_2.run(CPU).is_possible is None
    version_2.gcs.judge(is_possible=False)
    assert version_2.run(CPU).is_possible is False
    version_2.gcs.judge()
    assert version_2.run(CPU).is_possible is True
    assert version_2.run(CPU, CPU).is_possible is None


def test_version_1_judges_nothing(exchanges: Exchanges) -> None:
    exchanges.gcs.report_version_1("head")
    exchanges.run(CPU)
    assert exchanges.run(CPU).is_possible is None


def test_a_request_that_ray_has_forgotten_is_sent_again_at_once(version_2: Exchanges) -> None:
    version_2.run(CPU)
    version_2.gcs.hold()
    version_2.run(CPU)
    assert len(version_2.gcs.sent) == 2


def test_a_request_that_another_program_replaced_is_reported_and_sent_later(
    version_2: Exchanges,
) -> None:
    version_2.run(CPU)
    version_2.gcs.hold(build_constraint([{"CPU": 7.0}], [{}]))
    version_2.gcs.judge()
    report = version_2.run(CPU)
    assert report.problem.startswith("another program, such as Ray Data or a second installation")
    assert (report.is_possible, len(version_2.gcs.sent)) == (None, 1)
    assert version_2.run(CPU, after=RESEND_INTERVAL_S).problem == ""


def test_a_failure_is_reported_counted_and_logged_when_it_changes(version_2: Exchanges) -> None:
    version_2.gcs.error = TimeoutError("GCS took 10 s\nstack")
    with capture_logs() as logs:
        version_2.run(CPU)
        report = version_2.run(CPU)
        assert (report.num_failed, report.sent) == (2, None)
        version_2.gcs.error = None
        assert version_2.run(CPU).problem == ""
    problem = "the autoscaler could not be asked (TimeoutError: GCS took 10 s)"
    assert report.problem == problem
    assert [line["problem"] for line in logs] == [problem, "solved"]
    assert version_2.gcs.sent == [([{"CPU": 1.0}], [{}])]


def test_no_call_waits_for_an_exchange_and_no_second_one_begins_meanwhile() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def send(*request: Any) -> None:
        calls.append(request)
        begun.set()
        assert go_on.wait(60.0)

    exchanges = Exchanges(send=send)
    exchanges.begin(CPU, always=True)
    assert begun.wait(60.0)
    exchanges.now += 100.0
    assert exchanges.begin(CPU, CPU, always=True) == AutoscalerReport()
    go_on.set()
    assert exchanges.autoscaler.wait(timeout_s=60.0)
    assert len(calls) == 1


def test_an_exchange_is_started_again_after_its_interval_only(exchanges: Exchanges) -> None:
    assert exchanges.run(CPU).num_exchanges == 1
    assert exchanges.run(CPU, after=LOOK_INTERVAL_S).num_exchanges == 1
    assert exchanges.run(CPU, after=SEARCH_INTERVAL_S).num_exchanges == 2


def test_node_types_are_read_where_an_autoscaler_reports_them(exchanges: Exchanges) -> None:
    exchanges.gcs.configure(gpu={"CPU": 16, "GPU": 4, "fpga": 1}, cpu={"CPU": 8, "memory": 10})
    report = exchanges.run(CPU)
    assert report.exists
    types = {kind.name: kind.resources for kind in report.node_types}
    assert types["gpu"] == Resources(cpus=16.0, gpus=4.0, memory=math.inf, custom=(("fpga", 1.0),))
    assert types["cpu"] == Resources(cpus=8.0, gpus=0.0, memory=10.0)
