"""Part `training` of a job's specification."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from accordion_workers.spec.types import MAX_SAMPLES, Number, Strict, Whole


def _check_range(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"the range is {list(bounds)}; give the smaller number first")
    return bounds


Range = Annotated[
    tuple[Annotated[Number, Field(ge=0)], Annotated[Number, Field(gt=0, le=1.0e6)]],
    AfterValidator(_check_range),
]
"""Least and largest value."""


OptimizerName = Literal["sgd", "adam", "adamw", "nadam", "radam", "rmsprop", "adagrad"]
_SETTINGS_BY_OPTIMIZER: Mapping[OptimizerName, tuple[str, ...]] = {
    "sgd": ("momentum", "nesterov"),
    "adam": ("betas", "eps"),
    "adamw": ("betas", "eps"),
    "nadam": ("betas", "eps"),
    "radam": ("betas", "eps"),
    "rmsprop": ("eps",),
    "adagrad": ("eps",),
}
"""What each has beside a learning rate and weight decay."""
_Beta = Annotated[Number, Field(ge=0, lt=1)]


class OptimizerSpec(Strict):
    """The optimizer of a built-in task or of your own task class; a script creates its own."""

    name: OptimizerName = "sgd"
    """Optimizer of `torch.optim`."""
    lr: Number = Field(default=0.1, gt=0, le=100)
    """Learning rate at the smallest global batch, before decay and warm-up. The default is meant
    for `sgd`; for the others give one, such as 0.001.
    """
    momentum: Number = Field(default=0.9, ge=0, lt=1)
    """Momentum of sgd; the others have none."""
    nesterov: Annotated[bool, Field(strict=True)] = False
    """Whether sgd uses Nesterov momentum; needs a momentum above 0."""
    betas: tuple[_Beta, _Beta] | None = None
    """Decay of the averages of gradients and of their squares, for adam, adamw, nadam and radam.
    Null: that of PyTorch, [0.9, 0.999].
    """
    eps: Number | None = Field(default=None, gt=0, le=1)
    """Added to what gradients are divided by, for all but sgd. Null: that of PyTorch."""
    weight_decay: Number = Field(default=1.0e-4, ge=0, le=10)
    """Weight decay: decoupled for adamw, an L2 penalty for the others."""

    @model_validator(mode="after")
    def _check_optimizer(self) -> OptimizerSpec:
        own, known = type(self).model_fields, _SETTINGS_BY_OPTIMIZER[self.name]
        others = [name for name in ("momentum", "nesterov", "betas", "eps") if name not in known]
        if foreign := [name for name in others if getattr(self, name) != own[name].default]:
            having = [one for one, names in _SETTINGS_BY_OPTIMIZER.items() if foreign[0] in names]
            raise ValueError(
                f"optimizer {self.name} has no {foreign[0]}; leave it out, or take"
                f" {' or '.join(having)}"
            )
        if self.nesterov and self.momentum == 0:
            raise ValueError(
                "nesterov is true and momentum is 0; give a momentum above 0, such as 0.9"
            )
        return self

    def settings(self) -> dict[str, Any]:
        """Return the settings by the names of `torch.optim`, without those left to PyTorch."""
        names = ("lr", "weight_decay", *_SETTINGS_BY_OPTIMIZER[self.name])
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class WarmupSpec(Strict):
    """Linear growth of the learning rate over the first epochs."""

    epochs: Whole = Field(default=0, ge=0, le=100_000)
    """Length of the warm-up in epochs; 0 for none."""


LrShape = Literal["steps", "cosine", "wsd", "one_cycle", "table"]
_FIELDS_BY_SHAPE: Mapping[LrShape, tuple[str, ...]] = {
    "steps": ("at", "factor"),
    "cosine": ("floor",),
    "wsd": ("part", "floor"),
    "one_cycle": ("rise", "floor"),
    "table": ("points",),
}
Point = tuple[Annotated[Number, Field(ge=0, le=100_000)], Annotated[Number, Field(ge=0, le=1000)]]
"""An epoch, whole or not, and the share of `optimizer.lr` there."""


class LrDecaySpec(Strict):
    """How the learning rate changes over the run, beside the warm-up."""

    shape: LrShape = "steps"
    """`steps`: multiplied by `factor` at the start of each epoch of `at`; `cosine`: from the peak
    at the start to `floor` at the end of the job (arXiv:1608.03983, without restarts); `wsd`: at
    the peak, and in the last `part` of the job in a straight line to `floor` (arXiv:2405.18392);
    `one_cycle`: from 1/25 up to the peak in the first `rise` of the job, and down to `floor`
    (arXiv:1708.07120); `table`: in straight lines between `points`.
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
    """Rate at the end, as a share of the peak."""
    part: Number = Field(default=0.2, gt=0, le=1)
    """Part of the job in which `wsd` falls; 1 is a linear decay."""
    rise: Number = Field(default=0.3, gt=0, lt=1)
    """Part of the job in which `one_cycle` rises."""
    points: Annotated[tuple[Point, ...], Field(max_length=1000)] = ()
    """Pairs of an epoch and a share of `optimizer.lr`, such as `[[0, 0.1], [5, 1], [90, 0]]`, with
    growing epochs; before the first and after the last one the rate stays as it is there.
    """

    @model_validator(mode="after")
    def _check_shape(self) -> LrDecaySpec:
        own, known = type(self).model_fields, _FIELDS_BY_SHAPE[self.shape]
        others = [name for name in own if name not in ("shape", *known)]
        given = [name for name in others if getattr(self, name) != own[name].default]
        if given:
            shapes = [shape for shape, names in _FIELDS_BY_SHAPE.items() if given[0] in names]
            raise ValueError(
                f"shape {self.shape} has {' and '.join(known)}, and no {given[0]}; leave it out, or"
                f" take shape {' or '.join(shapes)}"
            )
        if self.shape == "table" and len(self.points) < 2:
            raise ValueError(
                f"shape table has {len(self.points)} points; give at least two, such as"
                " [[0, 1], [90, 0]]"
            )
        for (before, _), (after, _) in pairwise(self.points):
            if after <= before:
                raise ValueError(
                    f"points has epoch {after:g} after epoch {before:g}; give growing epochs"
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
    """How the learning rate changes over the run."""
    override_ranges: OverrideRangesSpec = OverrideRangesSpec()
    """What overrides may set of the optimizer in mid-run; not for a script, which sets its own."""
