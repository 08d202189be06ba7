"""Rounds of local steps whose exchange runs during the first steps of the next round."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from accordion.base.errors import HookError, StateError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Decision, Report
from accordion.compress.compression_engine import Engine
from accordion.compress.step_signals import Signal
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import Session, attach
from tests.distributed.test_local_steps import (
    RATE,
    WORKERS,
    Worker,
    alone,
    batch,
    build_model,
    parameters_of,
    sgd,
)

HELD_S = 30.0
"""After this long an exchange that waits for steps beside it gives up."""


def rounds(low: int, overlap: int, **more: Any) -> LocalSteps:
    return LocalSteps(low=low, high=low, overlap=overlap, **more)


def along_fixed_gradients(rank: int, overlap: int) -> Any:
    """Eleven steps of a loss that is linear in the parameters, in rounds of four."""
    torch.manual_seed(3)
    ddp = DistributedDataParallel(nn.Linear(6, 1, bias=False).double())
    start = parameters_of(ddp)
    optimizer = SGD(ddp.parameters(), lr=RATE)
    config = Config(method="none", local_steps=rounds(4, overlap))
    session = attach(ddp, config, optimizer)
    for step in range(11):
        optimizer.zero_grad()
        ddp(batch(rank, step)[0].double()).sum().backward()
        session.step()
    session.finish_round()
    return start, parameters_of(ddp)


@pytest.mark.parametrize("overlap", range(5))
def test_every_step_of_every_worker_counts_once(run_group, overlap):
    (start, one), (_, other) = run_group(WORKERS, along_fixed_gradients, overlap)
    steps = [batch(rank, step)[0].double().sum(0) for rank in range(WORKERS) for step in range(11)]
    torch.testing.assert_close(one, start - RATE * torch.stack(steps).sum(0) / WORKERS)
    assert torch.equal(one, other)


def late_means(num_rounds: int, length: int, overlap: int) -> list[Tensor]:
    """Parameters of rank 0 after each step of plain local SGD, whose means come late."""
    common, models = build_model(), [build_model() for _ in range(WORKERS)]
    ends, within = [], list[Tensor]()
    for step in range(num_rounds * length):
        models = [alone(one, rank, range(step, step + 1), sgd) for rank, one in enumerate(models)]
        if ends and step % length == overlap - 1:
            _move(common, models, ends)
        if (step + 1) % length == 0:
            ends = copy.deepcopy(models)
        within.append(parameters_of(models[0]))
    return within


def _move(common: nn.Module, models: list[nn.Module], ends: list[nn.Module]) -> None:
    """Change the common point to the mean of the ends, and each model by what the point moved from
    its own end.
    """
    with torch.no_grad():
        for shared, *others in zip(
            common.parameters(),
            *(one.parameters() for one in [*ends, *models]),
            strict=True,
        ):
            shared.copy_(torch.stack(others[:WORKERS]).mean(0))
            for end, now in zip(others[:WORKERS], others[WORKERS:], strict=True):
                now.add_(shared - end)


def train(rank: int, overlap: int, *, beside: bool = True) -> list[Tensor]:
    """Parameters after each of nine steps, in rounds of three."""
    ddp = DistributedDataParallel(build_model())
    optimizer, config = sgd(ddp), Config(method="none", local_steps=rounds(3, overlap))
    session: Session = attach(ddp, config, optimizer, overlap=beside)
    within = []
    for step in range(9):
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(batch(rank, step)[0]), batch(rank, step)[1]).backward()
        session.step()
        within.append(parameters_of(ddp))
    return within


@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_the_mean_of_a_round_comes_after_exactly_as_many_steps(run_group, overlap):
    ours = run_group(WORKERS, train, overlap)[0]
    for step, expected in enumerate(late_means(3, 3, overlap)):
        torch.testing.assert_close(ours[step], expected)


class HeldExchange:
    """The next exchange of one worker, which ends once that worker's steps say so."""

    def __init__(self, session: Session, held_s: float = HELD_S) -> None:
        self._held_s = held_s
        self.release, self.ended = threading.Event(), threading.Event()
        self.was_released = False
        self.exchanges: Any = session.source.exchanges
        self._answer = self.exchanges.network.answer_requests
        self.exchanges.network.answer_requests = self._answer_later

    def _answer_later(self, *given: Any) -> Any:
        self.was_released = self.release.wait(self._held_s)
        answers = self._answer(*given)
        self.ended.set()
        return answers


