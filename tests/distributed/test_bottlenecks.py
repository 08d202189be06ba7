"""A planted cause of each kind is named as what holds the job up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch

from accordion.compress.direct_collectives import DirectCollectives
from accordion_service.domain.performance.bottleneck import find_bottleneck
from accordion_service.domain.performance.step_profile import Cause, StepProfile
from accordion_workers.tasks.synthetic import Synthetic
from accordion_workers.training import checkpointing
from accordion_workers.training.clock import Clock
from accordion_workers.training.loop import train_epochs
from accordion_workers.training.train_state import build_train_state
from tests.distributed.loop_jobs import RecordingLink, context, spec

LATE_S = 0.3
"""Seconds of a planted delay; a step alone takes a few milliseconds."""
EPOCH_LATE_S = 3.0
"""Seconds of a planted delay that happens once per epoch."""
STEPS = 4
"""Steps of an epoch of two micro-batches on each of two workers."""
JOB: dict[str, Any] = {
    "training": {"epochs": 2, "global_batch": 32, "micro_batch": 16},
    "compression": {"method": "topk", "low": {"select": "exact"}},
    "checkpoint": {"every_epochs": 100},
}


def late(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        time.sleep(seconds)
        return function(*arguments, **keywords)

    return call


PLANTS: dict[Cause, tuple[Any, str]] = {
    Cause.SLOW_WORKER: (Synthetic, "loss"),
    Cause.LINK: (DirectCollectives, "all_reduce_"),
    Cause.ENCODING: (torch, "topk"),
    Cause.EVALUATION: (Synthetic, "metrics"),
    Cause.CHECKPOINTS: (checkpointing, "rank_state"),
    Cause.DECISIONS: (RecordingLink, "decide"),
}
"""What is late, by the cause that should be named."""


class LateData:
    """Training data that takes long to load; the held-out data does not."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.batch = late(data.batch, LATE_S)

    def __len__(self) -> int:
        return len(self.data)


def _train_with(rank, storage, cause, slow_rank):
    """Train with a planted cause; return rank 0's newest progress, and what this rank computes."""
    job, options = dict(JOB), {"samples": 32 * STEPS, "width": 16}
    if cause == Cause.CHECKPOINTS:
        job["checkpoint"] = {"every_steps": 1}
    if cause == Cause.PACING:
        options["min_step_s"] = LATE_S
    link = RecordingLink()
    worker = context(rank, storage, spec("synthetic", options, **job), link)
    run = build_train_state(worker, Clock())
    if cause == Cause.DATA_LOADING:
        run.data = LateData(run.data)
    with ExitStack() as planted:
        if cause in PLANTS and rank in {rank if slow_rank is None else slow_rank}:
            owner, name = PLANTS[cause]
            seconds = EPOCH_LATE_S if cause == Cause.DECISIONS else LATE_S
            planted.enter_context(patch.object(owner, name, late(getattr(owner, name), seconds)))
        train_epochs(run)
    link.callback = None
    newest = link.progresses[-1] if rank == 0 else None
    return newest, run.context.control.compute_s


@pytest.mark.parametrize(
    ("cause", "slow_rank"),
    [
        (Cause.SLOW_WORKER, 0),
        (Cause.SLOW_WORKER, 1),
        (Cause.LINK, None),
        (Cause.ENCODING, None),
        (Cause.DATA_LOADING, None),
        (Cause.EVALUATION, None),
        (Cause.CHECKPOINTS, None),
        (Cause.DECISIONS, 0),
        (Cause.PACING, None),
    ],
    ids=str,
)
def test_a_planted_cause_is_named(run_group, tmp_path, cause, slow_rank):
    found = run_group(2, _train_with, tmp_path, cause, slow_rank)
    progress, _ = found[0]
    answer = find_bottleneck(
        StepProfile(
            step_s_by_phase=progress.step_s_by_phase,
            compute_s_by_rank=[seconds for _, seconds in found],
        )
    )
    assert answer is not None
    assert answer.cause == cause, answer
    assert answer.rank == slow_rank if cause == Cause.SLOW_WORKER else answer.rank is None
