"""Jobs whose models compute in less than fp32: what stays fp32, what the loss scale does, and that
it is resumed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accordion_workers.records.contract import DesiredState, JobSpec
from accordion_workers.tasks.digits import DigitsMlp
from tests.distributed.loop_jobs import RecordingLink, equal, run_job, spec, what_was_learned

STOP_IN_EPOCH_1 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0)
)


class Seeing(DigitsMlp):
    """Digits that insist on what the model computes in, `dtype`; their loss is `times` larger."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_forward_hook(self._look)
        return model

    def _look(self, module: nn.Module, inputs: Any, outputs: Tensor) -> None:
        assert outputs.dtype == getattr(torch, self.options["dtype"])

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        assert outputs.dtype == torch.float32
        return super().loss(outputs, targets, step=step) * float(self.options["times"])

    def __init__(self, options: Any) -> None:
        super().__init__({"hidden": 32, "min_step_s": 0.0})
        self.options = options


def job(precision: str, *, times: float = 1.0, **training: Any) -> JobSpec:
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    return spec(
        f"{__name__}:Seeing",
        {"dtype": dtype, "times": times},
        training={"precision": precision, "epochs": 3, **training},
        # fp16 is for GPUs; digits can be computed without.
        workers={"gpus": 1},
        policy={"window": {"epochs": 1}},
    )


@pytest.mark.parametrize(("precision", "clip"), [("bf16", {"clip_norm": 1.0}), ("fp16", {})])
def test_a_model_that_computes_in_less_learns_the_same_as_in_fp32(
    run_group, tmp_path, precision, clip
):
    learned = [
        run_group(2, run_job, tmp_path / name, job(name, **clip))[0].link.of("epoch")
        for name in ("fp32", precision)
    ]
    for one, other in zip(*learned, strict=True):
        # the mean of 1,437 samples, each rounded to the 8 bits of bf16 on its way.
        assert other.loss == pytest.approx(one.loss, rel=0.05)
        assert other.metrics["accuracy"] == pytest.approx(one.metrics["accuracy"], abs=0.03)


def test_a_job_with_a_loss_scale_that_was_stopped_goes_on_with_its_bits(run_group, tmp_path):
    # 300 is what makes the first scale too large: it falls in the first steps, and only a saved one
    # is not too large.
    spec = job("fp16", times=300.0, clip_norm=1.0)
    undisturbed = run_group(2, run_job, tmp_path / "a", spec)[0]
    stopped = run_group(2, run_job, tmp_path / "b", spec, STOP_IN_EPOCH_1)[0]
    resumed = run_group(2, run_job, tmp_path / "b", spec, None, 2)[0]
    assert undisturbed.link.of("epoch")[0].skipped_steps > 0
    assert equal(resumed.parameters, undisturbed.parameters)
    assert what_was_learned(stopped) + what_was_learned(resumed) == what_was_learned(undisturbed)


def test_a_scale_that_has_far_to_fall_ends_no_job(run_group, tmp_path):
    epochs = run_group(2, run_job, tmp_path, job("fp16", times=2.0e6, clip_norm=1.0))[0].link.of(
        "epoch"
    )
    assert epochs[0].skipped_steps > 10
    assert epochs[-1].metrics["accuracy"] > 0.8


def test_a_loss_that_no_scale_makes_finite_ends_the_job(run_group, tmp_path):
    with pytest.raises(Exception, match="not finite"):
        run_group(2, run_job, tmp_path, job("fp16", times=1.0e39))


def test_a_worker_that_goes_on_without_samples_in_its_first_batch_takes_part(run_group, tmp_path):
    spec = job("fp16", global_batch=1400, micro_batch=700, epochs=1)
    at_once = RecordingLink(orders=DesiredState(version=1, stop="cancel"))
    stopped = run_group(2, run_job, tmp_path, spec, at_once)[0]
    assert stopped.link.of("checkpoint")[-1].step == 1
    # 37 samples are left, one micro-batch, and rank 1 has none.
    resumed = run_group(2, run_job, tmp_path, spec, None, 2)
    assert [result.outcome for result in resumed] == ["completed"] * 2
