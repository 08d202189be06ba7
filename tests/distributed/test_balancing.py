"""A slower worker takes fewer micro-batches, and the same model comes out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from accordion_workers.training.clock import Clock
from tests.distributed.loop_jobs import Result
from tests.distributed.loop_tasks import Shaky, run_task

EPOCHS = {"training": {"epochs": 2}}
"""Each epoch has 23 batches of four micro-batches, the last of two."""


@dataclass
class SteppedClock:
    """Time that passes by one worker's forward passes alone."""

    now_s: float = 0.0

    def elapsed(self) -> float:
        return self.now_s


def _train(
    rank: int, storage: Path, seconds: tuple[float, ...], parts: Any, *, by_samples: bool = False
) -> Result:
    """Train with workers whose micro-batches, or each 32 samples of them, take this long."""
    time, loss = SteppedClock(), Shaky.loss

    def timed_loss(task: Any, outputs: Any, *arguments: Any, **keywords: Any) -> Any:
        time.now_s += seconds[rank] * (len(outputs) / 32 if by_samples else 1.0)
        return loss(task, outputs, *arguments, **keywords)

    clock = Clock(elapsed=time.elapsed)
    with patch.object(Shaky, "loss", timed_loss):
        return run_task(rank, storage, "Shaky", parts, clock=clock)


def divisions(result: Result) -> list[tuple[int, ...]]:
    """The divisions that rank 0 reported, without repetitions."""
    seen = [progress.micro_batches_by_rank for progress in result.link.progresses]
    return [now for now, before in zip(seen, [None, *seen], strict=False) if now != before]


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [((1.0, 3.0), (3, 1)), ((3.0, 1.0), (1, 3)), ((4.0, 1.0, 1.2), (1, 2, 1))],
)
def test_a_slow_worker_takes_fewer_micro_batches_of_the_same_run(
    run_group, tmp_path, seconds, counts
):
    ends = {
        name: run_group(len(seconds), _train, tmp_path / name, seconds, parts)[0]
        for name, parts in {
            "even": {**EPOCHS, "workers": {"max": len(seconds), "balance": False}},
            "balanced": {**EPOCHS, "workers": {"max": len(seconds), "balance": True}},
        }.items()
    }
    even, balanced = ends["even"], ends["balanced"]
    assert len(divisions(even)) == 1
    assert divisions(balanced) == [*divisions(even), counts]
    (line,) = (line for line in balanced.link.lines if "micro-batches" in line)
    assert f"they take {', '.join(map(str, counts))} from now on" in line
    assert not any("micro-batches" in line for line in even.link.lines)
    for mine, theirs in zip(balanced.parameters, even.parameters, strict=True):
        assert mine.allclose(theirs, rtol=1e-9, atol=1e-12)
    for mine, theirs in zip(balanced.link.of("epoch"), even.link.of("epoch"), strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert mine.metrics == pytest.approx(theirs.metrics)


WHOLE = {"training": {"epochs": 6, "global_batch": 1500, "micro_batch": 100}}
"""An epoch has one step, of 15 micro-batches."""


def test_local_steps_of_unequal_parts_count_by_samples(run_group, tmp_path):
    """After one local step with SGD, the mean of the workers' changes is that of the batch."""
    ends = {
        name: run_group(2, _train, tmp_path / name, (1.0, 3.0), {**WHOLE, **parts})[0]
        for name, parts in {
            "every step": {"workers": {"balance": False}},
            "local steps": {"workers": {"balance": True}, "local_steps": {"low": 4}},
        }.items()
    }
    every, local = ends["every step"], ends["local steps"]
    assert divisions(local) == [(8, 7), (12, 3)]
    for mine, theirs in zip(local.parameters, every.parameters, strict=True):
        assert mine.allclose(theirs, rtol=1e-9, atol=1e-12)
    for mine, theirs in zip(local.link.of("epoch"), every.link.of("epoch"), strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-9)


def test_a_slow_worker_takes_fewer_micro_batches_within_rounds(run_group, tmp_path):
    parts = {**EPOCHS, "workers": {"balance": True}, "local_steps": {"low": 8}}
    result = run_group(2, _train, tmp_path, (1.0, 3.0), parts)[0]
    assert divisions(result) == [(2, 2), (3, 1)]
    assert [one.local_steps for one in result.link.of("epoch")] == [8, 8]


def test_equally_fast_workers_keep_the_even_division(run_group, tmp_path):
    parts = {**EPOCHS, "workers": {"balance": True}}
    result = run_group(2, _train, tmp_path, (1.0, 1.1), parts)[0]
    assert divisions(result) == [(2, 2)]


def test_a_short_last_micro_batch_makes_no_worker_fast(run_group, tmp_path):
    """Time passes by samples: rank 1 always has the short micro-batch, 4 samples of 100."""
    parts = {
        "training": {"epochs": 3, "global_batch": 100, "micro_batch": 32},
        "workers": {"balance": True},
    }
    result = run_group(2, _train_by_samples, tmp_path, parts)[0]
    assert divisions(result) == [(2, 2)]


def _train_by_samples(rank: int, storage: Path, parts: Any) -> Result:
    return _train(rank, storage, (1.0, 1.0), parts, by_samples=True)
