"""What `/metrics` holds, over real databases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from accordion.base.messages import Decision, Level, to_json
from accordion_service.api.request_times import RequestTimes, TimedRequests
from accordion_service.domain.jobs.statuses import Status
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import (
    CheckpointRow,
    ClusterRow,
    DecisionRow,
    EpochRow,
    JobRow,
    LeaseRow,
    OverrideRow,
)
from accordion_service.views.jobs import progress_view
from accordion_service.views.metrics import FAMILIES, MAX_GROUPS, groups_of, metrics_response
from accordion_workers.records.contract import Bytes, EpochRecord, JobSpec, Progress
from tests.e2e.dashboard_check import family as family_of
from tests.programs import run_program

NOW = datetime(2026, 11, 21, tzinfo=UTC)
T = NOW.timestamp()
RETENTION_S = 300.0
NODE = {"id": "n", "address": "10.0.0.1", "alive": True, "cpus": 4.0, "gpus": 0.0}
LAYERS = {"encoder.0.weight": "critical", "encoder.0.second": "stable", "head.weight": "stable"}


def job_row(job_id: str = "j", **values: Any) -> JobRow:
    spec = JobSpec.model_validate({"name": "digits", "task": {"name": "digits-mlp"}})
    defaults = {
        "name": "digits",
        "status": "RUNNING",
        "desired": "RUN",
        "reason": "TRAINING",
        "labels": {},
        "priority": 50,
        "created_at": T - 60,
        "queued_at": T - 60,
        "progress": progress(),
        "workers": 2,
        "min_workers": 1,
        "max_workers": 4,
        "tally": {
            "resizes": {"joined": 2},
            "recoveries": {"job": 1},
            "seconds_lost": 3.5,
            "steps_rolled_back": 7,
        },
        "world_size": 1,
        "failures": 3,
        "metrics": {"loss": 0.3, "accuracy": 0.9},
    }
    return JobRow(id=job_id, spec=spec.model_dump(mode="json"), **(defaults | values))


def progress(**values: Any) -> dict[str, Any]:
    numbers = {
        "attempt": 1,
        "generation": 1,
        "epoch": 2,
        "step": 50,
        "steps_per_epoch": 23,
        "epochs": 20,
        "world_size": 2,
    }
    counted = Bytes(payload=10, wire=11, dense=100, fp16=50)
    base = {"time": T - 1, "loss": 0.4, "lr": 0.1, "samples_per_s": 900.0, "bytes": counted}
    base["compute_s_by_rank"] = (0.1, 0.9)
    base |= {"wait_s_by_level": {"none": 0.3, "high": 0.04}, "exchange_wait_s": 0.05}
    return Progress(**(numbers | base | values), seconds_by_phase={"compute": 1.5}).model_dump(
        mode="json"
    )


def decision(epoch: int, change: dict[str, float | None]) -> DecisionRow:
    levels = {
        name: Level(name="low" if regime == "critical" else "high", method="powersgd")
        for name, regime in LAYERS.items()
    }
    made = Decision(
        epoch=epoch,
        step=epoch * 23,
        cause="window",
        reason="",
        regime_by_layer=LAYERS,
        level_by_layer=levels,
        change_by_layer=change,
    )
    return DecisionRow(
        job_id="j",
        epoch=epoch,
        step=epoch * 23,
        attempt=1,
        generation=1,
        time=T,
        decision=to_json(made),
    )


def epoch_row(epoch: int, statistic: dict[str, float] | None) -> EpochRow:
    record = EpochRecord(
        epoch=epoch,
        step=0,
        world_size=2,
        loss=0.4,
        lr=0.1,
        global_batch=64,
        samples=1437,
        seconds_by_phase={},
        bytes=Bytes(),
        regime_by_layer={},
        level_by_layer={},
        statistic_by_layer=statistic,
        agreement=0.25,
    )
    return EpochRow(
        job_id="j",
        epoch=epoch,
        attempt=1,
        generation=1,
        time=T,
        record=record.model_dump(mode="json"),
    )


def everything() -> list[Any]:
    return [
        job_row(),
        decision(2, {"encoder.0.weight": 0.7, "encoder.0.second": 0.1, "head.weight": 0.2}),
        decision(3, dict.fromkeys(LAYERS)),
        epoch_row(1, {"encoder.0.weight": 3.0, "encoder.0.second": 4.0, "head.weight": 2.0}),
        epoch_row(2, None),
        CheckpointRow(
            job_id="j",
            name="c1",
            attempt=1,
            generation=1,
            epoch=2,
            step=46,
            size_bytes=7,
            seconds=0.1,
            blocked_s=0.02,
            time=T - 9,
        ),
        override_row("o1", "APPLIED"),
        LeaseRow(name="scheduler", owner="s", token=1, renewed_at=T - 2, expires_at=T + 1),
        ClusterRow(id=1, reachable=True, seen_at=T, nodes=[NODE]),
    ]


def override_row(override_id: str, state: str) -> OverrideRow:
    return OverrideRow(
        id=override_id,
        job_id="j",
        number=1,
        target="compression",
        level="low",
        layers=["*"],
        apply_at="next_step",
        orders_version=1,
        state=state,
        created_at=T,
    )


def scrape(database: Database, *rows: Any, extra: Sequence[Collector] = ()) -> str:
    for row in rows:  # one by one, since the tables name each other
        with database.write() as session:
            session.add(row)
    content, _ = metrics_response(database, NOW, retention_s=RETENTION_S, extra=extra)
    return content.decode()


def value(text: str, name: str, **labels: str) -> float | None:
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    found = [
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_every_family_has_a_sample_when_a_job_has_trained(database):
    exported = {
        family_of(sample.name)
        for family in text_string_to_metric_families(scrape(database, *everything()))
        for sample in family.samples
    }
    assert exported == set(FAMILIES)


def test_promtool_has_nothing_to_say(database, require):
    times = RequestTimes()
    times.observe(0.1, method="GET", route="/", status=200)
    text = scrape(database, *everything(), extra=[times])
    said = run_program([require("promtool"), "check", "metrics"], input=text)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_figures_of_a_job_are_those_of_its_rows(database):
    text = scrape(database, *everything())
    assert value(text, "accordion_job_bytes_total", job_id="j", kind="payload") == 10
    assert value(text, "accordion_job_bytes_total", job_id="j", kind="wire") == 11
    assert value(text, "accordion_job_loss", job_id="j", kind="evaluation") == 0.3
    assert value(text, "accordion_job_epochs", job_id="j", state="finished") == 3
    assert value(text, "accordion_job_workers_wanted", job_id="j") == 2
    assert value(text, "accordion_job_restarts_total", job_id="j") == 3
    assert value(text, "accordion_job_checkpoint_timestamp_seconds", job_id="j") == T - 9
    assert value(text, "accordion_job_overrides", job_id="j", state="APPLIED") == 1


def test_a_decision_that_was_stored_before_there_were_local_steps_hides_no_job(database):
    old = decision(3, dict.fromkeys(LAYERS))
    old.decision.pop("local_steps")
    text = scrape(database, job_row(), old)
    assert value(text, "accordion_job_local_steps", job_id="j") == 1
    assert value(text, "accordion_job_workers_wanted", job_id="j") == 2


def test_planned_steps_follow_a_batch_that_has_grown(database):
    """200 steps of the small batch, then epochs of 10 larger ones: more than 10 × 20 in all."""
    grown = progress(epoch=10, step=250, steps_per_epoch=10, steps=300)
    row = job_row(progress=grown)
    text = scrape(database, row)
    planned = value(text, "accordion_job_steps", state="planned")
    shown = progress_view(row)
    assert shown is not None
    assert planned == shown.steps == 300


@pytest.mark.parametrize("status", ["PAUSED", "QUEUED", "PAUSING", "RECOVERING"])
def test_a_job_that_does_not_train_has_no_speed(database, status):
    row = job_row(status=status)
    assert value(scrape(database, row), "accordion_job_samples_per_second") == 0
    shown = progress_view(row)
    assert shown is not None
    assert (shown.samples_per_s, shown.eta_s) == (0.0, None)


def test_the_time_left_follows_the_mean_step_and_not_the_newest_one():
    steps = {"step": 50, "steps": 450, "step_s_by_phase": {"compute": 0.2, "evaluate": 0.05}}
    views = [progress_view(job_row(progress=progress(samples_per_s=s, **steps))) for s in (9, 900)]
    assert [view and view.eta_s for view in views] == [pytest.approx(100.0)] * 2


def test_the_speed_and_the_time_left_fit_each_other():
    steps = {"step": 50, "steps": 450, "step_s_by_phase": {"compute": 0.2, "evaluate": 0.05}}
    row = job_row(progress=progress(samples_per_s=900, global_batch=32, **steps))
    shown = progress_view(row)
    assert shown is not None
    assert (shown.samples_per_s, shown.eta_s) == (pytest.approx(32 / 0.25), pytest.approx(100.0))


def test_changes_of_workers_are_counted_by_cause_from_the_start(database):
    text = scrape(database, *everything(), job_row("new", tally={}))
    assert value(text, "accordion_job_resizes_total", job_id="j", cause="joined") == 2
    assert value(text, "accordion_job_recoveries_total", job_id="j", cause="job") == 1
    assert value(text, "accordion_job_resizes_total", job_id="new", cause="leaving") == 0
    assert value(text, "accordion_job_lost_seconds_total", job_id="j") == 3.5
    assert value(text, "accordion_job_rolled_back_steps_total", job_id="j") == 7


def test_predicted_waits_stand_beside_the_measured_one(database):
    text = scrape(database, *everything())
    predicted = "accordion_exchange_wait_predicted_seconds"
    assert value(text, predicted, job_id="j", level="none") == 0.3
    assert value(text, predicted, job_id="j", level="high") == 0.04
    assert value(text, "accordion_exchange_wait_seconds", job_id="j") == 0.05


def test_checkpoints_that_fail_are_counted_from_the_first_progress_on(database):
    text = scrape(
        database,
        job_row(progress=progress(failed_checkpoints=3, failed_checkpoints_in_a_row=2)),
        job_row("new"),
    )
    assert value(text, "accordion_job_failed_checkpoints_total", job_id="j") == 3
    assert value(text, "accordion_job_failed_checkpoints_total", job_id="new") == 0


def test_a_straggler_and_what_a_checkpoint_costs_are_seen(database):
    text = scrape(database, *everything())
    assert value(text, "accordion_step_compute_seconds", job_id="j", rank="1") == 0.9
    assert value(text, "accordion_job_checkpoint_duration_seconds", job_id="j") == 0.1
    assert value(text, "accordion_job_checkpoint_blocked_seconds", job_id="j") == 0.02
    assert value(text, "accordion_job_workers_allowed", job_id="j", limit="max") == 4


def test_a_job_is_in_exactly_one_state(database):
    text = scrape(database, job_row(status="STARTING"))
    assert [state for state in Status if value(text, "accordion_job_state", state=state) == 1] == [
        "STARTING"
    ]


def test_a_group_is_critical_when_one_of_its_layers_is(database):
    text = scrape(database, *everything())
    assert value(text, "accordion_group_regime", group="encoder.0", state="critical") == 1
    assert value(text, "accordion_group_regime", group="encoder.0", state="stable") == 0
    assert value(text, "accordion_group_regime", group="head", state="stable") == 1


@pytest.mark.parametrize("epochs", [(2, 3), (3, 2)])
def test_of_two_decisions_in_one_step_the_later_epochs_is_in_force(database, epochs):
    rows = {epoch: decision(epoch, dict.fromkeys(LAYERS, epoch / 10)) for epoch in epochs}
    for row in rows.values():
        row.step = 46
    text = scrape(database, job_row(), *rows.values())
    assert value(text, "accordion_group_change_ratio", group="head") == 0.3


def test_a_group_shows_its_lightest_level(database):
    text = scrape(database, *everything())
    assert value(text, "accordion_group_level", group="encoder.0", level="low") == 1
    assert value(text, "accordion_group_level", group="encoder.0", level="high") == 0
    assert value(text, "accordion_group_level", group="head", level="high") == 1


def test_change_and_norm_are_those_of_the_newest_closed_window(database):
    text = scrape(database, *everything())
    assert value(text, "accordion_group_change_ratio", group="encoder.0") == 0.7
    assert value(text, "accordion_group_gradient_norm", group="encoder.0") == 5.0


def test_a_loss_that_is_not_finite_is_nan(database):
    loss = value(
        scrape(database, job_row(progress=progress(loss=None))),
        "accordion_job_loss",
        kind="training",
    )
    assert loss is not None
    assert math.isnan(loss)


def test_guest_has_no_figures_that_only_the_service_could_know(database):
    unknown = progress(epochs=0, steps_per_epoch=0, samples_per_s=0.0)
    text = scrape(
        database,
        job_row("g", kind="guest", workers=0, world_size=2, progress=unknown),
        job_row("j"),
    )
    left_out = ("workers_wanted", "workers_allowed", "samples_per_second")
    assert [f'accordion_job_{name}{{job_id="g"' in text for name in left_out] == [False] * 3
    assert [
        value(text, f"accordion_job_{kind}", job_id="g", state="planned")
        for kind in ("epochs", "steps")
    ] == [None] * 2
    assert value(text, "accordion_job_workers_alive", job_id="g") == 2
    assert (
        value(text, "accordion_guests", state="RUNNING")
        == value(text, "accordion_jobs", state="RUNNING")
        == 1
    )


def test_an_ended_job_leaves_after_its_retention(database):
    ended = {"status": "SUCCEEDED", "reason": "COMPLETED"}
    text = scrape(
        database,
        job_row("old", ended_at=T - RETENTION_S - 1, **ended),
        job_row("new", ended_at=T - RETENTION_S + 1, **ended),
    )
    assert value(text, "accordion_job_info", job_id="old") is None
    assert value(text, "accordion_job_info", job_id="new") == 1
    assert value(text, "accordion_jobs", state="SUCCEEDED") == 2


def test_an_empty_service_counts_nothing_and_says_so(database):
    text = scrape(database)
    assert value(text, "accordion_queue_jobs") == 0
    assert value(text, "accordion_cluster_reachable") == 0
    assert value(text, "accordion_scheduler_heartbeat_timestamp_seconds") is None


@given(
    st.lists(
        st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5).map(".".join),
        unique=True,
        max_size=300,
    )
)
def test_groups_are_few_and_hold_every_layer(layers):
    groups = groups_of(layers)
    assert list(groups) == layers
    assert len(set(groups.values())) <= MAX_GROUPS


def test_a_model_with_hundreds_of_blocks_is_grouped_by_what_its_blocks_belong_to():
    layers = [
        f"{part}.{block}.linear.weight" for part in ("encoder", "decoder") for block in range(100)
    ]
    assert set(groups_of(layers).values()) == {"encoder", "decoder"}


def test_request_times_name_the_route_and_not_the_path(database):
    times = RequestTimes()
    app = Starlette(routes=[Route("/jobs/{job_id}", lambda _: PlainTextResponse("ok"))])
    client = TestClient(TimedRequests(app, times))
    for path in ("/jobs/1", "/jobs/2", "/guessed"):
        client.get(path)
    text = scrape(database, extra=[times])
    count = "accordion_api_request_duration_seconds_count"
    assert value(text, count, method="GET", route="/jobs/{job_id}", status="200") == 2
    assert value(text, count, method="GET", route="unmatched", status="404") == 1
