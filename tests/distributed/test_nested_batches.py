"""Tasks whose batches and outputs are dicts and tuples train as those of single tensors do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from accordion_workers.tasks.digits import DigitsMlp
from tests.distributed.loop_jobs import equal, run_job, spec


class FromDict(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": self.inner(inputs["pixels"])}


class Nested(DigitsMlp):
    """Digits, wrapped."""

    def model(self) -> nn.Module:
        return FromDict(super().model())

    def train_data(self) -> Any:
        return NestedData(super().train_data())

    def eval_data(self) -> Any:
        return NestedData(super().eval_data())

    def loss(self, outputs: Any, targets: Any, *, step: int) -> Tensor:
        return super().loss(outputs["logits"], targets[0], step=step)

    def metrics(self, outputs: Any, targets: Any) -> Any:
        return super().metrics(outputs["logits"], targets[0])


class NestedData:
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor) -> Any:
        inputs, targets = self.data.batch(indices)
        return {"pixels": inputs}, (targets, torch.arange(len(targets)))


def test_batches_of_dicts_and_tuples_train_like_tensors(run_group, tmp_path) -> None:
    options = {"hidden": 32, "min_step_s": 0.0}
    plain = spec("digits-mlp", options, compression={"method": "none"})
    nested = spec(f"{__name__}:Nested", options, compression={"method": "none"})
    one = run_group(2, run_job, tmp_path / "plain", plain)[0]
    other = run_group(2, run_job, tmp_path / "nested", nested)[0]
    assert equal(one.parameters, other.parameters)