def hold(rank: int, overlap: int) -> Any:
    worker = Worker(rank, rounds(3, overlap))
    held = HeldExchange(worker.session)
    within, waited_s = [], []
    for step in range(9):
        if step == 2 + overlap:  # all steps beside the exchange but the last, which waits for it
            waited_s.append(held.exchanges.waited_s)
            held.release.set()
            held.ended.wait(HELD_S)
            waited_s.append(held.exchanges.waited_s)
        worker.step(step)
        within.append(worker.parameters())
    return within, held.was_released, waited_s[0] == waited_s[1]


def test_steps_are_taken_during_an_exchange_whose_end_changes_no_bit(run_group):
    """An exchange that ends in the last step beside it, at once, or within the step before."""
    held = run_group(WORKERS, hold, 2)
    fast = run_group(WORKERS, train, 2)
    inline = run_group(WORKERS, train_inline, 2)
    for (within, was_released, is_not_counted), others, third in zip(
        held, fast, inline, strict=True
    ):
        assert was_released
        assert is_not_counted  # as time for which training waited
        for ours, *same in zip(within, others, third, strict=True):
            assert [torch.equal(ours, one) for one in same] == [True, True]


def train_inline(rank: int, overlap: int) -> list[Tensor]:
    return train(rank, overlap, beside=False)


def announce(rank: int) -> Any:
    worker = Worker(rank, rounds(3, 2))
    announced, parameters = [], []
    for step in range(8):
        if (rank, step) == (1, 1):
            worker.session.request(Signal.CHECKPOINT)
        announced.append(Signal.CHECKPOINT in worker.step(step).announced)
        parameters.append(worker.parameters())
    return announced, parameters


def test_a_signal_comes_with_the_mean_and_finds_parameters_that_all_share(run_group):
    (announced, one), (others_announced, other) = run_group(WORKERS, announce)
    assert announced == others_announced == [step == 4 for step in range(8)]
    assert [torch.equal(*pair) for pair in zip(one, other, strict=True)] == announced


def announce_in_short_epochs(rank: int) -> list[bool]:
    """Epochs of one round, so that every exchange ends with the epoch."""
    worker = Worker(rank, rounds(3, 2))
    announced = []
    for step in range(6):
        if (rank, step) == (1, 1):
            worker.session.request(Signal.CHECKPOINT)
        announced.append(Signal.CHECKPOINT in worker.step(step).announced)
        if step == 2:
            worker.session.end_epoch(lr=RATE, next_lr=RATE)
    return announced


def test_a_signal_that_comes_with_the_end_of_an_epoch_is_announced_by_the_next_step(run_group):
    expected = [step == 3 for step in range(6)]
    assert run_group(WORKERS, announce_in_short_epochs) == [expected, expected]


def break_one(rank: int) -> Any:
    """One worker's parameters are not finite at the end of the second round."""
    worker = Worker(rank, rounds(2, 1))
    taken = []
    for step in range(5):
        if (rank, step) == (1, 3):
            with torch.no_grad():
                next(worker.ddp.parameters()).fill_(torch.inf)
        taken.append(worker.step(step).taken)
    undone = worker.parameters()
    for step in range(5, 7):
        worker.step(step)
    worker.session.finish_round()
    return taken[-1], undone, worker.parameters()


