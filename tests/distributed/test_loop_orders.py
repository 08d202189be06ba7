"""People take the wheel while a job runs."""

from __future__ import annotations

from typing import Any

import pytest

from accordion.base.messages import Override, plan_digest
from accordion_workers.records.contract import DesiredState
from accordion_workers.spec.compression import CompressionSpec, WarmUpSpec
from tests.distributed.loop_jobs import RecordingLink, Result, run_job, spec

STRONG = spec(training={"epochs": 4}, policy={"name": "fixed"})
LIGHT_IN_2 = Override(id="by-hand", level="low", layers=("hidden*",), until=3)
UNKNOWN = Override(id="unknown", level="middle", number=1)


def ordered(
    run_group: Any, storage: Any, *overrides: Override, after: tuple[str, int] | None = ("epoch", 1)
) -> Result:
    """The job, with these overrides given when the record of epoch 1 is posted."""
    link = RecordingLink(orders=DesiredState(version=1, overrides=overrides), order_after=after)
    return run_group(2, run_job, storage, STRONG, link)[0]


@pytest.fixture(scope="module")
def light(run_group, tmp_path_factory) -> RecordingLink:
    """Link of the job that is light in epoch 2."""
    return ordered(run_group, tmp_path_factory.mktemp("light"), LIGHT_IN_2).link


def test_an_override_holds_from_the_next_step_until_the_epoch_it_names(light):
    levels = [record.level_by_layer for record in light.of("epoch")]
    assert [level["hidden.weight"] for level in levels] == ["high", "high", "low", "high"]
    assert [level["output.weight"] for level in levels] == ["high"] * 4


def test_every_rank_acknowledges_an_override_with_its_own_step_and_plan(light):
    first = next(record for record in light.of("acks") if record.override_ids == ("by-hand",))
    assert (first.epoch, first.step, first.world_size) == (2, 47, 2)
    assert [(ack.rank, ack.step, ack.digest) for ack in first.acks] == [
        (rank, 47, first.digest) for rank in (0, 1)
    ]


def test_an_acknowledged_digest_is_that_of_the_decision_beside_it(light):
    digests = [plan_digest(record.decision.level_by_layer) for record in light.of("decision")]
    assert digests == [record.digest for record in light.of("acks")]


def test_the_policy_has_the_wheel_again_when_an_override_ends(light):
    last = light.of("acks")[-1]
    assert (last.epoch, last.override_ids) == (3, ())


def test_an_override_that_cannot_be_applied_is_rejected_and_the_others_hold(run_group, tmp_path):
    link = ordered(run_group, tmp_path, UNKNOWN, LIGHT_IN_2).link
    (rejected,) = link.of("rejected")
    assert rejected.override_id == "unknown"
    assert "unknown level 'middle'; known are low (0), high (1)" in rejected.reason
    assert link.of("epoch")[2].level_by_layer["hidden.weight"] == "low"


def test_orders_that_were_there_before_the_job_hold_from_its_first_step_boundary(
    run_group, tmp_path
):
    link = ordered(run_group, tmp_path, LIGHT_IN_2, after=None).link
    assert (link.of("decision")[0].decision.cause, link.of("decision")[0].decision.step) == (
        "override",
        1,
    )


def test_the_end_of_a_jobs_warm_up_is_a_decision_at_its_step_also_after_a_stop(run_group, tmp_path):
    warm = STRONG.model_copy(
        update={"compression": CompressionSpec(warm_up=WarmUpSpec(steps=30, level="half"))}
    )
    stop = RecordingLink(orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0))
    first = run_group(2, run_job, tmp_path, warm, stop)[0].link
    assert first.of("checkpoint")[-1].step < 30
    link = run_group(2, run_job, tmp_path, warm, RecordingLink(), 2)[0].link
    (ended,) = [one.decision for one in link.of("decision") if one.decision.cause == "warm_up"]
    assert (ended.epoch, ended.step) == (1, 30)
    levels = [record.level_by_layer["hidden.weight"] for record in first.of("epoch")]
    levels += [record.level_by_layer["hidden.weight"] for record in link.of("epoch")]
    assert levels == ["half", "high", "high", "high"]


def test_the_last_epoch_is_followed_by_no_decision(run_group, tmp_path):
    link = ordered(run_group, tmp_path).link
    assert [record.decision.epoch for record in link.of("decision")] == [1, 2, 3]


def test_a_resumed_job_acknowledges_its_overrides_again(run_group, tmp_path):
    for_ever = Override(id="by-hand", level="low")
    stop = RecordingLink(
        orders=DesiredState(version=2, overrides=(for_ever,), stop="cancel"),
        order_after=("epoch", 1),
    )
    run_group(2, run_job, tmp_path, STRONG, stop)
    again = RecordingLink(orders=DesiredState(version=2, overrides=(for_ever,)))
    link = run_group(2, run_job, tmp_path, STRONG, again, 2)[0].link
    assert link.of("acks")[0].override_ids == ("by-hand",)
    assert link.of("epoch")[0].level_by_layer["hidden.weight"] == "low"


def test_an_override_that_was_taken_back_while_the_job_was_down_is_gone(run_group, tmp_path):
    orders = DesiredState(
        version=2, overrides=(Override(id="by-hand", level="low"),), stop="cancel"
    )
    run_group(2, run_job, tmp_path, STRONG, RecordingLink(orders=orders, order_after=("epoch", 1)))
    link = run_group(
        2, run_job, tmp_path, STRONG, RecordingLink(orders=DesiredState(version=3)), 2
    )[0].link
    assert [record.level_by_layer["hidden.weight"] for record in link.of("epoch")] == [
        "high",
        "high",
    ]


@pytest.mark.parametrize("after", [None, ("epoch", 1)])
def test_a_job_that_is_told_to_stop_saves_and_returns(run_group, tmp_path, after):
    link = RecordingLink(orders=DesiredState(version=1, stop="cancel"), order_after=after)
    result = run_group(2, run_job, tmp_path, STRONG, link)[0]
    assert result.outcome == "stopped"
    last = 1 if after is None else 47
    assert result.link.of("checkpoint")[-1].step == last
    told = result.link.progresses[-1]
    assert (told.step, told.loss is None) == (last, False)
