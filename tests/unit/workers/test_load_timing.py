"""The phase `load` of a step: waiting for loaders, or all before the first forward pass."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from accordion_workers.training.clock import Clock, Phases
from accordion_workers.training.load_timing import time_loading


class Hand:
    """Phases on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 0.0
        self.phases = Phases(
            clock=Clock(elapsed=lambda: self.time), exchange_times=lambda: (0.0, 0.0)
        )


@pytest.fixture
def wrapped(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    yield DistributedDataParallel(nn.Linear(2, 2))
    dist.destroy_process_group()


def test_the_first_forward_pass_in_training_mode_ends_loading(wrapped):
    hand = Hand()
    time_loading(wrapped, hand.phases)
    hand.phases.start_step()
    hand.time = 1.0
    wrapped.eval()(torch.ones(2))
    hand.time = 3.0
    wrapped.train()(torch.ones(2))
    hand.time = 7.0
    wrapped(torch.ones(2))
    hand.phases.count_lap("compute")
    assert (hand.phases.seconds["load"], hand.phases.seconds["compute"]) == (3.0, 4.0)


def test_a_copy_of_the_module_and_an_ended_run_count_nothing(wrapped):
    hand = Hand()
    time_loading(wrapped, hand.phases)
    hand.phases.start_step()
    hand.time = 1.0
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(wrapped)):
        other(torch.ones(2))
    assert hand.phases.seconds["load"] == 0.0
    del hand
    wrapped(torch.ones(2))


def test_a_module_that_is_not_wrapped_stays_as_it_is():
    module = nn.Linear(2, 2)
    time_loading(module, Hand().phases)
    torch.jit.script(module)


class Slow(Dataset):
    """Samples that take a second each."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> int:
        self.hand.time += 1.0
        return row


def counted(hand: Hand) -> dict[str, float]:
    return {phase: seconds for phase, seconds in hand.phases.seconds.items() if seconds}


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_only_waiting_for_a_loader_counts_as_loading(wrapped, is_wrapped):
    hand = Hand()
    model = wrapped if is_wrapped else nn.Linear(2, 2)
    time_loading(model, hand.phases)
    hand.phases.start_step()
    for _ in DataLoader(Slow(hand), batch_size=2):
        hand.time += 3.0
        model(torch.ones(2))
        hand.phases.count_lap("compute")
        hand.phases.start_step()
        hand.time += 4.0
    hand.phases.count_lap("compute")
    assert counted(hand) == {"load": 4.0, "compute": 14.0}


def test_a_loader_of_another_thread_or_of_an_evaluation_is_not_waited_for():
    hand, model = Hand(), nn.Linear(2, 2)
    time_loading(model, hand.phases)
    hand.phases.start_step()
    other = threading.Thread(target=list, args=(DataLoader(Slow(hand)),))
    other.start()
    other.join()
    model.eval()
    list(DataLoader(Slow(hand)))
    hand.phases.count_lap("evaluate")
    assert counted(hand) == {"evaluate": 8.0}


def test_a_wait_counts_once_for_each_model_and_one_loader_inside_another_once():
    hand, other = Hand(), Hand()
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for model, one in zip(models, (hand, other), strict=True):
        time_loading(model, one.phases)
    outer = DataLoader([0], collate_fn=lambda _: list(DataLoader(Slow(hand))))
    list(outer)
    assert counted(hand) == {"load": 4.0}
    assert other.phases.seconds["load"] == 0.0  # its clock stood still
