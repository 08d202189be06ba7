"""`accordion_ray.attach` in processes that Ray Train did not start: what it asks of Ray Train is
given here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from ray.train import Checkpoint

import accordion_ray
from accordion.config import Config, DetectorConfig, Window
from accordion.session.session import Session
from accordion_ray.train_context import GuestContext
from tests.distributed.small import build, owed

CONFIG = Config(detector=DetectorConfig(window=Window(steps=2)))


@contextmanager
def train_worker(
    rank: int, world_size: int, checkpoint: Path | None, has_node_notice: Callable[[], bool] = bool
) -> Iterator[None]:
    """Be a worker of a run whose newest checkpoint is this directory."""
    run = GuestContext(
        name="r",
        rank=rank,
        world_size=world_size,
        filesystem=None,
        path="",
        max_failures=0,
        has_node_notice=has_node_notice,
    )
    newest = Checkpoint.from_directory(checkpoint) if checkpoint is not None else None
    with ExitStack() as stack:
        stack.enter_context(patch("accordion_ray.attachment.current_run", lambda: run))
        stack.enter_context(patch("accordion_ray.attachment.follow_reports", lambda *_: None))
        stack.enter_context(patch("ray.train.get_checkpoint", lambda: newest))
        yield


class Guest:
    """A model, its optimizer and the session that follows it."""

    def __init__(
        self,
        checkpoint: Path | None = None,
        *,
        config: Config = CONFIG,
        timeout_s: float = 60.0,
        has_node_notice: Callable[[], bool] = bool,
        **options: Any,
    ) -> None:
        self.rank, world_size = dist.get_rank(), dist.get_world_size()
        self.model, self.optimizer = build()
        with train_worker(self.rank, world_size, checkpoint, has_node_notice):
            self.session: Session = accordion_ray.attach(
                self.model,
                self.optimizer,
                config,
                register=False,
                timeout_s=timeout_s,
                **options,
            )
        if checkpoint is not None:
            state: dict[str, Any] = torch.load(checkpoint / "script.pt")
            self.model.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    def train(self, steps: range) -> None:
        for step in steps:
            inputs = torch.randn(
                8, 1, 4, 4, generator=torch.Generator().manual_seed(10 * step + self.rank)
            )
            self.optimizer.zero_grad()
            self.model(inputs).square().mean().backward()
            self.optimizer.step()

    def save(self, folder: Path) -> None:
        """Save as scripts do: rank 0 its model, all ranks the session's state."""
        if self.rank == 0:
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            torch.save(state, folder / "script.pt")
        accordion_ray.save_state(self.session, folder)

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def residuals(self) -> torch.Tensor:
        """What this rank has not sent yet."""
        return torch.cat([value.flatten() for value in owed(self.session).values()])
