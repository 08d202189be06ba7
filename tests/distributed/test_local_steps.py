"""Local steps: what workers that step by themselves train, send and share, against plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from accordion.base.errors import HookError, StateError
from accordion.base.local_steps import LocalSteps
from accordion.compress.step_signals import Signal
from accordion.config import Config, DetectorConfig, WarmUp, Window
from accordion.decide.controller import Decider
from accordion.session.session import Session, StepResult, attach
from tests.distributed import small

RATE = 0.1
WORKERS = 2


def build_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, 6, generator=draw), torch.randn(5, 3, generator=draw)


def backward(model: nn.Module, rank: int, step: int) -> None:
    inputs, targets = batch(rank, step)
    nn.functional.mse_loss(model(inputs), targets).backward()


def sgd(model: nn.Module, momentum: float = 0.0) -> Optimizer:
    return SGD(model.parameters(), lr=RATE, momentum=momentum)


def adam(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.01)


MakeOptimizer = Callable[[nn.Module], Optimizer]


class Worker:
    """A model that trains in a session with local steps."""

    def __init__(
        self,
        rank: int,
        local: LocalSteps | None,
        make: MakeOptimizer = sgd,
        *,
        decider: Decider | None = None,
        **more: Any,
    ) -> None:
        self.rank = rank
        self.ddp = DistributedDataParallel(build_model())
        self.optimizer = make(self.ddp)
        config = Config(**{"method": "none", "local_steps": local, **more})
        self.session: Session = attach(self.ddp, config, self.optimizer, decider=decider)

    def step(self, number: int, *, spoil: bool = False) -> StepResult:
        self.optimizer.zero_grad()
        backward(self.ddp, self.rank, number)
        if spoil:
            next(self.ddp.parameters()).grad.fill_(torch.nan)
        return self.session.step()

    def parameters(self) -> Tensor:
        return torch.cat([one.detach().flatten() for one in self.ddp.parameters()])

    def moments(self) -> list[Tensor]:
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if value is not None]


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def alone(start: nn.Module, rank: int, steps: range, make: MakeOptimizer) -> nn.Module:
    """The model of one worker after steps by plain torch."""
    model = copy.deepcopy(start)
    optimizer = make(model)
    for step in steps:
        optimizer.zero_grad()
        backward(model, rank, step)
        optimizer.step()
    return model


def averaged(rounds: int, length: int, make: MakeOptimizer) -> Tensor:
    """Parameters after rounds of plain local SGD, whose optimizers begin anew in every round."""
    model = build_model()
    for number in range(rounds):
        steps = range(number * length, (number + 1) * length)
        ends = [alone(model, rank, steps, make) for rank in range(WORKERS)]
        with torch.no_grad():
            for parameter, *others in zip(
                model.parameters(), *(end.parameters() for end in ends), strict=True
            ):
                parameter.copy_(torch.stack(others).mean(0))
    return parameters_of(model)


def train_rounds(rank: int) -> Any:
    worker = Worker(rank, LocalSteps(low=3, high=3))
    within = []
    for step in range(9):
        worker.step(step)
        within.append(worker.parameters())
    return within, worker.session.ledger.total, worker.session.steps


def test_a_round_is_plain_local_sgd_and_the_mean_of_its_ends(run_group):
    results = run_group(WORKERS, train_rounds)
    for within, _, steps in results:
        assert steps == 9
        torch.testing.assert_close(within[-1], averaged(3, 3, sgd))
        torch.testing.assert_close(within[2], averaged(1, 3, sgd))
    (one, _, _), (other, _, _) = results
    equal = [torch.equal(*pair) for pair in zip(one, other, strict=True)]
    assert equal == [False, False, True] * 3


def test_a_round_sends_what_one_step_sends(run_group):
    total = run_group(WORKERS, train_rounds)[0][1]
    values = parameters_of(build_model()).numel()
    assert total.dense == 9 * 4 * values
    assert 3 * 4 * values <= total.payload < 3.5 * 4 * values


def in_every_step(rank: int) -> Any:
    worker, plain = Worker(rank, LocalSteps(low=1, high=1)), Worker(rank, None)
    for step in range(4):
        worker.step(step)
        plain.step(step)
    return torch.equal(worker.parameters(), plain.parameters())


def test_rounds_of_one_step_are_data_parallel_training(run_group):
    assert run_group(WORKERS, in_every_step) == [True, True]


def grow(rank: int) -> Any:
    """Rounds of one epoch of six steps each, as the learning rate falls."""
    local = LocalSteps(low=2, high=8)
    worker = Worker(rank, local, detector=DetectorConfig(window=Window(epochs=1)))
    lengths = []
    for epoch, rate in enumerate((0.1, 0.1, 0.05, 0.025, 0.001)):
        lengths.append(worker.session.decision.local_steps)
        for step in range(6):
            worker.step(6 * epoch + step)
        following = (0.1, 0.05, 0.025, 0.001, 0.001)[epoch]
        switch = worker.session.end_epoch(lr=rate, next_lr=following)
        assert len({ack.digest for ack in switch.acks}) == 1
    return lengths, worker.parameters()


def test_rounds_grow_as_the_learning_rate_falls(run_group):
    (lengths, one), (_, other) = run_group(WORKERS, grow)
    assert lengths == [2, 2, 4, 8, 8]
    assert torch.equal(one, other)


def start(rank: int) -> Any:
    local = LocalSteps(low=3, high=3, start_steps=4, outer="nesterov")
    worker = Worker(rank, local, make=adam)
    equal, lengths, reasons = [], [], []
    for step in range(10):
        result = worker.step(step)
        lengths.append(worker.session.decision.local_steps)
        equal.append(worker.parameters())
        reasons += [] if result.switch is None else [result.switch.decision.reason]
    return equal, lengths, reasons, worker.session.state_dict()["outer_momentum"]


def test_gradients_are_exchanged_in_every_step_of_the_start(run_group):
    (one, lengths, reasons, momentum), (other, *_) = run_group(WORKERS, start)
    equal = [torch.equal(*pair) for pair in zip(one, other, strict=True)]
    assert equal == [True] * 4 + [False, False, True] * 2
    assert lengths == [1] * 3 + [3] * 7
    assert reasons == ["the start of 4 steps ends: rounds of 3 local steps"]
    assert sum(one.numel() for one in momentum) == parameters_of(build_model()).numel()


def start_and_warm_up(rank: int) -> Any:
    local = LocalSteps(low=3, high=3, start_steps=4)
    worker = Worker(rank, local, method="half", warm_up=WarmUp(steps=4))
    found = []
    for step in range(5):
        decision = worker.session.decision
        found.append(
            (decision.local_steps, {one.method for one in decision.level_by_layer.values()})
        )
        worker.step(step)
    return found


def test_a_start_and_a_warm_up_may_end_together(run_group):
    expected = [(1, {"none"})] * 4 + [(3, {"half"})]
    assert run_group(WORKERS, start_and_warm_up) == [expected, expected]


def by_hand(rank: int) -> Any:
    """The outer step with Nesterov momentum, against torch's own."""
    local = LocalSteps(low=2, high=2, outer="nesterov")
    worker = Worker(rank, local)
    outer_model = build_model()
    outer = SGD(outer_model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for number in range(3):
        steps = range(2 * number, 2 * number + 2)
        ends = [alone(outer_model, worker_rank, steps, sgd) for worker_rank in range(WORKERS)]
        for parameter, *others in zip(
            outer_model.parameters(), *(end.parameters() for end in ends), strict=True
        ):
            parameter.grad = parameter.detach() - torch.stack(others).detach().mean(0)
        outer.step()
        for step in steps:
            worker.step(step)
    return worker.parameters(), parameters_of(outer_model)


def test_the_outer_step_with_momentum_is_that_of_torch(run_group):
    for ours, theirs in run_group(WORKERS, by_hand):
        torch.testing.assert_close(ours, theirs)


def end_early(rank: int) -> Any:
    worker = Worker(rank, LocalSteps(low=4, high=4))
    for step in range(6):
        worker.step(step)
    between = worker.parameters()
    refused = ""
    try:
        worker.session.state_dict()
    except StateError as error:
        refused = str(error)
    worker.session.end_epoch(lr=RATE, next_lr=RATE)
    ended = worker.parameters()
    worker.session.finish_round()
    return between, ended, torch.equal(ended, worker.parameters()), refused


def test_an_epoch_ends_its_last_round(run_group):
    (between, ended, is_same, refused), (others_between, others_ended, *_) = run_group(
        WORKERS, end_early
    )
    assert not torch.equal(between, others_between)
    assert torch.equal(ended, others_ended)
    assert is_same
    assert "call session.finish_round()" in refused


def announce(rank: int) -> Any:
    worker = Worker(rank, LocalSteps(low=3, high=3))
    announced = []
    for step in range(7):
        if (rank, step) == (1, 1):
            worker.session.request(Signal.CHECKPOINT)
        announced.append(Signal.CHECKPOINT in worker.step(step).announced)
    return announced


def test_a_signal_is_announced_at_the_end_of_a_round(run_group):
    expected = [False, False, True, False, False, False, False]
    assert run_group(WORKERS, announce) == [expected, expected]


def announce_in_short_epochs(rank: int) -> Any:
    """Epochs of two steps, which end every round of three early."""
    worker = Worker(rank, LocalSteps(low=3, high=3))
    announced = []
    for step in range(6):
        if (rank, step) == (1, 0):
            worker.session.request(Signal.CHECKPOINT)
        announced.append(Signal.CHECKPOINT in worker.step(step).announced)
        if step % 2:
            worker.session.end_epoch(lr=RATE, next_lr=RATE)
    return announced


def test_a_signal_of_a_round_that_ends_early_is_announced_by_the_next_step(run_group):
    expected = [step == 2 for step in range(6)]
    assert run_group(WORKERS, announce_in_short_epochs) == [expected] * 2


def spoil_one(rank: int) -> Any:
    """One worker's gradient is not finite in the second step."""
    worker = Worker(rank, LocalSteps(low=3, high=3))
    taken = [worker.step(step, spoil=(rank, step) == (1, 1)).taken for step in range(3)]
    return taken, worker.session.skipped_steps, worker.parameters()


def test_a_step_that_is_not_finite_is_skipped_by_its_worker_alone(run_group):
    (taken, skipped, one), (others_taken, others_skipped, other) = run_group(WORKERS, spoil_one)
    assert (taken, skipped) == ([True, True, True], 0)
    assert (others_taken, others_skipped) == ([True, False, True], 1)
    assert torch.equal(one, other)
    start = build_model()
    ends = [alone(start, 0, range(3), sgd)]
    model = alone(start, 1, range(1), sgd)
    ends.append(alone(model, 1, range(2, 3), sgd))
    torch.testing.assert_close(one, torch.stack([parameters_of(end) for end in ends]).mean(0))


def break_one(rank: int) -> Any:
    """One worker's parameters are not finite at the end of a round."""
    worker = Worker(rank, LocalSteps(low=2, high=2))
    for step in range(2):
        worker.step(step)
    before = worker.parameters()
    worker.step(2)
    if rank == 1:
        with torch.no_grad():
            next(worker.ddp.parameters()).fill_(torch.inf)
    result = worker.step(3)
    return result.taken, torch.equal(before, worker.parameters())


def test_a_round_that_is_not_finite_is_undone_by_all(run_group):
    assert run_group(WORKERS, break_one) == [(False, True)] * 2


def return_to_one(rank: int) -> Any:
    """Rounds, then gradients in every step again, because the rate rises to a new peak."""
    local = LocalSteps(low=1, high=8)
    worker = Worker(rank, local, make=adam)
    end = worker.session.end_epoch
    worker.step(0)
    end(lr=0.1, next_lr=0.025)
    assert worker.session.decision.local_steps == 4
    for step in range(1, 6):
        worker.step(step)
    between = torch.cat([one.flatten() for one in worker.moments()])
    end(lr=0.025, next_lr=0.4)
    assert worker.session.decision.local_steps == 1
    moments = torch.cat([one.flatten() for one in worker.moments()])
    worker.step(6)
    return between, moments, worker.parameters()


def test_after_rounds_all_workers_share_one_optimizer_state_again(run_group):
    (between, moments, end), (others_between, others_moments, others_end) = run_group(
        WORKERS, return_to_one
    )
    assert torch.equal(moments, others_moments)
    torch.testing.assert_close(moments, (between + others_between) / 2)
    assert torch.equal(end, others_end)


def compressed(rank: int, options: dict[str, Any]) -> Any:
    worker = Worker(rank, LocalSteps(low=4, high=4), **options)
    for step in range(8):
        worker.step(step)
    return worker.parameters(), worker.session.ledger.total.payload


@pytest.mark.parametrize(("method", "bits"), [("half", None), ("qsgd", 8), ("qsgd", 4)])
def test_changes_are_compressed_as_gradients_are(run_group, method, bits):
    levels = {} if bits is None else {"low": {"bits": bits}, "high": {"bits": bits}}
    results = run_group(WORKERS, compressed, {"method": method, **levels})
    (one, payload), (other, _) = results
    assert torch.equal(one, other)
    exact = averaged(2, 4, sgd)
    moved = (exact - parameters_of(build_model())).norm()
    assert (one - exact).norm() < moved / 2
    assert payload < 2.5 * 4 * exact.numel()


def scattered(rank: int) -> Any:
    ddp, session = small.start("qsgd", local_steps=LocalSteps(low=3, high=3))
    small.train(session, ddp, rank, range(6))
    return torch.cat([one.flatten() for one in small.parameters(ddp)]), session.ledger


def test_changes_are_scattered_among_four_workers(run_group):
    (first, ledger), *others = run_group(4, scattered)
    assert all(torch.equal(first, other) for other, _ in others)
    assert ledger.by_collective["qsgd (local steps) all-to-all"].wire > 0
    assert ledger.gradient_wire < 0.5 * ledger.total.dense_wire


def resume(rank: int) -> Any:
    local = LocalSteps(low=2, high=2, outer="nesterov")
    whole, first = Worker(rank, local), Worker(rank, local)
    for step in range(4):
        whole.step(step)
        first.step(step)
    model, holder = copy.deepcopy(first.ddp.state_dict()), [first.session.gather_state_dict()]
    torch.distributed.broadcast_object_list(holder)
    own = first.session.state_dict()
    for step in range(3):  # the last one begins a round, which loading the state gives up
        first.step(step)
    resumed = (first, Worker(rank, local))
    for worker, state in zip(resumed, (own, holder[0]), strict=True):
        worker.ddp.load_state_dict(model)
        worker.session.load_state_dict(state)
    for step in range(4, 8):
        for worker in (whole, *resumed):
            worker.step(step)
    return [torch.equal(whole.parameters(), worker.parameters()) for worker in resumed]


def test_a_saved_session_goes_on_with_its_rounds(run_group):
    assert run_group(WORKERS, resume) == [[True, True]] * 2


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.norm(inputs))


