"""Local steps of replicas that FSDP2 shards, against plain torch without shards."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from accordion import Config, DetectorConfig, Window, attach
from accordion.base.errors import HookError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Override
from tests.distributed.sharded_models import (
    REPLICAS,
    SHARDS,
    Model,
    SingleRow,
    backward,
    batch,
    build,
    full,
)

RANKS = range(REPLICAS * SHARDS)
ROUNDS = LocalSteps(low=2, high=2)
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: AdamW(model.parameters(), lr=0.01),
}


class Grid:
    """A model of the grid that trains in a session with local steps."""

    def __init__(
        self,
        rank: int,
        local: LocalSteps,
        *,
        kind: Any = Model,
        optimizer: str = "adam",
        **more: Any,
    ) -> None:
        self.rank = rank
        self.model, _, self.replicas = build(kind)
        self.optimizer = OPTIMIZERS[optimizer](self.model)
        self.config = Config(**{"method": "none", "local_steps": local, **more})
        self.attach()

    def attach(self) -> None:
        self.session = attach(
            self.model, self.config, self.optimizer, replicate_group=self.replicas
        )

    def step(self, number: int, *, spoil: bool = False) -> bool:
        """Take a step; return whether it was taken."""
        backward(self.model, self.rank, number)
        if spoil:
            next(self.model.parameters()).grad.to_local().fill_(torch.nan)
        taken = self.session.step().taken
        self.optimizer.zero_grad()
        return taken


def train(rank: int, local: LocalSteps, orders: Any, options: Any) -> tuple[list[Tensor], Any]:
    """Take 8 steps; rank 0 orders rounds of another length, or none, in the given ones."""
    grid = Grid(rank, local, **options)
    for step in range(8):
        if rank == 0 and step in orders:
            held = [Override(id="o", target="local_steps", level=one) for one in orders[step]]
            grid.session.override(held)
        grid.step(step)
    grid.session.finish_round()
    return full(grid.model), grid.session.ledger.total


class Replicas:
    """Replicas without shards that train by plain torch, each on the batches of its workers."""

    def __init__(self, outer: str, optimizer: str, kind: Any = Model) -> None:
        torch.manual_seed(0)
        model = kind()
        self.models = [copy.deepcopy(model) for _ in range(REPLICAS)]
        self.optimizers: list[Optimizer] = [OPTIMIZERS[optimizer](one) for one in self.models]
        self._outer, self._shared = outer, [one.detach().clone() for one in model.parameters()]
        self._momentum = [torch.zeros_like(one) for one in self._shared]
        self._step = 0

    def take(self, length: int) -> None:
        """Take a round of so many steps; average gradients in one of a single step."""
        for _ in range(length):
            for replica, model in enumerate(self.models):
                model.zero_grad()
                for rank in RANKS[replica * SHARDS :][:SHARDS]:
                    inputs, targets = batch(rank, self._step)
                    (nn.functional.mse_loss(model(inputs), targets) / SHARDS).backward()
            if length == 1:
                self._average([[one.grad for one in model.parameters()] for model in self.models])
            for optimizer in self.optimizers:
                optimizer.step()
            self._step += 1
        self._end_round()

    @torch.no_grad()
    def _end_round(self) -> None:
        self._average([list(model.parameters()) for model in self.models])
        ends = list(self.models[0].parameters())
        for end, start, momentum in zip(ends, self._shared, self._momentum, strict=True):
            if self._outer == "nesterov":
                change = end - start
                momentum.mul_(0.9).add_(change)
                end.copy_(start + 0.7 * (change + 0.9 * momentum))
            start.copy_(end)
        for model in self.models:
            for parameter, start in zip(model.parameters(), self._shared, strict=True):
                parameter.copy_(start)

    def share_optimizers(self) -> None:
        """Average the optimizers' state, as after the last round of local steps."""
        states = [
            [value for state in one.state.values() for value in state.values() if value.dim()]
            for one in self.optimizers
        ]
        self._average(states)

    @staticmethod
    @torch.no_grad()
    def _average(values: list[list[Any]]) -> None:
        for same in zip(*values, strict=True):
            mean = torch.stack(list(same)).mean(0)
            for one in same:
                one.copy_(mean)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_a_round_is_that_of_replicas_without_shards(run_grid, outer, optimizer):
    local = LocalSteps(low=2, high=2, outer=outer)
    expected = Replicas(outer, optimizer)
    for _ in range(4):
        expected.take(2)
    for ours, _ in run_grid(train, local, {}, {"optimizer": optimizer}):
        for own, theirs in zip(ours, expected.models[0].parameters(), strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_gradients_are_exchanged_again_with_the_mean_state_of_the_optimizers(run_grid, optimizer):
    expected = Replicas("average", optimizer)
    expected.take(2)
    expected.take(2)
    expected.share_optimizers()
    for length in (1, 1, 2):
        expected.take(length)
    orders = {3: [1], 5: []}
    results = [ours for ours, _ in run_grid(train, ROUNDS, orders, {"optimizer": optimizer})]
    for ours in results:
        assert all(map(torch.equal, ours, results[0]))
        for own, theirs in zip(ours, expected.models[0].parameters(), strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["half", "none", "qsgd"])
def test_every_method_leaves_all_workers_with_the_same_bits_after_a_round(run_grid, method):
    results = run_grid(train, ROUNDS, {}, {"method": method})
    first, _ = results[0]
    assert all(all(map(torch.equal, first, other)) for other, _ in results)


def test_a_round_sends_the_change_of_a_workers_part_once(run_grid):
    totals = [total for _, total in run_grid(train, ROUNDS, {}, {})]
    values = sum(one.numel() for one in Model().parameters())
    assert sum(total.dense for total in totals[:SHARDS]) == 8 * 4 * values
    assert 4 * 4 * values <= sum(total.payload for total in totals[:SHARDS]) < 5 * 4 * values


def test_a_worker_that_holds_no_value_takes_part_in_rounds(run_grid):
    expected = Replicas("average", "adam", SingleRow)
    for _ in range(4):
        expected.take(2)
    for ours, _ in run_grid(train, ROUNDS, {3: [1], 3 + 2: []}, {"kind": SingleRow}):
        assert len(ours) == 2
    for ours, _ in run_grid(train, ROUNDS, {}, {"kind": SingleRow}):
        for own, theirs in zip(ours, expected.models[0].parameters(), strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["none", "qsgd"])
def test_a_round_may_be_exchanged_beside_the_next_one(run_grid, method):
    local = LocalSteps(low=3, high=3, overlap=2)
    results = run_grid(train, local, {4: [1]}, {"method": method})
    first, _ = results[0]
    assert all(all(map(torch.equal, first, other)) for other, _ in results)
    inside, _ = run_grid(train, LocalSteps(low=3, high=3), {4: [1]}, {"method": method})[0]
    assert not all(map(torch.equal, first, inside))


def spoil(rank: int) -> Any:
    """Take four steps, of which the second is spoiled on rank 3."""
    grid = Grid(rank, ROUNDS)
    taken = [grid.step(step, spoil=(rank, step) == (3, 1)) for step in range(4)]
    return taken, full(grid.model), grid.session.skipped_steps


def test_a_local_step_is_skipped_by_a_whole_replica_and_by_no_other(run_grid):
    results = run_grid(spoil)
    for rank, (taken, parameters, skipped) in enumerate(results):
        is_spoiled = rank >= SHARDS
        assert taken == [True, not is_spoiled, True, True]
        assert skipped == is_spoiled
        assert all(map(torch.equal, parameters, results[0][1]))
        assert all(one.isfinite().all() for one in parameters)


def spoil_always(rank: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grid = Grid(rank, LocalSteps(low=12, high=12))
        for step in range(10):
            grid.step(step, spoil=rank == 1)
    return [str(one.message) for one in caught if "local steps in a row" in str(one.message)]


def test_a_warning_names_the_layers_of_the_worker_that_has_them(run_grid):
    told = run_grid(spoil_always)
    assert [len(one) for one in told] == [0, 1, 0, 0]
    assert "skipped by the 2 workers of this replica, since its gradients of first." in told[1][0]


def resume(rank: int, stop: int) -> list[Tensor]:
    """Take 8 steps, with a new session from saved states after `stop` of them."""
    local = LocalSteps(low=2, high=2, outer="nesterov")
    grid = Grid(rank, local, method="qsgd")
    for step in range(8):
        if step == stop:
            grid.session.finish_round()
            saved = grid.session.state_dict()
            grid.session.source.remove()
            grid.attach()
            grid.session.load_state_dict(saved)
        grid.step(step)
    return full(grid.model)


def test_a_resumed_run_has_the_bits_and_the_momentum_of_an_uninterrupted_one(run_grid):
    resumed, whole = run_grid(resume, 4), run_grid(resume, -1)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert all(map(torch.equal, ours, theirs))


def measure(rank: int) -> Any:
    """Return the agreement and statistic of an epoch of rounds."""
    told: list[Any] = []

    def decide(report: Any, proposed: Any) -> Any:
        told.append((report.statistic_by_layer, report.agreement, report.window_steps))
        return proposed

    model, optimizer, replicas = build()
    config = Config(
        method="none", local_steps=ROUNDS, detector=DetectorConfig(window=Window(epochs=1))
    )
    session = attach(model, config, optimizer, decider=decide, replicate_group=replicas)
    for step in range(4):
        backward(model, rank, step)
        session.step()
        optimizer.zero_grad()
    session.end_epoch(lr=0.1, next_lr=0.1)
    return told


def test_rank_0_is_told_the_norms_of_changes_of_whole_layers(run_grid):
    ((statistic, agreement, _),), *others = run_grid(measure)
    assert others == [[]] * 3
    matrices = {name for name, one in Model().named_parameters() if one.dim() > 1}
    assert set(statistic) == matrices
    assert all(value > 0 for value in statistic.values())
    assert -1.0 <= agreement <= 1.0


def evaluate(rank: int) -> str:
    grid = Grid(rank, ROUNDS)
    grid.step(0)
    with pytest.raises(HookError) as caught, torch.no_grad():
        grid.model.eval()(torch.ones(1, 24))
    grid.session.finish_round()
    with torch.no_grad():
        grid.model(torch.ones(1, 24))
    return str(caught.value)


def test_a_model_is_not_evaluated_within_a_round(run_grid):
    assert all("call session.finish_round() on all workers" in one for one in run_grid(evaluate))


def accumulate(rank: int, passes: int, syncs: bool) -> list[Tensor] | str:
    """Take a round of two steps of so many passes each."""
    grid = Grid(rank, ROUNDS, optimizer="sgd")
    try:
        for step in range(2):
            for number in range(passes):
                grid.model.set_requires_gradient_sync(syncs or number == passes - 1)
                backward(grid.model, rank, step)
            grid.session.step()
            grid.optimizer.zero_grad()
    except HookError as error:
        return str(error)
    return full(grid.model)


def test_gradients_accumulate_within_local_steps(run_grid):
    doubled = run_grid(accumulate, 2, False)
    for ours in doubled:
        assert all(map(torch.equal, ours, doubled[0]))
    assert not all(map(torch.equal, doubled[0], run_grid(accumulate, 1, False)[0]))


def test_two_passes_for_one_local_step_are_refused(run_grid):
    for told in run_grid(accumulate, 2, True):
        assert told.startswith("gradients were computed twice for one step; call session.step()")


def step_without_pass(rank: int) -> str:
    grid = Grid(rank, ROUNDS)
    with pytest.raises(HookError) as caught:
        grid.session.step()
    return str(caught.value)


def test_a_local_step_without_a_backward_pass_is_refused(run_grid):
    for told in run_grid(step_without_pass):
        assert told.startswith("no gradients were computed since the last step")
