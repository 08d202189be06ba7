"""Jobs with local steps: they learn, resume and are evaluated where all workers have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.optim.optimizer import register_optimizer_step_post_hook

from accordion.base.messages import Override
from accordion_workers.common.errors import LossNotFinite
from accordion_workers.records.contract import DesiredState
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from tests.distributed.loop_jobs import RecordingLink, Result, equal, run_job, spec

STEPS_PER_EPOCH = 23
PLAIN = {"name": "sgd", "lr": 0.1, "momentum": 0.0}
LOCAL = spec(
    training={"epochs": 3, "optimizer": PLAIN},
    compression={"method": "none"},
    local_steps={"low": 4},
)
STOP_IN_EPOCH_2 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 1)
)


@pytest.fixture(scope="module")
def undisturbed(run_group, tmp_path_factory) -> Result:
    return run_group(2, run_job, tmp_path_factory.mktemp("undisturbed"), LOCAL)[0]


def last_accuracy(result: Result) -> float:
    return float(result.link.of("epoch")[-1].metrics["accuracy"])


def test_a_job_learns_with_a_fraction_of_the_exchanges(undisturbed, run_group, tmp_path):
    plain = LOCAL.model_copy(update={"local_steps": None})
    every_step = run_group(2, run_job, tmp_path, plain)[0]
    assert last_accuracy(undisturbed) > last_accuracy(every_step) - 0.05
    sent, all_of_it = (
        sum(epoch.bytes.payload for epoch in result.link.of("epoch"))
        for result in (undisturbed, every_step)
    )
    # 23 steps are five rounds of four and one of three.
    assert sent / all_of_it == pytest.approx(6 / STEPS_PER_EPOCH, rel=0.05)
    counted = [epoch.bytes.dense for epoch in undisturbed.link.of("epoch")]
    assert counted == [epoch.bytes.dense for epoch in every_step.link.of("epoch")]


def test_decisions_and_epochs_tell_the_length_of_rounds_and_all_ranks_run_it(undisturbed):
    assert {record.decision.local_steps for record in undisturbed.link.of("decision")} == {4}
    assert {epoch.local_steps for epoch in undisturbed.link.of("epoch")} == {4}
    for record in undisturbed.link.of("acks"):
        assert [ack.digest for ack in record.acks] == [record.digest] * 2


def test_a_stopped_job_goes_on_with_the_bits_of_one_that_was_never_stopped(
    undisturbed, run_group, tmp_path
):
    stopped = run_group(2, run_job, tmp_path, LOCAL, STOP_IN_EPOCH_2)[0]
    assert stopped.outcome == "stopped"
    assert stopped.link.of("checkpoint")[-1].step == 2 * STEPS_PER_EPOCH + 4
    resumed = run_group(2, run_job, tmp_path, LOCAL, None, 2)[0]
    assert equal(resumed.parameters, undisturbed.parameters)


def train_and_spoil(rank: int, storage: Path) -> Result:
    """Train with an optimizer that leaves an infinite parameter, as Adam does with eps=0."""

    def spoil(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        optimizer.param_groups[0]["params"][0].data.fill_(torch.inf)

    hook = register_optimizer_step_post_hook(spoil)
    try:
        return run_job(rank, storage, LOCAL)
    finally:
        hook.remove()


def test_a_job_whose_rounds_are_all_undone_ends_with_the_reason(run_group, tmp_path):
    with pytest.raises(LossNotFinite) as caught:
        run_group(2, train_and_spoil, tmp_path)
    assert "in 10 rounds of local steps in a row" in str(caught.value)
    # Five rounds of four steps and one of three in epoch 0.
    assert (caught.value.epoch, caught.value.step) == (1, STEPS_PER_EPOCH + 4 * 4 - 1)


def break_a_gradient(rank: int, storage: Path) -> Result:
    """Train with one gradient of rank 1 that is not finite."""
    calls = iter([rank == 1])

    def spoil(gradient: torch.Tensor) -> None:
        gradient.mul_(torch.nan if next(calls, False) else 1.0)

    def watch(module: torch.nn.Module, inputs: Any, outputs: torch.Tensor) -> None:
        if module.training and isinstance(module, torch.nn.Linear) and outputs.requires_grad:
            outputs.register_hook(spoil)

    hook = torch.nn.modules.module.register_module_forward_hook(watch)
    try:
        return run_job(rank, storage, LOCAL)
    finally:
        hook.remove()


def test_an_epoch_counts_the_steps_that_another_worker_than_rank_0_skipped(run_group, tmp_path):
    epochs = run_group(2, break_a_gradient, tmp_path)[0].link.of("epoch")
    assert [record.skipped_steps for record in epochs] == [1, 0, 0]


def ordered(*levels: int, **orders: Any) -> RecordingLink:
    """Orders with these overrides of local steps, when the record of epoch 0 is posted."""
    given = tuple(
        Override(id=f"by-hand-{level}", target="local_steps", level=level, until=2)
        for level in levels
    )
    state = DesiredState(version=1, overrides=given, **orders)
    return RecordingLink(orders=state, order_after=("epoch", 0))


GROWING = LOCAL.model_copy(update={"local_steps": LocalStepsSpec(low=4, high=8)})


def test_an_override_holds_from_the_end_of_a_round_until_the_epoch_it_names(run_group, tmp_path):
    link = run_group(2, run_job, tmp_path, GROWING, ordered(9, 8))[0].link
    (rejected,) = link.of("rejected")
    assert (rejected.override_id, "at most 8" in rejected.reason) == ("by-hand-9", True)
    first = next(record for record in link.of("acks") if record.override_ids == ("by-hand-8",))
    assert (first.epoch, first.step) == (1, STEPS_PER_EPOCH + 4)
    assert [(ack.rank, ack.step, ack.digest) for ack in first.acks] == [
        (rank, first.step, first.digest) for rank in (0, 1)
    ]
    assert [epoch.local_steps for epoch in link.of("epoch")] == [4, 8, 4]
    assert link.of("acks")[-1].override_ids == ()


@pytest.mark.parametrize("workers", [2, 3])
def test_a_stopped_job_goes_on_under_its_override(run_group, tmp_path, workers):
    run_group(2, run_job, tmp_path, GROWING, ordered(8, stop="cancel"))
    again = RecordingLink(orders=ordered(8).orders)
    link = run_group(workers, run_job, tmp_path, GROWING, again, 2)[0].link
    assert link.of("acks")[0].override_ids == ("by-hand-8",)
    assert [epoch.local_steps for epoch in link.of("epoch")] == [8, 4]


def test_a_job_goes_on_with_another_number_of_workers(run_group, tmp_path):
    run_group(2, run_job, tmp_path, LOCAL, STOP_IN_EPOCH_2)
    resumed = run_group(3, run_job, tmp_path, LOCAL, None, 2)[0]
    assert resumed.outcome == "completed"
    assert last_accuracy(resumed) > 0.7


@pytest.mark.parametrize("compression", [{"method": "qsgd"}, {"method": "half"}])
def test_adam_with_a_start_learns_with_compressed_changes(run_group, tmp_path, compression):
    job = spec(
        training={"epochs": 4, "optimizer": {"name": "adamw", "lr": 0.005}},
        compression=compression,
        local_steps={"low": 4, "high": 8, "start_steps": STEPS_PER_EPOCH},
    )
    result = run_group(2, run_job, tmp_path, job)[0]
    lengths = [record.decision.local_steps for record in result.link.of("decision")]
    assert lengths[0] == 1 or len(set(lengths)) == 1
    assert lengths[-1] >= 4
    assert last_accuracy(result) > 0.85


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"local_steps": {"low": 4}}, "cannot be combined with powersgd"),
        ({"local_steps": {"low": 4, "high": 2}}, "low=4, high=2"),
        ({"local_steps": {"low": 0}}, "greater than or equal to 1"),
        (
            {
                "local_steps": {"low": 4},
                "compression": {"method": "half"},
                "workers": {"gpus": 1},
                "training": {"precision": "fp16"},
            },
            "precision is fp16",
        ),
        (
            {
                "local_steps": {"low": 4, "overlap": 1},
                "compression": {"method": "half"},
                "workers": {"gpus": 1},
            },
            "overlap is 1, which was never tried on GPUs",
        ),
    ],
)
def test_wrong_specs_are_refused(parts: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        spec(**parts)


def test_windows_after_the_start_wait_for_rounds(run_group, tmp_path):
    job = spec(
        training={"epochs": 3, "optimizer": {**PLAIN, "lr": 1e-3}, "global_batch": 32},
        compression={"method": "none"},
        local_steps={"low": 5, "start_steps": 32},
        policy={"window": {"steps": 8}},
    )
    result = run_group(2, run_job, tmp_path, job)[0]
    decisions = [record.decision for record in result.link.of("decision")]
    steps = [one.step for one in decisions if one.local_steps == 5]
    assert steps[0] == 32
    assert [one.local_steps for one in decisions if one.step < 32] == [1] * 3
    inner = [one.step for one in decisions if one.cause != "hold" and 32 < one.step < 45]
    assert inner == [42]
    # The window that ends there holds the first changes of parameters, which are no gradients.
    assert [one.cause for one in decisions if one.step == 42] == ["skip"]