def test_a_broken_round_takes_all_back_to_where_it_began(run_group):
    (taken, undone, end), (others_taken, others_undone, others_end) = run_group(WORKERS, break_one)
    assert (taken, others_taken) == (False, False)
    models = [alone(build_model(), rank, range(2), sgd) for rank in range(WORKERS)]
    mean = torch.stack([parameters_of(one) for one in models]).mean(0)
    torch.testing.assert_close(undone, mean)
    assert torch.equal(undone, others_undone)
    assert torch.equal(end, others_end)
    assert not torch.equal(end, undone)


def end_in_windows(rank: int) -> Any:
    window, reported = DetectorConfig(window=Window(steps=6)), []

    def decide(report: Report, proposal: Decision) -> Decision:
        reported.append(report.window_steps)
        return proposal

    worker = Worker(rank, rounds(3, 1), decider=decide, detector=window)
    worker.session.lr = RATE
    switches, parameters = [], []
    for step in range(9):
        switches.append(worker.step(step).switch is not None)
        parameters.append(worker.parameters())
    return switches, parameters, reported


def test_a_round_that_ends_with_a_window_is_waited_for(run_group):
    (switches, one, reported), (_, other, _) = run_group(WORKERS, end_in_windows)
    expected = [step == 5 for step in range(9)]
    assert switches == expected
    assert reported == [2]  # the window holds the changes of both rounds
    assert [torch.equal(*pair) for pair in zip(one, other, strict=True)] == expected


def look_between_rounds(rank: int) -> Any:
    """The first round's exchange runs, and the second round has no step yet."""
    worker = Worker(rank, rounds(2, 2))
    for step in range(2):
        worker.step(step)
    with pytest.raises(StateError, match=r"^the exchange of a round .*finish_round\(\)"):
        worker.session.state_dict()
    begins = [worker.session.rounds.begins]
    worker.session.finish_round()
    begins.append(worker.session.rounds.begins)
    worker.session.state_dict()
    return begins, worker.parameters()


def test_nothing_is_saved_before_an_exchange_has_ended(run_group):
    (begins, one), (_, other) = run_group(WORKERS, look_between_rounds)
    assert begins == [False, True]
    assert torch.equal(one, other)


def evaluate_between_rounds(rank: int) -> Any:
    ddp = DistributedDataParallel(build_model())
    optimizer = sgd(ddp)
    config = Config(method="none", local_steps=rounds(2, 2))
    session = attach(ddp, config, optimizer, step="optimizer")
    for step in range(2):
        optimizer.zero_grad()
        ddp(batch(rank, step)[0]).sum().backward()
        optimizer.step()
    ddp.eval()
    with torch.no_grad():
        with pytest.raises(HookError, match=r"while the exchange of a round .*finish_round\(\)"):
            ddp(batch(rank, 2)[0])
        session.finish_round()
        return ddp(batch(0, 2)[0])


def test_no_evaluation_sees_what_an_exchange_has_not_reached(run_group):
    one, other = run_group(WORKERS, evaluate_between_rounds)
    assert torch.equal(one, other)


def resume(rank: int) -> Any:
    """Go back to a state while an exchange runs."""
    local = rounds(2, 2, outer="nesterov")
    whole, again = Worker(rank, local), Worker(rank, local)
    for worker in (whole, again):
        for step in range(4):
            worker.step(step)
        worker.session.finish_round()
    model, state = copy.deepcopy(again.ddp.state_dict()), again.session.state_dict()
    held = HeldExchange(again.session, held_s=0.5)
    for step in range(3):
        again.step(step)
    assert not again.session.rounds.begins
    again.ddp.load_state_dict(model)
    had_ended, load = [], Engine.load_state_dict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Engine,
            "load_state_dict",
            lambda *given: had_ended.append(held.ended.is_set()) or load(*given),
        )
        again.session.load_state_dict(state)
    for step in range(4, 9):
        for worker in (whole, again):
            worker.step(step)
    return had_ended, torch.equal(whole.parameters(), again.parameters())


def test_a_loaded_state_gives_up_a_round_whose_exchange_runs(run_group):
    assert run_group(WORKERS, resume) == [([True], True)] * 2
