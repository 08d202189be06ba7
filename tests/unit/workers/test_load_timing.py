"""The phase `load` of a step ends with the model's first forward pass."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
