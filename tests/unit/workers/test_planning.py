"""Predicted steps of every method and level on a given link."""

from __future__ import annotations

import math

import pytest
import torch

from accordion.base.link_model import LinkModel
from accordion.base.messages import LayerInfo
from accordion.compress.layer_stacks import Layer
from accordion_workers.planning.predictions import (
    Prediction,
    list_levels,
    nominal_link,
    predict_steps,
)
from accordion_workers.planning.step_measurement import StepMeasurement, measure_step
from accordion_workers.records.contract import JobSpec
from accordion_workers.user_code.load_task import load_task

SPEC = JobSpec.model_validate(
    {
        "task": {"name": "digits-mlp"},
        "compression": {"method": "powersgd", "low": {"rank": 3}, "high": {"rank": 2}},
    }
)
SHAPES = ((64, 128), (128,), (128, 10))
VALUES = sum(math.prod(shape) for shape in SHAPES)


def measurement(buckets: int = 1) -> StepMeasurement:
    """A step in which all buckets but the last are ready at once, and the last 20 s later.

    It and the links are slow, so that the milliseconds of encoding do not matter.
    """
    layers = [Layer(name=f"l{i}", gradient=torch.zeros(shape)) for i, shape in enumerate(SHAPES)]
    groups = (tuple(layers),) if buckets == 1 else tuple((layer,) for layer in layers)
    return StepMeasurement(
        first_ready_s=80.0,
        ready_s=(*(0.0 for _ in groups[1:]), 20.0),
        optimizer_s=5.0,
        buckets=groups,
        layers=tuple(
            LayerInfo(name=f"l{i}", shape=shape) for i, shape in enumerate(SHAPES) if len(shape) > 1
        ),
        model=torch.nn.Linear(64, 128),
        samples=1438,
    )


def predict(link: LinkModel, buckets: int = 1) -> dict[str, Prediction]:
    predictions = predict_steps(measurement(buckets), SPEC, link)
    assert [p.step_s for p in predictions] == sorted(p.step_s for p in predictions)
    return {f"{p.method} {p.level}".strip(): p for p in predictions}


def test_every_method_is_predicted_and_the_jobs_own_at_its_own_levels():
    levels = list_levels(SPEC)
    assert {level.method for level in levels.values()} >= {"none", "half", "topk", "powersgd"}
    assert levels["powersgd low"].options["rank"] == 3
    assert levels["powersgd high"].options["rank"] == 2
    assert "none high" not in levels


def test_an_uncompressed_step_takes_what_the_link_takes_for_all_bytes():
    none = predict(LinkModel(world_size=4, latency_s=1.0, bytes_per_s=1e4))["none"]
    assert none.sent_bytes == 6 * VALUES
    assert (none.exchange_plan, none.collectives) == ((1,), 1)
    assert none.exchange_s == pytest.approx(3 * 1.0 + 6 * VALUES / 1e4, abs=1.0)
    assert none.step_s == pytest.approx(105.0 + none.exchange_s)


def test_headers_take_a_part_of_a_nominal_rate():
    link = nominal_link(workers=2, latency_s=0.008, bytes_per_s=12.5e6)
    assert link.bytes_per_s == pytest.approx(11.77e6, rel=1e-3)
    assert (link.world_size, link.latency_s) == (2, 0.008)


def test_exchanges_that_end_before_the_last_bucket_add_nothing():
    link = LinkModel(world_size=2, latency_s=4.0, bytes_per_s=math.inf)
    assert predict(link, buckets=3)["none"].exchange_s == pytest.approx(8.0, abs=1.0)


def test_collectives_are_counted_over_the_exchanges_of_a_step():
    """PowerSGD sends two factors one after the other, and biases with the first of them."""
    link = LinkModel(world_size=2, latency_s=0.0, bytes_per_s=1e12)
    assert predict(link, buckets=3)["none"].collectives == 3
    assert predict(link)["powersgd low"].collectives == 2


