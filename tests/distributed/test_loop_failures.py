"""What goes wrong in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accordion_workers.common.errors import LossNotFinite, TaskRaised
from accordion_workers.training.boundaries import MAX_SKIPPED_IN_A_ROW
from accordion_workers.training.clock import Clock
from accordion_workers.training.evaluation import (
    gather_summaries,
    measure_metrics,
    sync_drifted_parameters,
)
from accordion_workers.training.train_state import build_train_state
from tests.distributed.loop_jobs import RecordingLink, context, parameters, run_job, synthetic
from tests.distributed.loop_tasks import run_task


@pytest.mark.parametrize(("step", "epoch"), [(3, 0), (5, 1)])
def test_a_task_that_raises_ends_the_job_with_step_epoch_and_the_tasks_own_words(
    run_group, tmp_path, step, epoch
):
    with pytest.raises(TaskRaised) as caught:
        run_group(2, run_job, tmp_path, synthetic(raise_at_step=step))
    assert (caught.value.step, caught.value.epoch) == (step, epoch)
    assert caught.value.error.startswith(f"RuntimeError: step {step} is the one")


def raise_and_keep_the_cause(rank: int, storage: Path) -> str:
    with pytest.raises(TaskRaised) as caught:
        run_job(rank, storage, synthetic(raise_at_step=0))
    return type(caught.value.__cause__).__name__


def test_the_error_of_the_task_is_kept_as_the_cause(run_group, tmp_path):
    assert run_group(1, raise_and_keep_the_cause, tmp_path) == ["RuntimeError"]


def test_a_loss_that_stays_nan_ends_the_job_after_as_many_steps_as_are_allowed(run_group, tmp_path):
    with pytest.raises(LossNotFinite) as caught:
        run_group(2, run_job, tmp_path, synthetic(20, nan_at_step=3))
    assert caught.value.skipped == MAX_SKIPPED_IN_A_ROW
    assert caught.value.step == 3 + MAX_SKIPPED_IN_A_ROW - 1


def test_steps_that_were_skipped_are_counted_and_the_loss_of_their_epoch_is_none(
    run_group, tmp_path
):
    epochs = run_group(2, run_job, tmp_path, synthetic(2, nan_at_step=6))[0].link.of("epoch")
    assert [record.skipped_steps for record in epochs] == [0, 2]
    assert epochs[0].loss is not None
    assert epochs[1].loss is None


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("NoTraining", "the training data have no samples"),
        ("NoEvaluation", "the held-out data have no samples"),
        ("Unequal", "rank 0 has 1437 training samples and .*, and rank 1 has 1436 training"),
    ],
)
def test_a_task_without_data_or_with_others_on_one_rank_does_not_train(
    run_group, tmp_path, task, told
):
    with pytest.raises(TaskRaised, match=told) as caught:
        run_group(2, run_task, tmp_path, task, {})
    assert caught.value.step is None


def drift(rank: int, storage: Path) -> tuple[list[bool], list[str], list[torch.Tensor]]:
    link = RecordingLink()
    run = build_train_state(context(rank, storage, synthetic(), link), Clock())
    with torch.no_grad():
        run.ddp.module.layers[0].weight[rank, 0] += 1.0 * rank
    agreed = [
        sync_drifted_parameters(run, gather_summaries(run, measure_metrics(run))) for _ in range(2)
    ]
    return agreed, link.lines, parameters(run)


def test_workers_whose_parameters_drifted_apart_take_over_those_of_rank_0_and_say_so(
    run_group, tmp_path
):
    (agreed, lines, ours), (_, _, theirs) = run_group(2, drift, tmp_path)
    assert agreed == [False, True]
    assert "parameters of ranks [1] drifted" in lines[0]
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
