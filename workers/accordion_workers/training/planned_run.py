"""What a job will do and send, as far as its spec tells before it runs; loads no torch.

    for assumed in list_assumptions(spec):
        run = plan_run(spec, assumed, model, samples=len(data))

It asks the functions that decide in the job: the schedule of the learning rate, `LocalSteps.length`
and the policy. What depends on measurements of the job is assumed twice: all low, which sends most
with the usual options, and all high. A policy that follows the link may also leave compression and
rounds out, which is its low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Protocol

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import BatchLevel, LayerInfo, Level, Report
from accordion.config import Config, DetectorConfig
from accordion.decide.controller import Controller
from accordion.decide.detector import window_is_due
from accordion.decide.training_stage import TrainingStage
from accordion.policies import POLICIES
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.sampler import num_batches
from accordion_workers.training.schedule import BatchChange, build_scaling, build_schedule

if TYPE_CHECKING:
    from accordion.compress.ledger import Ledger


class Model(Protocol):
    """What a plan needs to know of a model."""

    layers: Sequence[LayerInfo]
    """Layers whose level is decided."""
    window_bytes: int
    """Bytes with which workers average the sums of a window."""

    def count_exchange(self, level_by_layer: Mapping[str, Level]) -> Ledger:
        """Return a count of the bytes of an exchange at these levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Settings in which nothing is left to be decided in the job."""

    text: str
    """What they assume; empty if all is known before."""
    config: Config
    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps of an epoch in which neither levels nor the length of rounds change."""

    epoch: int
    first_step: int
    """Its first step, counted from the start of the job."""
    num_steps: int
    fall: float
    """Ratio of the highest learning rate so far to the rate in this epoch, as rounds follow it."""
    level_by_layer: Mapping[str, Level]
    saved_every: int | None
    """Steps of the job between two checkpoints, which end rounds early."""
    windows: int
    """Windows that end in it. Of those that end in one round, the last one counts."""

    def round_length(self, local: LocalSteps | None) -> int:
        """Return the steps of a round; 1 if gradients are exchanged in every step."""
        return 1 if local is None else local.length(step=self.first_step, fall=self.fall)

    def count_exchanges(self, local: LocalSteps | None) -> int:
        """Return the number of rounds, of which those before a checkpoint and the last one may be
        short.
        """
        length, every = self.round_length(local), self.saved_every
        if every is None:
            return -(-self.num_steps // length)
        head = min(self.num_steps, -self.first_step % every)
        whole, tail = divmod(self.num_steps - head, every)
        return -(-head // length) + whole * -(-every // length) + -(-tail // length)

    def count_bytes(self, local: LocalSteps | None, model: Model) -> tuple[int, int]:
        """Return the bytes that each worker sends: those of gradients or changes, and those of
        signals and windows.
        """
        exchanges, one = self.count_exchanges(local), model.count_exchange(self.level_by_layer)
        windows = min(self.windows, exchanges) * model.window_bytes
        return exchanges * one.gradient_wire, exchanges * one.control_wire + windows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEpochs:
    """Epochs in a row that are planned alike."""

    epoch: int
    """First of them."""
    epochs: int
    """Number of them."""
    lr: float
    """Learning rate of the last step of the first of them."""
    last_lr: float
    """Learning rate of the last step of the last of them."""
    global_batch: int
    steps: int
    """Steps of each."""
    local_steps: tuple[int, ...]
    """Steps of a round, one after the other if they change within an epoch; 1 if gradients are
    exchanged in every step.
    """
    layers_by_level: Mapping[str, int]
    """Number of layers at each level at the end of an epoch; empty if the levels are decided in the
    job and send equally much.
    """
    exchanges: int
    """Exchanges in each of them; rounds end with the epoch."""
    sent_bytes: int
    """Bytes of gradients or changes that each worker sends in each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A job from its start to its last epoch, if nobody overrides it or changes its workers."""

    assumed: str
    """What is assumed of that which is decided in the job; empty if all is known before."""
    epochs: Sequence[PlannedEpochs]
    sent_bytes: int
    """Bytes that each worker sends in the whole job, without decisions, acknowledgements and
    running statistics.
    """
    control_bytes: int
    """Part of them that is not of gradients or changes: signals, and sums of windows."""
    uncompressed_bytes: int
    """Bytes that it would send without compression in every step."""


def list_assumptions(spec: JobSpec) -> list[Assumption]:
    """Return what the plans of a job assume: one thing if all is known before, otherwise all low
    and all high.
    """
    low, high = _assume(spec, "low"), _assume(spec, "high")
    return [low, high] if low.text else [low]


def list_stretches(
    spec: JobSpec, assumed: Assumption, *, layers: Sequence[LayerInfo], samples: int
) -> Iterator[Stretch]:
    """Yield the stretches of a job in order, each within an epoch."""
    schedule, config = build_schedule(spec.training), assumed.config
    controller, stage = Controller(config, layers), TrainingStage()
    steps = num_batches(samples, assumed.global_batch)
    for epoch in range(spec.training.epochs):
        begin, last = epoch * steps, (epoch + 1) * steps
        for first, stop in pairwise(_list_cuts(config, begin, last)):
            yield Stretch(
                epoch=epoch,
                first_step=first,
                num_steps=stop - first,
                fall=stage.fall,
                level_by_layer=controller.planned_levels(epoch, step=first, fall=stage.fall),
                saved_every=spec.checkpoint.every_steps,
                windows=_count_windows(
                    config.detector, epoch, first, stop=stop, ends_epoch=stop == last
                ),
            )
        stage = stage.after(
            Report(
                epoch=epoch,
                step=last,
                epoch_end=True,
                world_size=spec.workers.max,
                global_batch=assumed.global_batch,
                lr=schedule.epoch_rate(epoch),
                next_lr=schedule.epoch_rate(epoch + 1),
            )
        )


def plan_run(spec: JobSpec, assumed: Assumption, model: Model, *, samples: int) -> PlannedRun:
    """Return the plan of a job; a budget is resolved in its spec before."""
    local, control = assumed.config.local_steps, 0
    rows: list[PlannedEpochs] = []
    stretches = list_stretches(spec, assumed, layers=model.layers, samples=samples)
    for epoch, group in groupby(stretches, key=lambda one: one.epoch):
        parts = list(group)
        control += sum(part.count_bytes(local, model)[1] for part in parts)
        row = _plan_epoch(spec, assumed, model, epoch=epoch, parts=parts)
        if rows and _is_alike(rows[-1], row, spec):
            rows[-1] = replace(rows[-1], epochs=rows[-1].epochs + 1, last_lr=row.lr)
        else:
            rows.append(row)
    dense = model.count_exchange({}).total.dense_wire
    return PlannedRun(
        assumed=assumed.text,
        epochs=rows,
        sent_bytes=sum(row.epochs * row.sent_bytes for row in rows) + control,
        control_bytes=control,
        uncompressed_bytes=sum(row.epochs * row.steps for row in rows) * dense,
    )


def _assume(spec: JobSpec, level: BatchLevel) -> Assumption:
    config, size = spec.config(), spec.training.global_batch
    texts: list[str] = []
    policy = POLICIES[config.policy]
    if policy.uses_costs:
        texts += _describe_costs(level, has_rounds=config.local_steps is not None)
        if level == "low":
            config = replace(config, method="none", low={}, high={}, local_steps=None)
    elif not policy.is_planned and not _has_one_level(config):
        texts.append(f"all layers at {level}")
    if not policy.is_planned:
        config = replace(config, policy="fixed", policy_options={"level": level})
    if config.batch is not None:
        size = config.batch.size(level)
        texts.append(f"{size} samples a step")
    return Assumption(text=", ".join(texts), config=config, global_batch=size)


def _describe_costs(level: BatchLevel, *, has_rounds: bool) -> Iterator[str]:
    """Yield what is assumed of a policy that follows the link, which may not need compression."""
    yield "no compression" if level == "low" else "all layers at high"
    if has_rounds:
        is_low = level == "low"
        yield "an exchange in every step" if is_low else "rounds as long as local_steps allows"


def _has_one_level(config: Config) -> bool:
    low, high = config.ladder()
    return low.options == high.options


def _list_cuts(config: Config, first: int, stop: int) -> list[int]:
    """Return the steps at which a stretch begins, and where the last one ends."""
    local, warm_up = config.local_steps, config.warm_up
    changes = {
        0 if local is None else local.start_steps,
        0 if warm_up is None else warm_up.steps,
    }
    return [first, *sorted(step for step in changes if first < step < stop), stop]


def _count_windows(
    detector: DetectorConfig, epoch: int, first: int, *, stop: int, ends_epoch: bool
) -> int:
    length = detector.window_in_force.steps
    if length is not None:
        return stop // length - first // length
    return int(ends_epoch and window_is_due(detector, epoch, epoch_end=True))


def _plan_epoch(
    spec: JobSpec, assumed: Assumption, model: Model, *, epoch: int, parts: Sequence[Stretch]
) -> PlannedEpochs:
    local, size = assumed.config.local_steps, assumed.global_batch
    scaling = build_scaling(spec)
    factor = scaling.factor(BatchChange(size=size), scaling.warmup_steps)
    rate = build_schedule(spec.training).step_rate(epoch, 1.0) * factor
    is_open = not POLICIES[spec.policy.name].is_planned and _has_one_level(assumed.config)
    names = [level.name for level in parts[-1].level_by_layer.values()]
    return PlannedEpochs(
        epoch=epoch,
        epochs=1,
        lr=rate,
        last_lr=rate,
        global_batch=size,
        steps=sum(part.num_steps for part in parts),
        local_steps=tuple(dict.fromkeys(part.round_length(local) for part in parts)),
        layers_by_level={} if is_open else dict(sorted(Counter(names).items())),
        exchanges=sum(part.count_exchanges(local) for part in parts),
        sent_bytes=sum(part.count_bytes(local, model)[0] for part in parts),
    )


def _is_alike(before: PlannedEpochs, row: PlannedEpochs, spec: JobSpec) -> bool:
    """Return whether an epoch continues a row, in which the learning rate may only change
    gradually.
    """
    decay, warmup = spec.training.lr_decay, spec.training.warmup
    is_gradual = decay.shape != "steps" or row.epoch < warmup.epochs
    begun = replace(row, epoch=before.epoch, epochs=before.epochs)
    is_equal = replace(begun, lr=before.lr, last_lr=before.last_lr) == before
    return is_equal and (is_gradual or row.lr == before.last_lr)
