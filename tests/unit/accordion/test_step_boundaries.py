"""What a session tells its observer about step boundaries of an unchanged loop."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import cast

import pytest
import torch
from torch import nn

from accordion.base.errors import HookError, ReportError
from accordion.base.messages import Override
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import attach
from accordion.session.step_results import StepResult


class Descent:
    """An optimizer with what a session uses, which is no subclass of torch's."""

    def __init__(self, model: nn.Module) -> None:
        self.param_groups = [{"params": list(model.parameters()), "lr": 0.1}]
        self.steps = 0

    def step(self) -> None:
        """Count the step."""
        self.steps += 1


def test_an_optimizer_without_a_rate_trains_and_steps_as_windows_name_what_to_set() -> None:
    model = nn.Linear(4, 4)
    optimizer = Descent(model)
    optimizer.param_groups[0]["lr"] = None  # as Transformers' Adafactor has it
    in_steps = Config(detector=DetectorConfig(window=Window(steps=2)))
    for config, sentence in ((Config(), None), (in_steps, r"set session\.lr")):
        session = attach(model, config, optimizer=cast("torch.optim.Optimizer", optimizer))
        model(torch.ones(2, 4)).sum().backward()
        with nullcontext() if sentence is None else pytest.raises(ReportError, match=sentence):
            session.step()
        session.source.remove()
    assert optimizer.steps == 1


def test_the_observer_sees_every_step_boundary_and_switch_of_a_followed_optimizer() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = attach(model, Config(), optimizer=optimizer, step="optimizer")
    seen: list[StepResult] = []
    session.on_boundary = seen.append
    for step, value in enumerate((1.0, torch.nan, 1.0)):
        if step == 2:
            session.override([Override(id="o", level="high")])
        model(torch.full((2, 4), value)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [result.taken for result in seen] == [True, False, True]
    assert [result.switch is not None for result in seen] == [False, False, True]
    assert seen[2].switch is not None
    assert seen[2].switch.decision.override_by_layer == {"weight": "o"}


def test_a_step_that_the_loop_takes_beside_the_session_is_refused() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = attach(model, Config(), optimizer=optimizer)
    model(torch.ones(2, 4)).sum().backward()
    assert session.step().taken
    with pytest.raises(HookError, match=r"call only session\.step\(\)"):
        optimizer.step()


def test_a_step_without_a_gradient_creates_the_state_of_an_optimizer() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = attach(model, Config(), optimizer=optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert len(optimizer.state) == 2
    assert session.steps == 0


def test_an_optimizer_steps_alone_once_its_session_is_gone() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = weakref.ref(attach(model, Config(), optimizer=optimizer))
    gc.collect()
    assert session() is None
    model(torch.ones(2, 4)).sum().backward()
    before = model.weight.clone()
    optimizer.step()
    assert not torch.equal(model.weight, before)


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, whose step it takes; no hook of its own step runs."""

    def __init__(self, base_optimizer: torch.optim.Optimizer) -> None:
        super().__init__(base_optimizer.param_groups, {})
        self.base_optimizer = base_optimizer
        self.steps = 0

    def second_step(self) -> None:
        """Step as SAM does after its second backward pass."""
        self.base_optimizer.step()

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # no loss
        """Count the step and take the other optimizer's."""
        del closure
        self.steps += 1
        self.base_optimizer.step()


def test_the_base_optimizer_of_a_wrapper_is_followed() -> None:
    model = nn.Linear(4, 4)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    session = attach(model, Config(), optimizer=optimizer, step="optimizer")
    for step in (optimizer.second_step, optimizer.step):
        model(torch.ones(2, 4)).sum().backward()
        step()
    assert session.steps == 2


def test_a_session_steps_the_wrapper_of_a_base_optimizer() -> None:
    model = nn.Linear(4, 4)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    session = attach(model, Config(), optimizer=optimizer)
    model(torch.ones(2, 4)).sum().backward()
    assert session.step().taken
    assert optimizer.steps == 1


def test_an_optimizer_that_is_not_one_of_torch_steps_with_a_session() -> None:
    model = nn.Linear(4, 4)
    optimizer = Descent(model)
    session = attach(model, Config(), optimizer=cast("torch.optim.Optimizer", optimizer))
    model(torch.ones(2, 4)).sum().backward()
    assert session.step().taken
    assert optimizer.steps == 1


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda model: [], "an empty list"),
        (lambda model: model.parameters(), "a generator"),
        (lambda model: list(model.parameters()), "a Parameter"),
        (lambda model: torch.optim.SGD, "a type"),
    ],
    ids=["no optimizer", "a generator", "parameters", "a class"],
)
def test_what_is_no_optimizer_is_refused_with_the_way_out(make, got) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(HookError, match=f"attach.. got {got}.*optimizer=.first, second."):
        attach(model, Config(), optimizer=make(model))
