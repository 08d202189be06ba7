"""Measures one worker's step of a job on this machine, without exchanging gradients."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accordion.base.messages import LayerInfo
from accordion.compress.layer_stacks import Bucket, Layer
from accordion.hook.exchange_scheduler import Exchange
from accordion_workers.common.errors import CodeError
from accordion_workers.planning.plan_checks import explain_refusal
from accordion_workers.records.contract import JobSpec, Launch
from accordion_workers.spec.job import CompressionSpec
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import NoLink, WorkerContext
from accordion_workers.training.loop import accumulate_gradients
from accordion_workers.training.sampler import batch_at, epoch_order
from accordion_workers.training.train_state import TrainState, build_train_state

WARM_UP_STEPS = 2
"""Steps that allocate buffers and load code; they are not measured."""
MIN_STEPS = 5
"""Smallest number of steps of which the medians are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasurement:
    """One worker's step without exchanges: medians over several steps."""

    first_ready_s: float
    """Seconds from the start of the step until the gradients of the first bucket are complete."""
    ready_s: tuple[float, ...]
    """Seconds from then until those of each bucket are complete."""
    optimizer_s: float
    """Seconds from the last bucket to the end of the step."""
    buckets: tuple[tuple[Layer, ...], ...]
    """Layers of each bucket, in the order of the backward pass."""
    layers: tuple[LayerInfo, ...]
    """Layers whose level is decided."""
    model: nn.Module
    samples: int
    """Number of training samples."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.first_ready_s + self.ready_s[-1] + self.optimizer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedStep:
    start_s: float
    ready_s: list[float]
    end_s: float
    buckets: list[Bucket]


def measure_step(spec: JobSpec, workers: int, *, seconds: float) -> StepMeasurement:
    """Train on one of `workers` shares of a batch for some seconds, at least `MIN_STEPS` steps;
    with the whole model, also if workers will hold it together.

    The process must not have a process group; it has none afterwards.

    Raises:
        CodeError: the job is a script, whose model is not known before it runs, or asks for GPUs.
        TaskRaised: the task cannot be built, or raised.
    """
    refusal = explain_refusal(spec)
    if refusal:
        raise CodeError(refusal)
    plain: dict[str, Any] = {"local_steps": None, "batch": None, "parallelism": None}
    plain["compression"] = CompressionSpec(method="none")
    spec = spec.model_copy(update=plain)
    torch.set_num_threads(spec.workers.num_threads)
    with _group_of_one():
        state = build_train_state(_context(spec, workers), Clock())
        for _ in range(WARM_UP_STEPS):
            _take_step(state)
        steps: list[_TimedStep] = []
        began_s = time.perf_counter()
        while len(steps) < MIN_STEPS or time.perf_counter() - began_s < seconds:
            steps.append(_take_step(state))
    return StepMeasurement(
        first_ready_s=median(step.ready_s[0] - step.start_s for step in steps),
        ready_s=tuple(
            median(step.ready_s[index] - step.ready_s[0] for step in steps)
            for index in range(len(steps[0].ready_s))
        ),
        optimizer_s=median(step.end_s - step.ready_s[-1] for step in steps),
        buckets=tuple(bucket.layers for bucket in steps[0].buckets),
        layers=state.session.layers,
        model=state.model,
        samples=len(state.data),
    )


def _take_step(state: TrainState) -> _TimedStep:
    """Take a step on the epoch's first batch."""
    order = epoch_order(len(state.data), seed=state.spec.training.seed, epoch=0)
    batch = batch_at(0, num_samples=len(order), global_batch=state.spec.training.global_batch)
    ready_s: list[float] = []
    buckets: list[Bucket] = []

    def observe(exchange: Exchange) -> None:
        buckets.extend(exchange.buckets)
        ready_s.extend(exchange.ready_s)

    exchanges = state.session.source.exchanges
    if exchanges is not None:  # it is not, because the loop wraps the model
        exchanges.on_exchange = observe
    start_s = time.perf_counter()
    accumulate_gradients(state, order, batch)
    state.session.step()
    return _TimedStep(start_s=start_s, ready_s=ready_s, end_s=time.perf_counter(), buckets=buckets)


@contextmanager
def _group_of_one() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _context(spec: JobSpec, workers: int) -> WorkerContext:
    launch = Launch(job_id="plan", attempt=1, workers=workers, storage="", spec=spec)
    return WorkerContext(
        launch=launch,
        generation=1,
        rank=0,
        world_size=workers,
        device="cpu",
        link=NoLink(lambda _: None),
    )
