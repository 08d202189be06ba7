"""The generated Grafana dashboard, without a Prometheus; `tests/e2e` asks one."""

from __future__ import annotations

import copy
import json
import runpy
import sys

import pytest

from service.metrics import FAMILIES
from tests.e2e.dashboard_check import JOB_DASHBOARD, ROOT, lint, name_faults, panels, parse_faults

IN_PROCESS = {"accordion_api_request_duration_seconds"}
"""Metrics that only live in the api's process."""
EXPORTED = set(FAMILIES) | IN_PROCESS


@pytest.fixture
def board():
    return json.loads(JOB_DASHBOARD.read_text())


def faults(board):
    return [*lint(board), *parse_faults(board), *name_faults(board, EXPORTED)]


def first_target(board):
    return next(panel for panel in panels(board) if panel["type"] == "timeseries")["targets"][0]


def test_generating_it_again_gives_the_same_bytes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "deploy/grafana"))
    monkeypatch.setitem(sys.modules, "panels", None)
    sys.modules.pop("panels")
    generated = runpy.run_path(str(ROOT / "deploy/grafana/generate.py"))["job_dashboard"]()
    assert generated == JOB_DASHBOARD.read_text()


def test_it_is_complete_parses_and_names_what_the_service_exports_both_ways(board):
    assert faults(board) == []


def test_a_wrong_metric_name_is_found(board):
    first_target(board)["expr"] = 'max without (instance) (accordion_job_lost{job_id="$job_id"})'
    assert any("accordion_job_lost, which nothing exports" in fault for fault in faults(board))


def test_a_metric_that_nobody_looks_at_is_found(board):
    assert name_faults(board, EXPORTED | {"accordion_forgotten"}) == [
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
