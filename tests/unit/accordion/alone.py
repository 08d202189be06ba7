"""A DDP module of any shapes in a group of one process, with the hook, and no forward pass that
costs anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from accordion.base.messages import Level
from accordion.config import Config
from accordion.session.session import Session, attach


class Shapes(nn.Module):
    """Parameters of the given shapes; the output's gradient is `slopes`, the same in every step."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList([torch.zeros(shape) for shape in shapes.values()])
        self.slopes = [torch.randn(shape, generator=draw) for shape in shapes.values()]

    def forward(self) -> torch.Tensor:
        pairs = zip(self.weights, self.slopes, strict=True)
        return torch.stack(
            [torch.dot(weight.view(-1), slope.view(-1)) for weight, slope in pairs]
        ).sum()


@contextmanager
def alone(
    shapes: Mapping[str, tuple[int, ...]], level: Level, *, scaler: GradScaler | None = None
) -> Iterator[tuple[DistributedDataParallel, Session]]:
    """A session in which all matrices have this level; exchanges inside the backward pass. A scaler
    gets an SGD.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(Shapes(shapes), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1) if scaler else None
        config = Config(method=level.method, low=level.options, high=level.options)
        session = attach(ddp, config, optimizer=optimizer, scaler=scaler, overlap=False)
        yield ddp, session
    finally:
        dist.destroy_process_group()


def step(ddp: DistributedDataParallel, session: Session) -> None:
    ddp().backward()
    session.step()
