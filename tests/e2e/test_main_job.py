"""The main job over REST on real Ray: digits-watch.yaml, watched, overridden, scraped, and with its
Accordion actor killed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion_service.domain.jobs.plans import PlanStatus
from accordion_service.schemas.overrides import OverrideRequest, OverrideView
from tests.e2e.dashboard_check import JOB_DASHBOARD, live_faults, prometheus
from tests.e2e.real_up import Up, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
SPEC = yaml.safe_load((Path(__file__).parents[2] / "deploy/jobs/digits-watch.yaml").read_text())
LONG = 1000
"""Epochs of a job that is cancelled: it still runs when Prometheus has seen it for as long as that
may take.
"""
LAST_DROP, FINAL_RATE = 32, 0.001
"""Epoch in which the learning rate drops for the last time, and what it is then."""
FIRST, UNTIL = 8, 30
"""The override is given in epoch 8, where the policy holds all layers at `high`, and ends at epoch
30.
"""


@pytest.fixture(scope="module")
def calm(up: Up) -> str:
    """The job as it runs when nobody interferes."""
    return _finished(up, up.client.submit(_paced(0.0)).id)


@pytest.fixture(scope="module")
def overridden(up: Up) -> Iterator[str]:
    """Id of the job with many more epochs, of which, in epoch 8, a person holds all layers at
    `low`.
    """
    training = {**SPEC["training"], "epochs": LONG}
    job = up.client.submit({**_paced(0.02), "name": "overridden", "training": training})
    wait_for(lambda: len(up.client.epochs(job.id).items) >= FIRST)
    wish = up.client.override(job.id, OverrideRequest(level="low", until=UNTIL, reason="a test"))
    wait_for(lambda: _state(up, job.id) not in ("PENDING", "DELIVERED"))
    assert _state(up, job.id) == "APPLIED", wish
    yield job.id
    up.client.cancel(job.id)
    wait_for(lambda: up.client.job(job.id).status == "CANCELLED")


@pytest.fixture(scope="module")
def restarted_actor(up: Up, calm: str) -> str:
    """Id of the job when the Accordion actor's process is killed in epoch 4."""
    job = up.client.submit(_paced(0.02))
    wait_for(lambda: len(up.client.epochs(job.id).items) >= 4)
    os.kill(_actor_pid(up), signal.SIGKILL)
    return _finished(up, job.id)


def _paced(min_step_s: float) -> dict[str, Any]:
    """Spec of the job with a minimum time per step; the mathematics stays the same."""
    return {**SPEC, "task": {**SPEC["task"], "options": {"hidden": 512, "min_step_s": min_step_s}}}


def _finished(up: Up, job_id: str) -> str:
    wait_for(
        lambda: up.client.job(job_id).status in ("SUCCEEDED", "FAILED", "CANCELLED"),
        lambda: up.client.job(job_id),
    )
    job = up.client.job(job_id)
    assert job.status == "SUCCEEDED", job.message
    return job_id


def _state(up: Up, job_id: str) -> str:
    return up.client.overrides(job_id).items[0].state


def _actor_pid(up: Up) -> int:
    """Return the process of that name under this home's Ray head."""
    found = [path for path in Path("/proc").glob("[0-9]*") if _is_actor(path, up)]
    assert len(found) == 1, found
    return int(found[0].name)


def _is_actor(path: Path, up: Up) -> bool:
    try:
        name = (path / "cmdline").read_bytes()
        return (
            name.startswith(b"ray::AccordionActor")
            and f"{up.home}/".encode() in (path / "environ").read_bytes()
        )
    except OSError:
        return False


def _levels(up: Up, job_id: str) -> list[str]:
    return [
        "/".join(sorted(set(epoch.level_by_layer.values())))
        for epoch in up.client.epochs(job_id).items
    ]


def test_the_job_learns_and_changes_its_levels_by_itself(up: Up, calm: str) -> None:
    assert up.client.job(calm).metrics["accuracy"] >= 0.95
    assert {"low", "high"} <= set(_levels(up, calm))
    epochs = up.client.epochs(calm).items
    assert [epoch.epoch for epoch in epochs] == list(range(40))
    assert all(0 < epoch.bytes.payload < epoch.bytes.fp16 < epoch.bytes.dense for epoch in epochs)


