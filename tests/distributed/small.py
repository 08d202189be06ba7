"""A small model with one, two and four dimensional layers, trained for a few steps inside a
group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from accordion.config import Config, DetectorConfig, Window
from accordion.decide.controller import Decider
from accordion.session.session import Session, attach

WIDTH = 96
"""Wide enough that bucket_cap_mb=0.01 cuts the model into many buckets."""


class SmallNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.first = torch.nn.Linear(8 * 16, WIDTH)
        self.middle = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = torch.nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.conv(x).flatten(1)).relu()
        for layer in self.middle:
            x = layer(x).relu()
        return self.last(x)


def build(bucket_cap_mb: float = 0.04) -> tuple[DistributedDataParallel, torch.optim.SGD]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallNet()
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 1, 4, 4, generator=draw), torch.randint(0, 4, (8,), generator=draw)


def backward(ddp: DistributedDataParallel, rank: int, step: int) -> None:
    inputs, labels = batch(rank, step)
    torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()


def parameters(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in ddp.module.parameters()]


def train(
    session: Session,
    ddp: DistributedDataParallel,
    rank: int,
    steps: Sequence[int],
    before: Callable[[int], Any] = int,
) -> None:
    for step in steps:
        before(step)
        backward(ddp, rank, step)
        session.step()
        ddp.zero_grad()


def start(method: str, **settings: Any) -> tuple[DistributedDataParallel, Session]:
    ddp, session, _ = start_with_optimizer(method, **settings)
    return ddp, session


def start_with_optimizer(
    method: str, *, decider: Decider | None = None, **settings: Any
) -> tuple[DistributedDataParallel, Session, torch.optim.SGD]:
    """Attach to a new model; all settings but `decider`, `window` and the buckets' size are of
    `Config`. Buckets are exchanged one by one, so that no sum depends on measured times.
    """
    ddp, optimizer = build(settings.pop("bucket_cap_mb", 0.04))
    detector = DetectorConfig(window=Window(epochs=settings.pop("window", 1)))
    settings = {"buckets_per_exchange": 1, **settings}
    config = Config(method=method, detector=detector, **settings)
    return ddp, attach(ddp, config, optimizer=optimizer, decider=decider), optimizer


def owed(session: Session) -> dict[str, torch.Tensor]:
    """This worker's residuals by layer."""
    found: dict[str, torch.Tensor] = session.state_dict()["engine"]["residuals"]
    return {name: residual.clone() for name, residual in found.items()}
