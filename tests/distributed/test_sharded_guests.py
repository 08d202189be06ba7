"""Ray Train guests whose model FSDP2 shards: an unchanged loop, its state, and local steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import accordion_ray
from accordion import Config, DetectorConfig, LocalSteps, Window
from tests.distributed.guests import train_worker
from tests.distributed.sharded_models import backward, build, full

WINDOW = DetectorConfig(window=Window(steps=2))
CONFIGS = {
    "powersgd": Config(method="powersgd", detector=WINDOW),
    "local steps": Config(method="qsgd", detector=WINDOW, local_steps=LocalSteps(low=2, high=2)),
}


def train(rank: int, kind: str, folder: Path | None, stop: int) -> Any:
    """Take four steps of a guest's loop, with a new session from its saved state after `stop`."""
    model, optimizer, replicas = build()

    def attach(checkpoint: Path | None) -> Any:
        with train_worker(rank, 4, checkpoint):
            return accordion_ray.attach(
                model, optimizer, CONFIGS[kind], register=False, replicate_group=replicas
            )

    session = attach(None)
    for step in range(4):
        if step == stop:
            accordion_ray.save_state(session, folder)
            session.source.remove()
            session = attach(folder)
        optimizer.zero_grad()
        backward(model, rank, step)
        optimizer.step()
    session.finish_round()
    return full(model), session.steps


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_a_resumed_guest_has_the_bits_of_one_that_never_stopped(run_grid, tmp_path, kind):
    whole, resumed = run_grid(train, kind, None, -1), run_grid(train, kind, tmp_path, 2)
    for (ours, steps), (theirs, _) in zip(resumed, whole, strict=True):
        assert steps == 4
        assert all(map(torch.equal, ours, theirs))
        assert all(map(torch.equal, ours, whole[0][0]))
