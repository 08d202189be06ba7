"""The table of job statuses, and that nothing else lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion_service.api.dashboard.assets import STATIC
from accordion_service.domain.jobs.status_table import (
    ALLOWED_TRANSITIONS,
    ENDED,
    STATUS_TABLE,
    Phase,
    is_transition_allowed,
)
from accordion_service.domain.jobs.statuses import Desired, Reason, Status
from accordion_service.domain.overrides.states import OVERRIDE_TABLE, OverrideState
from accordion_workers.records.contract import EndReason

DEPLOY = Path(__file__).parents[3] / "deploy"
SERVICE = Path(__file__).parents[3] / "service" / "accordion_service"
NAMES = "|".join([*Status, *get_args(OverrideState)])
LIST = re.compile(rf"\b({NAMES})\b(\W{{1,6}}\b({NAMES})\b|[\"']?:)")
"""Two statuses side by side, or one as a key; of jobs or of overrides."""


def reachable(start: Status) -> set[Status]:
    found, edge = {start}, {start}
    while edge:
        edge = {new for old in edge for new in ALLOWED_TRANSITIONS[old]} - found
        found |= edge
    return found


def assigns_status(path: Path) -> bool:
    """Whether a module assigns the attribute `status` of something other than `self`, or sets that
    column in an `update` statement.
    """
    return any(
        (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr == "status"
            and ast.unparse(node.value) != "self"
        )
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "values"
            and any(keyword.arg == "status" for keyword in node.keywords)
        )
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_only_one_module_changes_the_status_of_a_row() -> None:
    found = [path for path in SERVICE.rglob("*.py") if assigns_status(path)]
    assert found == [SERVICE / "store/writes/status_changes.py"]


def test_every_status_is_reached_from_the_queue_and_reaches_every_end() -> None:
    assert reachable(Status.QUEUED) == set(Status)
    assert all(
        reachable(status) >= ENDED - {Status.FAILED, Status.SUCCEEDED}
        for status in set(Status) - ENDED
    )


@given(st.sampled_from(sorted(ENDED)), st.sampled_from(Status))
def test_an_ended_job_only_returns_to_the_queue_unless_it_succeeded(
    ended: Status, other: Status
) -> None:
    is_retry = other is Status.QUEUED and ended is not Status.SUCCEEDED
    assert is_transition_allowed(ended, other) == is_retry


def test_a_stopping_job_only_ends() -> None:
    assert ALLOWED_TRANSITIONS[Status.STOPPING] == ENDED


def test_paused_job_continues_only_through_the_queue() -> None:
    assert ALLOWED_TRANSITIONS[Status.PAUSED] == {Status.QUEUED, Status.CANCELLED, Status.FAILED}
    assert {old for old in Status if is_transition_allowed(old, Status.PAUSED)} == {
        Status.QUEUED,
        Status.PAUSING,
    }


@pytest.mark.parametrize(
    ("status", "before"),
    [
        (Status.STARTING, {Status.QUEUED}),
        (Status.RUNNING, {Status.LOST, Status.STARTING, Status.RESIZING, Status.RECOVERING}),
        (Status.RESIZING, {Status.RUNNING}),
        (Status.LOST, {Status.RUNNING, Status.RESIZING, Status.RECOVERING}),
        (Status.RECOVERING, {Status.STARTING, Status.RUNNING, Status.RESIZING}),
        (Status.PAUSING, {Status.STARTING, Status.RUNNING, Status.RESIZING, Status.RECOVERING}),
        (Status.SUCCEEDED, set(Status) - ENDED - {Status.QUEUED, Status.PAUSED}),
    ],
)
def test_a_status_follows_only_the_statuses_that_allow_it(
    status: Status, before: set[Status]
) -> None:
    assert {old for old in Status if is_transition_allowed(old, status)} == before


def test_every_reason_that_workers_give_for_an_end_is_known() -> None:
    assert set(EndReason.__args__) <= {reason.value for reason in Reason}


def test_desired_states_and_statuses_have_different_names() -> None:
    assert not {desired.value for desired in Desired} & {status.value for status in Status}


def test_every_status_has_a_row_in_order_and_the_statuses_that_may_follow() -> None:
    assert list(STATUS_TABLE) == list(Status)
    assert ALLOWED_TRANSITIONS.keys() == STATUS_TABLE.keys()
    assert {traits.phase for traits in STATUS_TABLE.values()} == set(Phase)


@pytest.mark.parametrize("values", [Status, Reason])
def test_every_status_and_reason_is_described_in_the_schema(values: type[Status | Reason]) -> None:
    assert re.findall(r"`([A-Z_]+)`[:,]", values.__doc__ or "") == list(values)


def test_every_override_state_has_a_row_in_order() -> None:
    assert list(OVERRIDE_TABLE) == list(get_args(OverrideState))


@pytest.mark.parametrize(
    "path",
    [*sorted(STATIC.rglob("*.js")), *sorted((DEPLOY / "grafana").glob("*.py"))],
    ids=lambda path: path.name,
)
def test_pages_and_panels_list_no_statuses(path: Path) -> None:
    assert not LIST.search(path.read_text())


@pytest.mark.parametrize("text", ['["PAUSED", "QUEUED"]', "RUNNING|LOST", 'x = { FAILED: "bad" }'])
def test_a_planted_list_of_statuses_is_found(text: str) -> None:
    assert LIST.search(text)


def test_alert_rules_select_exactly_the_active_or_training_statuses() -> None:
    rules = (DEPLOY / "prometheus/rules/accordion.yml").read_text()
    rows = STATUS_TABLE.items()
    active = "|".join(status for status, traits in rows if traits.is_active)
    training = "|".join(status for status, traits in rows if traits.phase is Phase.TRAINING)
    assert set(re.findall(r'job\w*\{state=~"([^"]+)"', rules)) == {active, training}
    assert not LIST.search(rules.replace(active, "").replace(training, ""))
