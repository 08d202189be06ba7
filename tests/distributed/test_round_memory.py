"""A group of local steps that loses a member goes on from the round that the others remember."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accordion_workers.common.errors import PeerUnfit
from accordion_workers.records.contract import JobSpec
from accordion_workers.spec.job import PolicySpec, WindowSpec
from accordion_workers.training import loop, round_memory
from accordion_workers.training.context import Doing, LoopControl, RoundMemory
from accordion_workers.training.train_state import TrainState
from tests.distributed.loop_jobs import (
    RecordingLink,
    Result,
    context,
    equal,
    parameters,
    run_job,
    spec,
    what_was_learned,
)

SAMPLES, STEPS_PER_EPOCH, LOW = 1437, 23, 4
ADAM = {"name": "adamw", "lr": 0.005}
LOCAL = spec(
    training={"epochs": 2, "optimizer": ADAM},
    compression={"method": "none"},
    local_steps={"low": LOW},
)
MEASURED = LOCAL.model_copy(update={"policy": PolicySpec(window=WindowSpec(epochs=1))})
IN_ROUND_2 = LOW + 2


class Leaving(LoopControl):
    """Tells the loop in a step that its group has lost a member."""

    def __init__(self, generation: int, step: int) -> None:
        super().__init__()
        self._generation, self._leaves_in = generation, step

    def enter_phase(self, doing: Doing, *, epoch: int, step: int) -> None:
        super().enter_phase(doing, epoch=epoch, step=step)
        if (doing, step) == ("training", self._leaves_in):
            self.broken_group = self._generation


@dataclass
class End:
    """What the second group came to on one rank."""

    link: RecordingLink
    parameters: list[torch.Tensor]


def train(rank: int, storage: Path, job: JobSpec, *, generation: int = 1, **parts: Any) -> End:
    """Train, and keep what the rank has at its end."""
    link, states = RecordingLink(), list[TrainState]()
    with pytest.MonkeyPatch.context() as patch:
        go_on = loop.train_epochs
        patch.setattr(loop, "train_epochs", lambda state: states.append(state) or go_on(state))
        loop.train_job(replace(context(rank, storage, job, link, generation), **parts))
    link.callback = None
    return End(link, parameters(states[0]))


def lose_members(
    rank: int,
    storage: Path,
    job: JobSpec,
    survivors: list[int],
    newcomers: tuple[int, ...] = (),
    steps: tuple[int, ...] = (IN_ROUND_2,),
) -> End | None:
    """A group breaks in each of these steps; the survivors go on, with processes that remember
    nothing.
    """
    memory, members = RoundMemory(), [*survivors, *newcomers]
    for generation, step in enumerate(steps, start=1):
        place: dict[str, Any] = {"generation": generation, "control": Leaving(generation, step)}
        with pytest.raises(PeerUnfit):
            train(dist.get_rank(), storage, job, memory=memory, **place)
        dist.destroy_process_group()
        if rank not in members:
            return None
        memory = RoundMemory() if rank in newcomers else memory
        dist.init_process_group(
            "gloo",
            init_method=f"file://{storage}/store-{generation}",
            rank=members.index(rank),
            world_size=len(members),
        )
    return train(dist.get_rank(), storage, job, generation=len(steps) + 1, memory=memory)


@pytest.fixture(scope="module")
def undisturbed(run_group, tmp_path_factory) -> Result:
    return run_group(2, run_job, tmp_path_factory.mktemp("undisturbed"), LOCAL)[0]


def test_a_group_that_remembers_its_round_has_the_bits_of_one_that_never_broke(
    undisturbed, run_group, tmp_path
):
    """Each rank has its own optimizer state again, which no checkpoint holds."""
    first, second = run_group(2, lose_members, tmp_path, LOCAL, [0, 1])
    (started,) = first.link.of("started")
    assert (started.step, started.from_memory) == (LOW, True)
    assert equal(first.parameters, undisturbed.parameters)
    assert equal(second.parameters, undisturbed.parameters)
    assert what_was_learned(first) == what_was_learned(undisturbed)


def leave_beside_an_exchange(rank: int, storage: Path, job: JobSpec) -> End:
    """Rank 1 leaves in epoch 1 before its first round ends, and rank 0 while the exchange of that
    round waits for rank 1; both go on.
    """
    memory, step = RoundMemory(), STEPS_PER_EPOCH + LOW - 2 * rank
    with pytest.raises(PeerUnfit):
        train(rank, storage, job, memory=memory, control=Leaving(1, step))
    dist.destroy_process_group()
    store = f"file://{storage}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    return train(rank, storage, job, generation=2, memory=memory)


def test_a_group_that_breaks_beside_an_exchange_begins_where_all_had_the_same(run_group, tmp_path):
    job = spec(
        training={"epochs": 2, "optimizer": ADAM},
        compression={"method": "none"},
        local_steps={"low": LOW, "overlap": 2},
        checkpoint={"every_epochs": 2},
    )
    never_broke = run_group(2, run_job, tmp_path / "undisturbed", job)[0]
    first = run_group(2, leave_beside_an_exchange, tmp_path / "broken", job)[0]
    (started,) = first.link.of("started")
    assert (started.step, started.from_memory) == (STEPS_PER_EPOCH, True)
    assert equal(first.parameters, never_broke.parameters)


def test_a_group_that_breaks_again_in_its_first_round_begins_at_the_same_round(
    undisturbed, run_group, tmp_path
):
    steps = (IN_ROUND_2, IN_ROUND_2 - 1)
    first = run_group(2, lose_members, tmp_path, LOCAL, [0, 1], (), steps)[0]
    assert first.link.of("started")[0].step == LOW
    assert equal(first.parameters, undisturbed.parameters)


@pytest.mark.parametrize("lost", [0, 2])
def test_survivors_go_on_from_the_last_round_and_count_every_sample(run_group, tmp_path, lost):
    survivors = [rank for rank in range(3) if rank != lost]
    ends = run_group(3, lose_members, tmp_path, LOCAL, survivors)
    first, second = (ends[rank] for rank in survivors)
    (started,) = first.link.of("started")
    assert (started.world_size, started.step, started.from_memory) == (2, LOW, True)
    epochs = first.link.of("epoch")
    assert [(epoch.epoch, epoch.samples) for epoch in epochs] == [(0, SAMPLES), (1, SAMPLES)]
    assert equal(first.parameters, second.parameters)
    assert epochs[-1].metrics["accuracy"] > 0.8


def test_a_new_process_gets_the_round_from_rank_0(run_group, tmp_path):
    ends = run_group(3, lose_members, tmp_path, MEASURED, [0, 1], (2,))
    (started,) = ends[0].link.of("started")
    assert (started.world_size, started.step, started.from_memory) == (3, LOW, True)
    assert equal(ends[0].parameters, ends[2].parameters)
    assert equal(ends[0].parameters, ends[1].parameters)
    # The new process has rank 0's sums, with which it would agree too well.
    agreements = [epoch.agreement for epoch in ends[0].link.of("epoch")]
    assert [agreement is None for agreement in agreements] == [True, False]


def test_what_only_the_lost_rank_0_had_decided_still_holds(run_group, tmp_path):
    """Rounds grow by the fall of the rate from a peak that only the first epoch had."""
    job = spec(
        training={"epochs": 3, "optimizer": ADAM, "lr_decay": {"at": [1], "factor": 0.5}},
        compression={"method": "none"},
        local_steps={"low": LOW, "high": 2 * LOW},
    )
    end = run_group(2, lose_members, tmp_path, job, [1], (0,), (STEPS_PER_EPOCH + 10,))[1]
    (started,) = end.link.of("started")
    assert (started.epoch, started.step) == (1, STEPS_PER_EPOCH + 2 * LOW)
    assert [epoch.local_steps for epoch in end.link.of("epoch")] == [2 * LOW, 2 * LOW]


def test_what_is_too_large_is_not_remembered_and_the_log_says_so_once(run_group, tmp_path):
    ends = run_group(2, train_with_little_room, tmp_path, LOCAL)
    (line,) = (line for end in ends for line in end.link.lines)
    assert "too large to be remembered" in line
    assert "save checkpoints more often (checkpoint.every_steps)" in line


def train_with_little_room(rank: int, storage: Path, job: JobSpec) -> End:
    memory = RoundMemory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_memory, "MAX_BYTES", 1000)
        end = train(rank, storage, job, memory=memory)
    assert memory.newest is None
    return end
