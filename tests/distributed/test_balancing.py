"""A slower worker takes fewer micro-batches, and the same model comes out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.distributed.code_jobs import launch, packed, run_own_script
from tests.distributed.loop_jobs import Result
from tests.distributed.loop_tasks import Shaky, run_task
from workers.contract import Launch
from workers.training import balancing
from workers.training.clock import Clock

EPOCHS = {"training": {"epochs": 3}}
"""Each epoch has 23 batches of four micro-batches, the last of two."""


@dataclass
class SteppedClock:
    """Time that passes by one worker's forward passes alone."""

    now_s: float = 0.0

    def elapsed(self) -> float:
        return self.now_s


def _train(rank: int, storage: Path, piece_s: tuple[float, ...], parts: Any) -> Result:
    """Train with workers whose micro-batches take this long."""
    time, loss = SteppedClock(), Shaky.loss

    def timed_loss(*arguments: Any, **keywords: Any) -> Any:
        time.now_s += piece_s[rank]
        return loss(*arguments, **keywords)

    clock = Clock(elapsed=time.elapsed)
    with patch.object(Shaky, "loss", timed_loss):
        return run_task(rank, storage, "Shaky", parts, clock=clock)


def divisions(result: Result) -> list[tuple[int, ...]]:
    """The divisions that rank 0 reported, without repetitions."""
    seen = [progress.micro_batches_by_rank for progress in result.link.progresses]
    return [now for now, before in zip(seen, [None, *seen], strict=False) if now != before]


@pytest.mark.parametrize(
    ("piece_s", "counts"),
    [((1.0, 3.0), (3, 1)), ((3.0, 1.0), (1, 3)), ((4.0, 1.0, 1.2), (1, 2, 1))],
)
def test_a_slow_worker_takes_fewer_micro_batches_of_the_same_run(
    run_group, tmp_path, piece_s, counts
):
    ends = {
        name: run_group(len(piece_s), _train, tmp_path / name, piece_s, parts)[0]
        for name, parts in {
            "even": {**EPOCHS, "workers": {"max": len(piece_s), "balance": False}},
            "balanced": {**EPOCHS, "workers": {"max": len(piece_s), "balance": True}},
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


def test_equally_fast_workers_keep_the_even_division(run_group, tmp_path):
    parts = {**EPOCHS, "workers": {"balance": True}}
    result = run_group(2, _train, tmp_path, (1.0, 1.1), parts)[0]
    assert divisions(result) == [(2, 2)]


SCRIPT = """
import time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workers.session import session

session.init_process_group("gloo")
inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
batches = session.batches(len(inputs))
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.attach(model, optimizer)
for epoch in session.epochs(99):
    for rows in torch.utils.data.DataLoader(inputs, batch_sampler=batches):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), rows.tanh())
        time.sleep((0.003, 0.03)[session.rank] * len(rows))
        session.backward(loss)
        session.step()
        print("read", epoch, len(rows))
print("end", float(sum(parameter.double().sum() for parameter in model.parameters())))
"""


def _order(folder: Path, **workers: Any) -> Launch:
    folder.mkdir()
    training = {"epochs": 2, "global_batch": 48, "micro_batch": 4}
    spec = {"task": {"name": "script"}, "training": training, "compression": {"method": "none"}}
    return launch(
        folder / "storage", {**spec, "workers": workers}, packed(folder, {"train.py": SCRIPT})
    )


def _run_measured_at_once(rank: int, order: Launch) -> Result:
    with patch.object(balancing, "MIN_MEASURED_S", 0.0):
        return run_own_script(rank, order)


def test_a_script_reads_more_on_the_faster_worker_from_the_next_epoch_on(run_group, tmp_path):
    """Micro-batches of four samples take one worker 12 ms, the other 120 ms."""
    balanced = run_group(2, _run_measured_at_once, _order(tmp_path / "balanced"))
    even = run_group(2, _run_measured_at_once, _order(tmp_path / "even", balance=False))
    for result in even:
        assert re.findall(r"read \d (\d+)", result.said)[:2] == ["24", "24"]
    first, second = (
        [int(size) for size in re.findall(r"read \d (\d+)", result.said)] for result in balanced
    )
    assert first[:2] == second[:2] == [24, 24]
    assert first[3] + second[3] == 48
    assert first[3] > 24
    ends = [float(group[0].said.split()[-1]) for group in (even, balanced)]
    # fp32: sums are taken in another order.
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)
