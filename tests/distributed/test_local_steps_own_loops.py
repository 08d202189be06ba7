"""Local steps where the training loop takes the optimizer's step, against `session.step()`."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from accordion.base.errors import HookError, StateError
from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Override
from accordion.compress.step_signals import Signal
from accordion.config import Config, DetectorConfig, WarmUp, Window
from accordion.session.optimizer_steps import StepMode
from accordion.session.session import Session, StepResult, attach

WORKERS, STEPS = 2, 12
LOOPS: tuple[StepMode, ...] = ("optimizer", "caller")


def build_ddp() -> DistributedDataParallel:
    torch.manual_seed(3)
    return DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    )


def sgd(weights: Sequence[nn.Parameter]) -> Optimizer:
    return SGD(weights, lr=0.1, momentum=0.9)


def adam(weights: Sequence[nn.Parameter]) -> Optimizer:
    return AdamW(weights, lr=0.01)


class Loop:
    """A training loop; `mode` says whether it takes the optimizers' steps."""

    def __init__(
        self,
        rank: int,
        mode: StepMode,
        make: Callable[[Sequence[nn.Parameter]], Optimizer] = sgd,
        *,
        parts: int = 1,
        pieces: int = 1,
        **settings: Any,
    ) -> None:
        self.rank, self.mode, self.pieces = rank, mode, pieces
        self.ddp = build_ddp()
        weights = list(self.ddp.parameters())
        self.optimizers = [make(weights[part::parts]) for part in range(parts)]
        # A window whose end falls into a round, and into the start.
        config = Config(
            **{
                "method": "none",
                "local_steps": LocalSteps(low=3, high=6),
                "detector": DetectorConfig(window=Window(steps=4)),
                **settings,
            }
        )
        self.session: Session = attach(self.ddp, config, self.optimizers, step=mode)
        self.results: list[StepResult] = []
        self.session.on_boundary = self.results.append

    def step(self, number: int, *, spoil: bool = False) -> None:
        for piece in range(self.pieces):
            self.ddp.require_backward_grad_sync = piece == self.pieces - 1
            draw = torch.Generator().manual_seed(1000 * self.rank + 10 * number + piece)
            inputs, wanted = (torch.randn(5, size, generator=draw) for size in (6, 3))
            nn.functional.mse_loss(self.ddp(inputs), wanted).backward()
        if spoil:
            next(self.ddp.parameters()).grad.fill_(torch.nan)
        nn.utils.clip_grad_norm_(self.ddp.parameters(), 0.5)
        if self.mode != "optimizer":
            self.session.step()
        for optimizer in self.optimizers if self.mode != "session" else ():
            optimizer.step()
        self.ddp.zero_grad()

    def parameters(self) -> Tensor:
        return torch.cat([one.detach().flatten() for one in self.ddp.parameters()])


def trace(loop: Loop, numbers: Sequence[int] = range(STEPS), **spoiled: Any) -> dict[str, Any]:
    """What a loop gave: parameters after each step, results of the boundaries, and bytes."""
    after = []
    for number in numbers:
        loop.step(number, spoil=(loop.rank, number) == spoiled.get("spoiled"))
        after.append(loop.parameters())
    results = [(one.taken, one.announced, one.switch) for one in loop.results]
    session = loop.session
    counts = session.ledger.total.payload, session.steps, session.skipped_steps
    return {"after": torch.stack(after), "results": results, "counts": counts}


def trace_all(rank: int, settings: dict[str, Any], spoiled: Any = None) -> list[dict[str, Any]]:
    """What loops of each mode gave, in one group."""
    return [trace(Loop(rank, mode, **settings), spoiled=spoiled) for mode in ("session", *LOOPS)]