def test_the_method_of_the_job_is_marked_and_its_slowest_pace_kept():
    link = LinkModel(world_size=2, latency_s=0.0, bytes_per_s=1e12)
    found = predict(link)
    assert {name for name, one in found.items() if one.is_own_method} == {
        "powersgd low",
        "powersgd high",
    }
    paced = SPEC.model_copy(
        update={"task": SPEC.task.model_copy(update={"options": {"min_step_s": 500.0}})}
    )
    slow = predict_steps(measurement(), paced, link)
    assert {one.step_s for one in slow} == {500.0}


def test_rounds_of_local_steps_spread_their_exchange_over_their_steps():
    link = LinkModel(world_size=4, latency_s=0.0, bytes_per_s=1e4)
    parts = {
        "training": {"global_batch": 16, "micro_batch": 8},  # 90 steps in an epoch
        "compression": {"method": "qsgd"},
        "local_steps": {"low": 5, "high": 50, "start_steps": 10},
    }
    job = JobSpec.model_validate({**SPEC.model_dump(exclude_unset=True), **parts})
    found = predict_steps(measurement(), job, link)
    rounds = {one.local_steps: one for one in found if (one.method, one.level) == ("qsgd", "low")}
    assert set(rounds) == {1, 5, 50}
    assert {one.local_steps for one in found if not one.is_own_method} == {1}
    assert rounds[5].sent_bytes == pytest.approx(rounds[1].sent_bytes / 5, abs=1)
    assert rounds[50].exchange_s == pytest.approx(rounds[5].exchange_s / 10, rel=0.2)
    fixed = JobSpec.model_validate(job.model_dump() | {"local_steps": {"low": 5}})
    only = predict_steps(measurement(), fixed, link)
    assert {one.local_steps for one in only if one.is_own_method} == {5}
    plain = fixed.model_dump() | {"compression": {"method": "none"}}
    none = predict_steps(measurement(), JobSpec.model_validate(plain), link)
    assert {one.local_steps for one in none if one.is_own_method} == {1, 5}


def test_no_round_is_predicted_to_be_longer_than_an_epoch():
    link = LinkModel(world_size=4, latency_s=0.0, bytes_per_s=1e4)
    parts = {"compression": {"method": "qsgd"}, "local_steps": {"low": 5, "high": 500}}
    job = JobSpec.model_validate({**SPEC.model_dump(exclude_unset=True), **parts})
    found = predict_steps(measurement(), job, link)
    # 1438 samples are 23 steps of 64.
    assert {one.local_steps for one in found if one.is_own_method} == {5, 23}


def test_an_exchange_beside_steps_adds_what_outlasts_them():
    link = LinkModel(world_size=4, latency_s=0.0, bytes_per_s=10.0)
    added = {}
    for overlap in (0, 2, 5):
        parts = {"compression": {"method": "none"}, "local_steps": {"low": 5, "overlap": overlap}}
        job = JobSpec.model_validate({**SPEC.model_dump(exclude_unset=True), **parts})
        (found,) = (
            one
            for one in predict_steps(measurement(), job, link)
            if (one.method, one.local_steps) == ("none", 5)
        )
        added[overlap] = 5 * found.exchange_s
    step_s = measurement().step_s
    assert added[0] > 5 * step_s
    assert added[2] == pytest.approx(added[0] - 2 * step_s, abs=1.0)
    assert added[5] == pytest.approx(added[0] - 5 * step_s, abs=1.0)


def test_a_slow_link_favours_methods_that_send_little():
    slow = predict(LinkModel(world_size=4, latency_s=0.0, bytes_per_s=100.0))
    assert slow["powersgd high"].step_s < slow["powersgd low"].step_s < slow["none"].step_s


def test_the_step_of_a_job_is_measured_with_its_share_of_the_batch():
    found = measure_step(SPEC, 2, seconds=0.0)
    assert found.first_ready_s > 0.0
    assert found.ready_s[0] == 0.0
    assert found.step_s > 0.0
    model = load_task("digits-mlp", SPEC.task.options).model()
    exchanged = sum(layer.gradient.numel() for group in found.buckets for layer in group)
    assert exchanged == sum(parameter.numel() for parameter in model.parameters())
    assert exchanged == sum(parameter.numel() for parameter in found.model.parameters())
    assert found.samples == 1437
    assert not torch.distributed.is_initialized()