def test_killing_the_accordion_actor_changes_no_decision(
    up: Up, calm: str, restarted_actor: str
) -> None:
    assert _levels(up, restarted_actor) == _levels(up, calm)
    epochs, undisturbed = (up.client.epochs(job_id).items for job_id in (restarted_actor, calm))
    assert [epoch.epoch for epoch in epochs] == list(range(40))
    assert [epoch.loss for epoch in epochs] == [epoch.loss for epoch in undisturbed]


def test_an_override_is_applied_when_every_rank_says_so(up: Up, overridden: str) -> None:
    override = up.client.overrides(overridden).items[0]
    assert (override.acks, override.world_size) == (2, 2)
    assert [ack.rank for ack in override.ack_list] == [0, 1]
    assert len({ack.digest for ack in override.ack_list}) == 1


def test_the_epochs_show_the_level_of_an_override_until_it_expires(
    up: Up, overridden: str, calm: str
) -> None:
    applied = up.client.overrides(overridden).items[0].epoch
    assert applied is not None
    assert FIRST <= applied < UNTIL
    wait_for(lambda: len(up.client.epochs(overridden).items) > UNTIL)
    levels = _levels(up, overridden)
    assert levels[:applied] == _levels(up, calm)[:applied]
    assert set(levels[applied:UNTIL]) == {"low"}
    schedule = up.client.schedule(overridden)
    assert {layer.said_by for layer in schedule.layers} == {"policy"}
    assert up.client.overrides(overridden).items[0].state == "EXPIRED"


def test_half_of_the_learning_rate_holds_on_all_ranks_and_is_given_back(
    up: Up, overridden: str
) -> None:
    def rates() -> list[float]:
        return [round(epoch.lr, 9) for epoch in up.client.all_epochs(overridden)]

    def half() -> OverrideView:
        return up.client.overrides(overridden).items[1]

    def is_recorded() -> bool:
        first = half().epoch
        return first is not None and len(rates()) > first

    wait_for(lambda: len(rates()) > LAST_DROP)
    up.client.override(overridden, OverrideRequest(target="lr", level={"factor": 0.5}))
    wait_for(lambda: half().state == "APPLIED")
    wait_for(is_recorded)
    applied = half()
    assert (applied.acks, len({ack.step for ack in applied.ack_list})) == (2, 1)
    up.client.cancel_override(overridden, applied.id)
    wait_for(lambda: rates()[-1] == FINAL_RATE)
    held = rates()[applied.epoch :]
    assert (held, set(held)) == (sorted(held), {FINAL_RATE / 2, FINAL_RATE})
    assert rates()[LAST_DROP : applied.epoch] == [FINAL_RATE] * ((applied.epoch or 0) - LAST_DROP)


def test_every_panel_finds_numbers_while_a_real_job_trains(
    up: Up, overridden: str, require
) -> None:
    with prometheus(str(require("prometheus")), up.client.url, token=up.token) as url:
        # The model has one bucket: there is nothing to plan, so exchanges are not measured.
        faults = live_faults(
            json.loads(JOB_DASHBOARD.read_text()), url, overridden, without={"Wait for exchanges"}
        )
    assert faults == []
    why = up.client.why(overridden)
    assert why.cause is not None, why
    assert sum(why.seconds_by_cause.values()) == pytest.approx(why.step_s)


def test_a_plan_is_measured_in_a_process_of_the_cluster(up: Up) -> None:
    """One can be measured; the task of the other raises, which its plan tells."""
    workers = {"workers": {"max": 2}}
    specs = [
        {**_paced(0.0), **workers},
        {"task": {"name": "synthetic", "options": {"raise_at_step": 0}}, **workers},
    ]
    plans = [
        up.client.plan(spec, mbit_per_s=100.0, latency_ms=8.0, measure_s=0.5) for spec in specs
    ]
    open_states = {PlanStatus.QUEUED, PlanStatus.RUNNING}
    wait_for(lambda: up.client.plan_result(plans[1].id).status not in open_states)
    done, refused = (up.client.plan_result(plan.id) for plan in plans)
    assert done.status == PlanStatus.SUCCEEDED, done.message
    assert {row.method for row in done.predictions} >= {"none", "half", "topk", "powersgd"}
    own = {row.level: row for row in done.predictions if row.is_own_method}
    assert set(own) == {"low", "high"}
    assert own["low"].step_s >= done.compute_s
    assert refused.status == PlanStatus.FAILED
    assert "raise_at_step asks for an error" in refused.message