def keep_buffers(rank: int) -> Any:
    torch.manual_seed(3)
    ddp = DistributedDataParallel(Normed())
    optimizer = SGD(ddp.parameters(), lr=RATE)
    session = attach(ddp, Config(method="none", local_steps=LocalSteps(low=3, high=3)), optimizer)
    means = []
    for step in range(4):
        optimizer.zero_grad()
        backward(ddp, rank, step)
        session.step()
        means.append(ddp.module.norm.running_mean.clone())
    return means


def test_buffers_are_each_workers_own_within_a_round(run_group):
    one, other = run_group(WORKERS, keep_buffers)
    assert not torch.equal(one[2], other[2])
    # DDP gives all workers the buffers of rank 0 with the first forward pass of a round.
    mean = one[2]
    for means, rank in ((one, 0), (other, 1)):
        expected = 0.9 * mean + 0.1 * batch(rank, 3)[0].mean(0)
        torch.testing.assert_close(means[3], expected)


def refused(rank: int) -> Any:
    found = []
    local = Config(method="none", local_steps=LocalSteps(low=2, high=2))
    for more, arguments in (
        ({}, {"optimizer": None}),
        ({}, {"optimizer": None, "step": "caller"}),
        ({}, {"scaler": torch.amp.GradScaler("cpu")}),
        ({"find_unused_parameters": True}, {}),
    ):
        ddp = DistributedDataParallel(build_model(), **more)
        with pytest.raises(HookError) as error:
            attach(ddp, local, **{"optimizer": sgd(ddp), **arguments})
        found.append(str(error.value))
    return found


def test_what_rounds_cannot_be_combined_with_is_refused(run_group):
    found = run_group(WORKERS, refused)[0]
    assert [text.startswith("local_steps ") for text in found] == [True] * 4


def one_worker(rank: int) -> Any:
    worker = Worker(rank, LocalSteps(low=3, high=3), make=adam)
    for step in range(4):
        worker.step(step)
    return worker.parameters()


def test_one_worker_trains_as_plain_torch(run_group):
    [ours] = run_group(1, one_worker)
    plain = alone(build_model(), 0, range(4), adam)
    torch.testing.assert_close(ours, parameters_of(plain), rtol=0, atol=0)
