"""Simulated workers share one card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic", reason="the library's tests run where only torch is installed")

from accordion_workers.records.contract import JobSpec
from accordion_workers.simulation.simulation import Observer, Simulation

JOB = {
    "task": {"name": "synthetic", "options": {"samples": 256, "width": 64}},
    "training": {"epochs": 2, "optimizer": {"lr": 0.01}},
    "workers": {"min": 4, "max": 4, "balance": False},
}


@pytest.mark.parametrize(
    "parts",
    [
        {"compression": {"method": "powersgd"}},
        {"compression": {"method": "qsgd"}, "local_steps": {"low": 2}},
    ],
)
def test_workers_that_share_a_card_learn_as_on_a_processor(
    card: torch.device, tmp_path: Path, parts: dict[str, object]
) -> None:
    losses = {}
    for device in ("cpu", str(card)):
        epochs = []
        observer = Observer(
            progress=lambda _: None,
            record=lambda one, epochs=epochs: epochs.append(one) if one.kind == "epoch" else None,
            log=lambda _: None,
        )
        job = JobSpec.model_validate({**JOB, **parts})
        simulation = Simulation(job, tmp_path / device, workers=4, device=device, observer=observer)
        assert simulation.run() == "completed"
        losses[device] = [epoch.loss for epoch in epochs]
    assert losses["cpu"] == pytest.approx(losses[str(card)], rel=1e-2)
