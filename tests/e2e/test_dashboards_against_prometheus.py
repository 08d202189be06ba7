"""Every panel of the Grafana dashboards, asked of a real Prometheus that scrapes a service with a
job in it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from tests.browser.live_service import LiveService, live_service
from tests.e2e.dashboard_check import (
    DASHBOARDS,
    JOB_DASHBOARD,
    check_names,
    live_faults,
    panels,
    prometheus,
    read_dashboards,
)

EPOCHS_UNTIL_COMPARED = 4
"""With a window of two epochs, the detector has compared once by then."""
LONG = 5000
"""Epochs of a job that still runs when the tests end."""


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[LiveService]:
    with live_service(tmp_path_factory.mktemp("home")) as service:
        yield service


@pytest.fixture(scope="module")
def job_id(service) -> str:
    job_id = service.submit("watched", epochs=LONG, policy={"name": "cost_aware"})
    service.wait_for_epochs(job_id, EPOCHS_UNTIL_COMPARED)
    return job_id


@pytest.fixture(scope="module")
def prometheus_url(require, service, job_id) -> Iterator[str]:
    with prometheus(require("prometheus"), service.url) as url:
        yield url


@pytest.fixture
def board():
    return json.loads(JOB_DASHBOARD.read_text())


def test_every_name_is_exported_and_every_exported_name_is_looked_at(service, job_id):
    assert check_names(read_dashboards(), service.url) == []


@pytest.mark.parametrize("path", sorted(DASHBOARDS.glob("*.json")), ids=lambda path: path.stem)
def test_every_query_of_every_panel_finds_numbers(prometheus_url, job_id, path):
    assert live_faults(json.loads(path.read_text()), prometheus_url, job_id) == []


def test_a_planted_wrong_name_fails_in_both_ways(service, prometheus_url, job_id, board):
    planted = copy.deepcopy(board)
    panel = next(panel for panel in panels(planted) if panel["title"] == "Loss")
    panel["targets"][0]["expr"] = 'max without (instance) (accordion_job_lost{job_id="$job_id"})'
    planted["panels"] = [panel]
    assert "'Loss' asks for accordion_job_lost, which nothing exports" in check_names(
        [planted], service.url
    )
    assert len(live_faults(planted, prometheus_url, job_id, patience_s=1.0)) == 1


def test_a_job_that_ended_leaves_after_its_retention(tmp_path, require):
    with live_service(tmp_path, metrics_retention_s=0.0) as service:
        job_id = service.submit("short", epochs=1)
        service.wait_for_end(job_id)
        assert job_id not in service.client.get("/metrics").text
