"""Running statistics are each worker's own until they are averaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.ledger import Ledger
from accordion_workers.common.peers import GroupPeers
from accordion_workers.training.clock import Clock
from accordion_workers.training.loop import train_epochs
from accordion_workers.training.running_statistics import average_buffers, mark_buffers_equal
from accordion_workers.training.train_state import build_train_state
from tests.distributed.loop_jobs import RecordingLink, context, spec
from tests.unit.workers import datasets


class Model(nn.Module):
    """A statistic, a count, a mask with infinities and a constant that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.tensor([1.0, -2.0]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([0.1, -torch.inf]))
        self.register_buffer("constant", torch.tensor(0.0), persistent=False)


def made(rank: int, model: nn.Module) -> Any:
    """A run, as far as its buffers need one."""
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    return SimpleNamespace(
        ddp=ddp,
        model=ddp.module,
        context=SimpleNamespace(world_size=dist.get_world_size(), rank=rank, peers=GroupPeers()),
        position=SimpleNamespace(epoch=0),
        epoch_loss=SimpleNamespace(samples=0),
        samples_at_averaging=0,
        session=SimpleNamespace(ledger=Ledger(dist.get_world_size())),
    )


def see(run: Any, samples: int, mean: float, count: int = 1) -> None:
    """Train on so many samples, after which the statistic is this."""
    run.epoch_loss.samples += samples
    run.ddp.module.mean.fill_(mean)
    run.ddp.module.count += count


def state(run: Any) -> tuple[list[float], int]:
    return run.ddp.module.mean.tolist(), int(run.ddp.module.count)


def uneven(rank: int) -> Any:
    run = made(rank, Model())
    see(run, samples=[10, 30, 0][rank], mean=[1.0, 5.0, 100.0][rank], count=[1, 3, 0][rank])
    run.ddp.module.constant.fill_(rank)
    average_buffers(run)
    return (
        state(run),
        run.ddp.module.mask.tolist(),
        run.session.ledger.total.payload,
        float(run.ddp.module.constant),
    )


def test_buffers_are_averaged_by_samples_so_a_worker_without_any_has_no_weight(
    run_group,
):
    ends = run_group(3, uneven)
    # (10 * 1 + 30 * 5) / 40, and (10 * 1 + 30 * 3) / 40 = 2.5, rounded to even
    assert [end[0] for end in ends] == [([4.0, 4.0], 2)] * 3


def test_a_mask_with_infinities_stays_as_it_is(run_group):
    assert run_group(3, uneven)[2][1] == [torch.tensor(0.1).item(), -torch.inf]


def test_buffers_that_no_checkpoint_holds_are_left_alone(run_group):
    assert [end[3] for end in run_group(3, uneven)] == [0.0, 1.0, 2.0]


def test_the_bytes_are_in_the_ledger(run_group):
    # five values and the sum of the weights, in float64
    assert [end[2] for end in run_group(3, uneven)] == [6 * 8] * 3


def windows(rank: int) -> Any:
    run = made(rank, Model())
    see(run, samples=[30, 10][rank], mean=[0.0, 4.0][rank])
    average_buffers(run)
    see(run, samples=[10, 10][rank], mean=[0.0, 4.0][rank])
    average_buffers(run)
    within = state(run)[0][0]
    run.position.epoch, run.epoch_loss.samples, run.samples_at_averaging = 1, 0, 0
    see(run, samples=[10, 30][rank], mean=[0.0, 4.0][rank])
    average_buffers(run)
    return within, state(run)[0][0]


def test_only_samples_since_the_last_time_count(run_group):
    assert run_group(2, windows) == [(2.0, 3.0)] * 2


def resumed(rank: int) -> Any:
    run = made(rank, Model())
    run.epoch_loss.samples = [1000, 0][rank]
    mark_buffers_equal(run)
    see(run, samples=10, mean=[0.0, 4.0][rank])
    average_buffers(run)
    return state(run)[0][0]


def test_samples_before_a_checkpoint_that_was_read_do_not_count(run_group):
    assert run_group(2, resumed) == [2.0, 2.0]


def twice(rank: int) -> Any:
    run = made(rank, Model())
    see(run, samples=[30, 11][rank], mean=[0.0, 4.0][rank])
    average_buffers(run)
    first = state(run)
    average_buffers(run)
    return first == state(run)


def test_averaging_again_changes_nothing(run_group):
    assert run_group(2, twice) == [True, True]


def without(rank: int) -> Any:
    run = made(rank, nn.Linear(2, 2))
    before = run.session.ledger.total.payload
    run.epoch_loss.samples = 5
    average_buffers(run)
    return run.session.ledger.total.payload - before


def test_a_model_without_running_statistics_sends_nothing(run_group):
    assert run_group(2, without) == [0, 0]


def of_one(rank: int) -> Any:
    run = made(rank, Model())
    see(run, samples=7, mean=3.0)
    average_buffers(run)
    return state(run), run.session.ledger.total.payload


def test_one_worker_keeps_its_own(run_group):
    assert run_group(1, of_one) == [(([3.0, 3.0], 1), 0)]


def through_the_loop(rank: int, storage: Path, data: Path) -> list[list[float]]:
    options = {"data": str(data), "channels": 2, "samples": 22}
    job = spec(
        "cifar-resnet18", options, training={"epochs": 2, "global_batch": 10, "micro_batch": 4}
    )
    run = build_train_state(context(rank, storage, job, RecordingLink()), Clock())
    train_epochs(run)
    return [buffer.flatten().tolist() for buffer in run.ddp.module.buffers()]


def test_all_workers_end_with_equal_statistics_though_one_had_no_last_batch(run_group, tmp_path):
    """Ten samples a step are three micro-batches, the last two samples one: two of three workers
    have no part in it.
    """
    data = datasets.folder(tmp_path / "data", datasets.pictures(8, held_out=2))
    one, *others = run_group(3, through_the_loop, tmp_path / "job", data)
    assert others == [one, one]
