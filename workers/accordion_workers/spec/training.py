"""Part `training` of a job's specification."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from accordion_workers.spec.types import MAX_SAMPLES, Number, Strict, Whole


def _check_range(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"the range is {list(bounds)}; give the smaller number first")
    return bounds


Range = Annotated[
    tuple[Annotated[Number, Field(ge=0)], Annotated[Number, Field(ge=0, le=1.0e6)]],
    AfterValidator(_check_range),
]
"""Least and largest value."""


class OptimizerSpec(Strict):
    """The optimizer of a built-in task or of your own task class; a script creates its own."""

    name: Literal["sgd", "adamw"] = "sgd"
    """`sgd` or `adamw`."""
    lr: Number = Field(default=0.1, gt=0, le=100)
    """Learning rate at the smallest global batch, before decay and warm-up. The default is meant
    for `sgd`; for `adamw` give one, such as 0.001.
    """
    momentum: Number = Field(default=0.9, ge=0, lt=1)
    """Momentum of sgd; adamw has none."""
    nesterov: Annotated[bool, Field(strict=True)] = False
    """Whether sgd uses Nesterov momentum; needs a momentum above 0."""
    weight_decay: Number = Field(default=1.0e-4, ge=0, le=10)
    """Weight decay (L2 penalty for sgd, decoupled for adamw)."""

    @model_validator(mode="after")
    def _check_optimizer(self) -> OptimizerSpec:
        own = type(self).model_fields
        foreign = [
            field
            for field in ("momentum", "nesterov")
            if getattr(self, field) != own[field].default
        ]
        if self.name == "adamw" and foreign:
            raise ValueError(f"optimizer adamw has no {foreign[0]}; leave it out, or take sgd")
        if self.nesterov and self.momentum == 0:
            raise ValueError(
                "nesterov is true and momentum is 0; give a momentum above 0, such as 0.9"
            )
        return self


class WarmupSpec(Strict):
    """Linear growth of the learning rate over the first epochs."""

    epochs: Whole = Field(default=0, ge=0, le=100_000)
    """Length of the warm-up in epochs; 0 for none."""


class LrDecaySpec(Strict):
    """Multiplies the learning rate by `factor` at the start of each epoch listed in `at`, or lets
    it fall along a cosine.
    """

    shape: Literal["steps", "cosine"] = "steps"
    """`steps`: drops at the epochs of `at`; `cosine`: from the peak at the start to `floor` at the
    end of the job (arXiv:1608.03983, without restarts), beside the warm-up.
    """
    at: Annotated[
        tuple[Annotated[Whole, Field(ge=1, le=100_000)], ...], Field(max_length=1000)
    ] = ()
    """Epochs, counted from 0, at whose start the learning rate drops, such as `[100, 150]`; empty
    for a constant rate. An epoch listed twice counts twice; epochs after the last have no effect.
    """
    factor: Number = Field(default=0.1, gt=0, lt=1)
    """Factor of each drop, between 0 and 1."""
    floor: Number = Field(default=0.0, ge=0, lt=1)
    """Rate at the end of a cosine, as a share of the peak."""

    @model_validator(mode="after")
    def _check_shape(self) -> LrDecaySpec:
        own = type(self).model_fields
        foreign = ("floor",) if self.shape == "steps" else ("at", "factor")
        given = [name for name in foreign if getattr(self, name) != own[name].default]
        if given:
            raise ValueError(
                f"lr_decay has {given[0]} and shape {self.shape}, which has none; leave it out, or"
                " take the other shape: steps has at and factor, cosine has floor"
            )
        return self


class OverrideRangesSpec(Strict):
    """Least and largest values that overrides in mid-run may set, such as `lr: [0.001, 0.1]`."""

    lr: Range = (0.0, 100.0)
    """Learning rate, above 0. What a factor makes of the scheduled rate stays within it too."""
    weight_decay: Range = (0.0, 10.0)
    """Weight decay."""
    clip_norm: Range = (0.0, 1.0e6)
    """Largest norm of the averaged gradient, above 0."""


class TrainingSpec(Strict):
    """The mathematics of the run; none of it depends on the number of workers."""

    epochs: Whole = Field(default=20, ge=1, le=100_000)
    """Passes over the training data."""
    evaluate_every_epochs: Whole = Field(default=1, ge=1, le=100_000)
    """Epochs between two evaluations. The last epoch is always evaluated, with a value of `epochs`
    or more only that one. A script reads `session.evaluation_is_due`.
    """
    global_batch: Whole = Field(default=64, ge=1, le=MAX_SAMPLES)
    """Samples per step, over all workers; with `batch`, those of the low level."""
    micro_batch: Whole = Field(default=16, ge=1, le=1_000_000)
    """Samples per forward pass. Each worker takes whole micro-batches of the global batch. Lower it
    if a worker runs out of memory.
    """
    seed: Whole = Field(default=0, ge=0, lt=2**32)
    """Seed of weights, sample order, augmentation, dropout and randomized compression."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision under autocast; parameters, gradients and loss stay fp32. `fp16` scales the loss
    and needs GPUs; a script calls autocast itself.
    """
    clip_norm: Number | None = Field(default=None, gt=0)
    """Largest norm of the averaged gradient; a larger one is scaled down. Null: no clipping."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """Optimizer and learning rate."""
    warmup: WarmupSpec = WarmupSpec()
    """Warm-up of the learning rate."""
    lr_decay: LrDecaySpec = LrDecaySpec()
    """Decay of the learning rate."""
    override_ranges: OverrideRangesSpec = OverrideRangesSpec()
    """What overrides may set of the optimizer in mid-run; not for a script, which sets its own."""
