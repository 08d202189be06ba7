"""Budgets of bytes, which become lengths of rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from accordion.base.errors import ConfigError
from accordion.base.local_steps import LocalSteps
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.byte_budget import CountedModel, describe_rounds, resolve_budget
from accordion_workers.training.planned_run import list_assumptions, plan_run

SAMPLES = 6400
"""100 steps an epoch."""


def spec(**parts: Any) -> JobSpec:
    local = {"budget": 50, **parts.pop("local_steps", {})}
    default = {"workers": {"min": 1, "max": 4}, "compression": {"method": "qsgd"}}
    whole = {"task": {"name": "digits-mlp"}, **default, **parts, "local_steps": local}
    return JobSpec.model_validate(whole)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(512, 300), torch.nn.Linear(300, 10))


def savings(job: JobSpec) -> list[float]:
    counted = CountedModel(model(), world_size=job.max_replicas, shards=job.num_shards)
    runs = [plan_run(job, one, counted, samples=SAMPLES) for one in list_assumptions(job)]
    return [run.uncompressed_bytes / run.sent_bytes for run in runs]


def resolved(**parts: Any) -> JobSpec:
    return resolve_budget(spec(**parts), model(), samples=SAMPLES)


def rounds(job: JobSpec) -> LocalSteps:
    local = job.config().local_steps
    assert local is not None
    return local


def test_rounds_are_the_shortest_that_keep_to_the_budget_whatever_is_decided():
    job = resolved()
    low = rounds(job).low
    assert 1 < low < 50
    assert (
        min(savings(job))
        >= 50
        > min(savings(resolved(local_steps={"budget": None, "low": low - 1})))
    )


def test_workers_that_hold_the_model_together_keep_to_the_budget_in_their_parts():
    """Each part of a layer has a scale of its own."""
    small = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(9)))
    job = spec(
        workers={"min": 8, "max": 16},
        parallelism={"shard": 8},
        training={"micro_batch": 4},
        local_steps={"budget": 20},
    )
    replicas = spec(workers={"min": 1, "max": 2}, local_steps={"budget": 20})
    sharded, whole = (
        rounds(resolve_budget(one, small, samples=SAMPLES)).low for one in (job, replicas)
    )
    assert sharded > whole


def test_high_is_eight_times_low_unless_it_is_given():
    assert rounds(resolved()).high == 8 * rounds(resolved()).low
    assert rounds(resolved(local_steps={"high": 60})).high == 60


def test_a_start_spends_from_the_budget():
    plain, start = rounds(resolved()), rounds(resolved(local_steps={"start_steps": 20}))
    assert start.low > plain.low
    assert start.start_steps == 20


def test_a_falling_rate_makes_the_first_rounds_shorter():
    drop = {"training": {"lr_decay": {"at": [5], "factor": 0.1}}}
    assert rounds(resolved(**drop)).low < rounds(resolved()).low


def test_rounds_are_at_least_as_long_as_the_overlap():
    assert rounds(resolved(local_steps={"overlap": 3})).low == rounds(resolved()).low
    long = rounds(resolved(local_steps={"overlap": 48}))
    assert long.low == long.overlap == 48


def test_one_worker_which_sends_nothing_keeps_to_every_budget():
    assert rounds(resolved(workers={"max": 1})) == LocalSteps(low=1, high=8)


def test_a_spec_without_a_budget_stays_as_it_is():
    plain = spec(local_steps={"budget": None, "low": 4})
    assert resolve_budget(plain, model(), samples=SAMPLES) is plain


def test_a_line_tells_what_a_budget_has_become():
    job = resolved(local_steps={"budget": 1})
    assert describe_rounds(job) == (
        "local_steps.budget becomes low 1 and high 8, planned with workers.max 4"
    )


@pytest.mark.parametrize(
    ("parts", "way_out"),
    [
        ({"budget": 5000}, "its rounds end with the epoch; give {} or less, or fewer bits"),
        ({"budget": 50, "high": 4}, "at most 4 steps (high); give {} or less"),
        ({"budget": 50, "start_steps": 900}, "900 steps have an exchange each, its rounds"),
    ],
)
def test_a_budget_out_of_reach_is_refused_with_one_that_is_not(parts, way_out):
    with pytest.raises(ConfigError, match="this job can send") as refused:
        resolved(local_steps=parts)
    text = str(refused.value)
    reachable = text.partition("can send ")[2].split()[0]
    assert way_out.format(reachable) in text
    assert min(savings(resolved(local_steps={**parts, "budget": float(reachable)}))) >= float(
        reachable
    )


def test_a_job_that_can_save_no_bytes_is_told_to_leave_the_budget_out():
    windows = {"policy": {"window": {"steps": 1}}, "compression": {"method": "none"}}
    with pytest.raises(ConfigError, match=r"0\.\d times fewer .*; give local_steps.low in its"):
        resolved(local_steps={"budget": 1, "high": 1}, **windows)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"local_steps": {"budget": 0.5}}, "greater than or equal to 1"),
        ({"local_steps": {"budget": True}}, "valid number"),
        ({"local_steps": {"low": 4}}, "low=4 and budget=50.0; give one of them"),
        ({"local_steps": {"budget": None}}, "low=None and budget=None; give one of them"),
        ({"local_steps": {"high": 3, "overlap": 5}}, "high=3 and overlap=5; .*at least overlap"),
        ({"batch": {"high": 128}}, "batch grows when the job decides it; give local_steps.low"),
        ({"policy": {"name": "cost_aware"}}, "policy cost_aware may send gradients uncompressed"),
        (
            {"task": {"name": "script", "options": {"file": "train.py"}}, "code": "0" * 64},
            "the learning rate of a script is its own",
        ),
    ],
)
def test_a_budget_of_what_is_not_known_before_is_refused_with_the_reason(parts, reason):
    with pytest.raises(ValidationError, match=reason):
        spec(**parts)