CASES: dict[str, dict[str, Any]] = {
    "SGD": {},
    "AdamW after a start, with accumulation": {
        "make": adam,
        "pieces": 2,
        "local_steps": LocalSteps(low=3, high=3, start_steps=4),
    },
    "two optimizers and 4-bit changes": {
        "parts": 2,
        "method": "qsgd",
        "low": {"bits": 4},
        "high": {"bits": 4},
    },
    "a warm-up that ends within a round": {"method": "half", "warm_up": WarmUp(steps=5)},
    "exchanges beside steps": {
        "local_steps": LocalSteps(low=3, high=3, overlap=2),
        "detector": DetectorConfig(window=Window(steps=12)),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_that_steps_by_itself_trains_as_with_session_step(run_group, case):
    for found in run_group(WORKERS, trace_all, CASES[case]):
        expected, *others = found
        for other in others:
            assert torch.equal(other["after"], expected["after"])
            assert other["results"] == expected["results"]
            assert other["counts"] == expected["counts"]


def test_workers_of_an_unchanged_loop_differ_within_a_round_only(run_group):
    start = {"local_steps": LocalSteps(low=3, high=3, start_steps=4)}
    (_, one, _), (_, other, _) = run_group(WORKERS, trace_all, start)
    equal = [torch.equal(*pair) for pair in zip(one["after"], other["after"], strict=True)]
    assert equal == [True] * 4 + [False, False, True] * 2 + [False] * 2


def test_a_step_that_is_not_finite_is_skipped_by_its_worker_alone(run_group):
    # The third step ends the first round.
    for spoiled in ((1, 1), (1, 2)):
        one, other = run_group(WORKERS, trace_all, {}, spoiled)
        for mode in range(3):
            assert one[mode]["counts"][1:] == (STEPS, 0)
            assert other[mode]["counts"][1:] == (STEPS, 1)
            assert torch.equal(one[mode]["after"][2], other[mode]["after"][2])
            for found in (one, other):
                assert torch.equal(found[mode]["after"], found[0]["after"])
                assert found[mode]["results"] == found[0]["results"]


def follow_override(rank: int) -> Any:
    """Lengths in force and announced signals; both are asked for in the first round."""
    loop = Loop(rank, "optimizer")
    lengths = []
    for step in range(8):
        if step == 1 and rank == 0:
            loop.session.override([Override(id="o", target="local_steps", level=2)])
        if step == 1 and rank == 1:
            loop.session.request(Signal.CHECKPOINT)
        loop.step(step)
        lengths.append(loop.session.decision.local_steps)
    announced = [Signal.CHECKPOINT in one.announced for one in loop.results]
    return lengths, announced


def test_an_unchanged_loop_follows_a_change_of_the_length_at_the_end_of_a_round(run_group):
    (lengths, announced), (others, _) = run_group(WORKERS, follow_override)
    assert lengths == others == [3, 3, 2, 2, 2, 2, 2, 2]
    assert announced == [False, False, True] + [False] * 5


def return_to_one(rank: int) -> Any:
    """Rounds of 4, then of 1, because the rate rises to a new peak."""
    loop = Loop(rank, "optimizer", adam, local_steps=LocalSteps(low=1, high=8))
    loop.step(0)
    loop.session.end_epoch(lr=0.1, next_lr=0.025)
    for step in range(1, 7):
        loop.step(step)
    within = loop.parameters()
    loop.session.end_epoch(lr=0.025, next_lr=0.4)
    loop.step(7)
    return within, loop.parameters(), loop.session.decision.local_steps


def test_an_unchanged_loop_returns_to_exchanges_in_every_step(run_group):
    (within, end, length), (others_within, others_end, _) = run_group(WORKERS, return_to_one)
    assert not torch.equal(within, others_within)
    assert torch.equal(end, others_end)
    assert length == 1


def evaluate(rank: int, mode: StepMode) -> Any:
    """What evaluations are told: within a round, within a pass that trains, and after it ended."""
    loop, told = Loop(rank, mode), []
    loop.step(0)
    inputs = torch.ones(2, 6)

    def forward() -> Tensor:
        with torch.no_grad():
            return loop.ddp(inputs)

    loop.ddp.eval()
    try:
        forward()
    except HookError as error:
        told.append(str(error))
    loop.ddp(inputs)  # frozen statistics in training
    loop.session.finish_round()
    return told, forward()


@pytest.mark.parametrize("mode", ["session", *LOOPS])
def test_an_evaluation_within_a_round_is_told_to_end_it(run_group, mode):
    for told, seen in run_group(WORKERS, evaluate, mode):
        assert len(told) == 1
        assert "call session.finish_round() on all workers" in told[0]
        assert seen.isfinite().all()


def end_early(rank: int) -> Any:
    """Whether `on_boundary` gets what a round returns that ends after a window's end within it."""
    loop = Loop(rank, "optimizer")
    for step in range(5):
        loop.step(step)
    switch = loop.session.finish_round()
    return switch is not None, [one.switch for one in loop.results][5:] == [switch]


def test_a_window_that_a_round_closes_early_is_told_as_at_a_boundary(run_group):
    assert run_group(WORKERS, end_early) == [(True, True)] * 2


def saved_and_loaded(ddp: DistributedDataParallel) -> DistributedDataParallel:
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def copy_within_a_round(rank: int) -> Any:
    """What copies of the module return within a round."""
    loop = Loop(rank, "optimizer")
    loop.step(0)
    copies = [copy.deepcopy(loop.ddp), saved_and_loaded(loop.ddp)]
    with torch.no_grad():
        return [one.eval()(torch.ones(2, 6)) for one in copies]


def test_a_copy_of_the_module_may_be_evaluated_within_a_round(run_group):
    for first, second in run_group(WORKERS, copy_within_a_round):
        assert torch.equal(first, second)


def export(rank: int) -> Any:
    """Whether the user's own module becomes TorchScript, and what is saved of it names us."""
    module = Loop(rank, "session").ddp.module
    file = io.BytesIO()
    torch.save(module, file)
    return torch.jit.script(module)(torch.ones(2, 6)).shape, b"accordion" in file.getvalue()


def test_the_module_inside_is_scripted_and_saved_as_without_us(run_group):
    assert run_group(WORKERS, export) == [((2, 3), False)] * 2


def leave_out(rank: int, mode: StepMode) -> str:
    """What a loop is told in which one of two optimizers does not step."""
    loop = Loop(rank, mode, parts=2)
    loop.optimizers.pop()
    loop.step(0)
    with pytest.raises(HookError) as error:
        loop.step(1)
    return str(error.value)


@pytest.mark.parametrize("mode", LOOPS)
def test_an_optimizer_that_leaves_out_a_local_step_is_told(run_group, mode):
    for told in run_group(WORKERS, leave_out, mode):
        assert told.startswith("1 of 2 optimizers did not step")


def finish_too_early(rank: int) -> str:
    """What a loop is told that ends a round between `session.step()` and the optimizer's step."""
    loop = Loop(rank, "caller")
    loop.optimizers[0].step = loop.session.finish_round  # type: ignore[method-assign]
    with pytest.raises(HookError) as error:
        loop.step(0)
    return str(error.value)


def test_a_round_does_not_end_before_the_step_that_it_waits_for(run_group):
    for told in run_group(WORKERS, finish_too_early):
        assert told.startswith("1 of 1 optimizers did not step")


class Lookahead(SGD):
    """An optimizer around another one, which takes its steps."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        super().__init__(weights, lr=0.1)
        self.base_optimizer = sgd(weights)


def wrap(rank: int, mode: StepMode) -> str:
    with pytest.raises(HookError) as error:
        Loop(rank, mode, Lookahead)
    return str(error.value)


@pytest.mark.parametrize("mode", LOOPS)
def test_an_optimizer_around_another_one_is_refused_with_the_way_out(run_group, mode):
    for told in run_group(WORKERS, wrap, mode):
        assert 'wraps another that takes its steps, leave step="session"' in told


def ignore(rank: int) -> Any:
    """A layer that DDP leaves to each worker, beside one that it exchanges."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["1.weight"])
    ddp, own = DistributedDataParallel(model), model[1].weight
    optimizer = SGD(ddp.parameters(), lr=0.1)
    config = Config(method="none", local_steps=LocalSteps(low=2, high=2))
    session = attach(ddp, config, optimizer)
    for _ in range(2):
        draw = torch.Generator().manual_seed(rank)
        nn.functional.mse_loss(ddp(torch.randn(5, 6, generator=draw)), torch.ones(5, 3)).backward()
        before, gradient = own.detach().clone(), own.grad.clone()
        session.step()
        ddp.zero_grad()
    return torch.allclose(own, before - 0.1 * gradient), model[0].weight.detach()


def test_a_layer_that_ddp_ignores_stays_each_workers_own_after_rounds(run_group):
    (is_own, one), (other_is_own, other) = run_group(WORKERS, ignore)
    assert is_own
    assert other_is_own
    assert torch.equal(one, other)


def load_other(rank: int) -> Any:
    """A state whose momentum is of other parameters, loaded into a session in its first round."""
    local = LocalSteps(low=2, high=2, outer="nesterov")
    whole, other = (Loop(rank, "session", local_steps=local) for _ in range(2))
    for number in range(2):
        whole.step(number)
    state = whole.session.state_dict()
    other.step(0)
    refused = []
    for momentum in ([one[1:] for one in state["outer_momentum"]], ["text"]):
        with pytest.raises(StateError) as error:
            other.session.load_state_dict({**state, "outer_momentum": momentum})
        refused.append(str(error.value))
    other.step(1)
    return refused, other.session.steps, torch.equal(whole.parameters(), other.parameters())


def test_a_momentum_of_other_parameters_is_refused_and_nothing_is_loaded(run_group):
    for refused, steps, is_unchanged in run_group(WORKERS, load_other):
        assert all("with the same layers frozen" in text for text in refused)
        assert steps == 2
        assert is_unchanged


def step_twice(rank: int) -> str:
    loop = Loop(rank, "session")
    loop.step(0)
    with pytest.raises(HookError) as error:
        loop.session.step()
    return str(error.value)


def test_a_local_step_without_gradients_is_refused_without_advice_that_is_refused(run_group):
    for refused in run_group(WORKERS, step_twice):
        assert "use each layer in every step" in refused
        assert "find_unused_parameters" not in refused


def pass_twice(rank: int) -> str:
    loop = Loop(rank, "session")
    inputs = torch.ones(5, 6)
    loop.ddp(inputs).sum().backward()
    with pytest.raises(HookError) as caught:
        loop.ddp(inputs).sum().backward()
    return str(caught.value)


def test_two_backward_passes_of_a_local_step_are_refused_as_in_other_steps(run_group):
    for told in run_group(WORKERS, pass_twice):
        assert told.startswith("gradients were computed twice for one step; call session.step()")
