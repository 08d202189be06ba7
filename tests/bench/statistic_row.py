"""What the detector's statistic costs a step, against the optimizer's own step on the same
parameters.
"""

from __future__ import annotations

import torch

from accordion.base.messages import LayerInfo
from accordion.compress.compression_engine import Engine
from accordion.compress.layer_stacks import Layer
from tests.bench.report import Measured
from tests.bench.resnet import PARAMETERS, resnet18
from tests.bench.targets import Target
from tests.bench.timing import Copy, Work, measured_rounds

ROUNDS, CALLS = 20, 5


def measure(target: Target, *, quick: bool) -> Measured:
    """`observe` and `commit` of every gradient of a ResNet-18 against SGD with momentum."""
    model = resnet18()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    works = {
        "ours": Work(run=_statistic(model)),
        "peer": Work(run=optimizer.step),
        "copy": Work(run=Copy()),
    }
    rounds = measured_rounds(works, 2 if quick else ROUNDS, CALLS)
    return Measured(
        ours=[seconds["ours"] for seconds in rounds],
        peer=[seconds["peer"] for seconds in rounds],
        floor=[Copy.seconds_for(4 * PARAMETERS, seconds["copy"]) for seconds in rounds],
        floor_counts=f"the gradients' {4 * PARAMETERS / 1e6:.1f} MB read",
    )


def _statistic(model: torch.nn.Module):
    named = dict(model.named_parameters())
    decided = [
        LayerInfo(name=name, shape=tuple(p.shape)) for name, p in named.items() if p.dim() > 1
    ]
    engine = Engine(decided, seed=0, world_size=1)
    layers = [Layer(name=name, gradient=parameter.grad) for name, parameter in named.items()]

    def step() -> None:
        engine.observe_gradients(layers)
        engine.commit_step()

    return step
