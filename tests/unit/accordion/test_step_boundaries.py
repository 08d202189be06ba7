"""What a session tells its observer about step boundaries of an unchanged loop."""

from __future__ import annotations

import torch
from torch import nn

from accordion.config import Config
from accordion.messages import Override
from accordion.session import attach
from accordion.step_results import StepResult


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
