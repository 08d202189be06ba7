"""The generated Grafana dashboards, without a Prometheus; `tests/e2e` asks one."""

from __future__ import annotations

import copy
import json
import runpy
import sys

import pytest

from accordion_service.api.process_metrics import PROCESS_FAMILIES
from accordion_service.views.metrics import FAMILIES
from tests.e2e.dashboard_check import (
    DASHBOARDS,
    JOB_DASHBOARD,
    ROOT,
    lint,
    name_faults,
    panels,
    parse_faults,
    read_dashboards,
)

EXPORTED = {*FAMILIES, *PROCESS_FAMILIES, "accordion_api_request_duration_seconds"}


@pytest.fixture
def board():
    return json.loads(JOB_DASHBOARD.read_text())


def faults(*boards):
    found = [fault for board in boards for fault in (*lint(board), *parse_faults(board))]
    return [*found, *name_faults(boards, EXPORTED)]


def first_target(board):
    return next(panel for panel in panels(board) if panel["type"] == "timeseries")["targets"][0]


def test_generating_them_again_gives_the_same_bytes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "deploy/grafana"))
    for module in ("panels", "service_panels"):
        monkeypatch.setitem(sys.modules, module, None)
        sys.modules.pop(module)
    generated = runpy.run_path(str(ROOT / "deploy/grafana/generate.py"))["build_dashboards"]()
    assert generated == {path.stem: path.read_text() for path in DASHBOARDS.glob("*.json")}


def test_they_are_complete_parse_and_name_what_the_service_exports_both_ways():
    assert faults(*read_dashboards()) == []


def test_dashboards_have_different_ids():
    ids = [board["uid"] for board in read_dashboards()]
    assert len(set(ids)) == len(ids) > 1


def test_a_wrong_metric_name_is_found(board):
    first_target(board)["expr"] = 'max without (instance) (accordion_job_lost{job_id="$job_id"})'
    assert any("accordion_job_lost, which nothing exports" in fault for fault in faults(board))


def test_a_metric_that_nobody_looks_at_is_found():
    assert name_faults(read_dashboards(), EXPORTED | {"accordion_forgotten"}) == [
        "accordion_forgotten is exported and nobody looks at it"
    ]


@pytest.mark.parametrize("what", ["description", "targets", "datasource"])
def test_a_panel_without_something_is_found(board, what):
    panel = panels(board)[0]
    del panel[what]
    assert lint(board)


def test_panels_on_top_of_each_other_are_found(board):
    board["panels"].append(copy.deepcopy(panels(board)[0]))
    assert any("overlap" in fault for fault in lint(board))


def test_a_rate_over_a_fixed_time_is_found(board):
    first_target(board)["expr"] = "rate(accordion_job_restarts_total[5m])"
    assert any("fixed time" in fault for fault in lint(board))


def test_an_expression_that_is_no_promql_is_found(board):
    first_target(board)["expr"] = "sum(accordion_jobs"
    assert any("no PromQL" in fault for fault in parse_faults(board))
