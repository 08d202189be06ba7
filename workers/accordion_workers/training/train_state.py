"""State of one worker's training, and how it is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from accordion.base.messages import Decision, Override, Report
from accordion.decide.controller import Controller
from accordion.hook.level_costs import sum_waits
from accordion.hook.module_checks import unwrap_module
from accordion.session.optimizer_steps import Optimizers, as_sequence
from accordion.session.session import Session, attach
from accordion_workers.checkpoint.async_save import SaveStatus
from accordion_workers.common.error_text import format_with_line
from accordion_workers.common.errors import TaskRaised
from accordion_workers.data import Data
from accordion_workers.data.nested import to_device, to_float32
from accordion_workers.records.contract import Bytes, JobSpec, Position
from accordion_workers.spec.training import OptimizerName
from accordion_workers.tasks.base import Task
from accordion_workers.training.balancing import Division, OwnWork, can_balance
from accordion_workers.training.byte_budget import describe_rounds, resolve_budget
from accordion_workers.training.clock import Clock, Phases
from accordion_workers.training.context import Link, WorkerContext
from accordion_workers.training.data_checks import check_not_empty
from accordion_workers.training.objective import ObjectiveProgress
from accordion_workers.training.sampler import derive_seed, num_batches
from accordion_workers.training.schedule import (
    BatchChange,
    BatchScaling,
    Schedule,
    build_scaling,
    build_schedule,
)
from accordion_workers.training.step_times import StepTimes
from accordion_workers.training.worker_mesh import WorkerMesh
from accordion_workers.user_code.load_task import load_task

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Autocast's dtype by the spec's precision; any other precision runs without autocast, so a float64
model stays float64.
"""
_OPTIMIZERS: Mapping[OptimizerName, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
}

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LossSum:
    """Training loss of this worker's own samples."""

    total: Tensor
    """Sum over the samples, a float64 scalar on the device; reading it every step would stall the
    device.
    """
    samples: int = 0

    @classmethod
    def zero(cls, device: str) -> Self:
        """Return an empty sum."""
        return cls(total=torch.zeros((), dtype=torch.float64, device=device))

    def add(self, mean_loss: Tensor, samples: int, *, again: bool = False) -> None:
        """Add a micro-batch; `again` adds to the loss of samples that are counted already."""
        self.total += mean_loss.detach().double() * samples
        self.samples += 0 if again else samples


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBaseline:
    """Totals at the start of the open epoch; the epoch's record holds the differences."""

    bytes: Bytes = field(default_factory=Bytes)
    seconds: Mapping[str, float] = field(default_factory=dict)
    skipped_steps: int = 0


@dataclass(slots=True, kw_only=True)
class ActorDecider:
    """Asks the Accordion actor for decisions on behalf of the session (rank 0), and keeps what its
    reports measured.
    """

    link: Link
    controller: Controller | None = None
    phases: Phases | None = None
    """Where the time of a decision counts as `decide`."""
    statistic: Mapping[str, float] | None = None
    """Newest statistic by layer of the open epoch."""
    agreement: float | None = None
    """Newest agreement of the workers in the open epoch."""
    wait_s_by_level: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which a step would wait for exchanges at each level, as last predicted."""
    exchange_wait_s: float | None = None
    """Seconds for which a step waited for exchanges, as last measured."""

    def __call__(self, report: Report, proposal: Decision) -> Decision:
        """Return the actor's decision, or the proposal if the actor does not answer in time."""
        if report.statistic_by_layer is not None:
            self.statistic, self.agreement = report.statistic_by_layer, report.agreement
        self.wait_s_by_level = sum_waits(report.cost_s_by_layer)
        self.exchange_wait_s = report.exchange_wait_s
        state = self.controller.state_dict() if self.controller else {}
        with nullcontext() if self.phases is None else self.phases("decide"):
            return self.link.decide(report, proposal, state)


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Everything that one worker trains with."""

    context: WorkerContext
    task: Task
    data: Data
    held_out: Data
    ddp: nn.Module
    """The DistributedDataParallel module, or the one that FSDP2 shards; in a script with one
    worker, possibly the unwrapped model.
    """
    optimizer: Optimizer
    session: Session
    schedule: Schedule
    scaling: BatchScaling
    batch_change: BatchChange
    """Last change of the global batch by the newest step; the size in force is
    `session.global_batch`.
    """
    decider: ActorDecider
    phases: Phases
    division: Division
    own_work: OwnWork = field(default_factory=OwnWork)
    replicate_group: ProcessGroup | None = None
    """Workers with this one's part of the model; None if each of them has all of it."""
    num_hosts: int = 1
    """Hosts whose workers were shown to see the storage of the checkpoints."""
    position: Position = field(default_factory=Position)
    epoch_loss: LossSum
    recent_loss: LossSum
    """Loss since the last `Progress`."""
    epoch_baseline: EpochBaseline = field(default_factory=EpochBaseline)
    scaler: GradScaler | None = None
    """Loss scaler for fp16; None in other precisions."""
    objective: ObjectiveProgress = field(default_factory=ObjectiveProgress)
    skipped_in_a_row: int = 0
    overrides: tuple[Override, ...] | None = ()
    """Overrides last ordered by users; None if a checkpoint may hold others."""
    progress_s: float
    """Time of the last `Progress`, on the clock's `elapsed`."""
    samples_at_averaging: int = 0
    """Samples in `epoch_loss` when the running statistics were last equal on all workers."""
    progress_samples: int = 0
    """Samples over all workers since the last `Progress`."""
    step_times: StepTimes = field(default_factory=StepTimes)
    stop: Literal["cancel", "pause"] | None = None
    """Stop that a user requested, as far as rank 0 knows; None on other ranks."""
    save_status: SaveStatus = field(default_factory=SaveStatus)
    limited_factors: set[float] = field(default_factory=set)
    """Factors of overrides of which the log has said that a range holds the learning rate."""
    has_told_no_rate: bool = False

    @property
    def spec(self) -> JobSpec:
        """The job's spec."""
        return self.context.launch.spec

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch at the present batch size; the last step may be short."""
        return num_batches(len(self.data), self.session.global_batch)

    @property
    def num_steps(self) -> int:
        """Steps of the whole job at the present batch size."""
        if self.ends_early:
            return self.session.steps
        later = self.spec.training.epochs - self.position.epoch - 1
        here = num_batches(len(self.data) - self.position.samples, self.session.global_batch)
        return self.session.steps + here + later * self.steps_per_epoch

    @property
    def rate(self) -> float:
        """Learning rate of the optimizer's first group; 0 if it has none, as an Adafactor that
        chooses its steps.
        """
        return float(self.optimizer.param_groups[0].get("lr") or 0.0)

    @property
    def held(self) -> Mapping[str, float]:
        """What overrides set of the optimizer, as in `Decision.optimizer`."""
        return self.session.decision.optimizer

    @property
    def held_next(self) -> Mapping[str, float]:
        """What overrides will set in the next epoch, as rank 0 knows, which reports its rate; what
        they set now on other ranks.
        """
        if self.context.rank != 0:
            return self.held
        return self.session.controller.optimizer_settings(self.position.epoch + 1)

    def rate_in_force(self, scheduled: float, held: Mapping[str, float]) -> float:
        """Return the learning rate, given the schedule's: the same, or what an override sets."""
        if "lr" in held:
            return held["lr"]
        if "lr_factor" not in held:
            return scheduled
        # Where the schedule leaves the range, a factor below 1 raises no rate, nor the other way.
        bounds = (*self.spec.training.override_ranges.lr, scheduled)
        least, most = min(bounds), max(bounds)
        asked = scheduled * held["lr_factor"]
        rate = min(max(asked, least), most)
        if rate != asked:
            self._tell_limit(held["lr_factor"], asked, rate)
        return rate

    def tell_no_rate(self) -> None:
        """Say once that an override of the learning rate changes nothing."""
        if self.context.rank == 0 and not self.has_told_no_rate:
            self.has_told_no_rate = True
            self.context.link.log(
                "warning: an override sets the learning rate, and the optimizer of the script has"
                " none (lr is None), so nothing changes; hand it back"
            )

    def _tell_limit(self, factor: float, asked: float, rate: float) -> None:
        """Say once for each factor that the job's range holds the learning rate."""
        if self.context.rank == 0 and factor not in self.limited_factors:
            self.limited_factors.add(factor)
            self.context.link.log(
                f"warning: the override's factor {factor:g} asks for a learning rate of {asked:g},"
                f" and training.override_ranges.lr of the job file keeps it at {rate:g}"
            )

    @property
    def ends_early(self) -> bool:
        """Whether no further epoch is trained because the objective stopped improving."""
        return self.objective.is_exhausted(self.spec.objective)

    @property
    def model(self) -> nn.Module:
        """The model without DistributedDataParallel."""
        return unwrap_module(self.ddp)

    def add_loss(self, mean_loss: Tensor, samples: int, *, again: bool = False) -> None:
        """Count the training loss of a micro-batch, or `again` a further part of its loss."""
        self.epoch_loss.add(mean_loss, samples, again=again)
        self.recent_loss.add(mean_loss, samples, again=again)

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside the block, backward passes accumulate gradients without exchanging them."""
        ddp: Any = self.ddp
        if self.replicate_group is not None:
            return _without_exchange(ddp)
        return ddp.no_sync() if isinstance(ddp, DistributedDataParallel) else nullcontext()

    def outputs(self, model: nn.Module, inputs: Any) -> Any:
        """Run the model on the device in the job's precision, and cast its outputs to fp32."""
        inputs = to_device(inputs, self.context.device)
        dtype = _AUTOCAST.get(self.spec.training.precision)
        if dtype is None:
            return model(inputs)
        with torch.autocast(torch.device(self.context.device).type, dtype=dtype):
            outputs = model(inputs)
        return to_float32(outputs)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss, in the scaler's units if there is one."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def spent(self) -> Bytes:
        """Return the bytes that this worker has sent since the job began."""
        return Bytes(**self.session.ledger.summarize())

    @contextmanager
    def task_code(self) -> Iterator[None]:
        """Attribute exceptions raised inside the block to the task.

        Raises:
            TaskRaised: in place of any exception.
        """
        with task_code(self.session.steps, self.position.epoch):
            yield


def load_task_data(spec: JobSpec) -> tuple[Task, Data, Data]:
    """Load the task, its training data and its held-out data; a process keeps them over all of its
    groups.

    Raises:
        TaskRaised: the task cannot be loaded, or has no data.
    """
    with task_code(None, None), seeded_generators(derive_seed("task", spec.training.seed), "cpu"):
        task = load_task(spec.task.name, spec.task.options)
        data, held_out = task.train_data(), task.eval_data()
    check_not_empty(data, held_out)
    return task, data, held_out


def build_train_state(
    context: WorkerContext, clock: Clock, mesh: WorkerMesh | None = None
) -> TrainState:
    """Build model, data, optimizer and session before the first step; equal on all ranks. `mesh` is
    where the workers' grid is kept if they shard the model.

    Raises:
        TaskRaised: the task cannot be built.
    """
    spec = context.launch.spec
    parts = context.parts or load_task_data(spec)
    with (
        task_code(None, None),
        seeded_generators(derive_seed("model", spec.training.seed), context.device),
    ):
        model = parts[0].model()
        if spec.num_shards == 1:
            model.to(context.device)
    ddp, replicate_group = _spread(model, context, mesh or WorkerMesh())
    wanted = spec.training.optimizer
    optimizer = _OPTIMIZERS[wanted.name](model.parameters(), **wanted.settings())
    scaler = (
        GradScaler(torch.device(context.device).type) if spec.training.precision == "fp16" else None
    )
    state = assemble_train_state(
        context,
        clock,
        parts,
        ddp=ddp,
        optimizer=optimizer,
        scaler=scaler,
        replicate_group=replicate_group,
    )
    state.session.lr = state.schedule.epoch_rate(0)
    state.division.follows_speed = can_balance(state)
    return state


def _spread(
    model: nn.Module, context: WorkerContext, mesh: WorkerMesh
) -> tuple[nn.Module, ProcessGroup | None]:
    """Return the model as the workers train it together, and those with this one's part of it.

    Raises:
        TaskRaised: FSDP2 refused the model.
    """
    if context.launch.spec.num_shards == 1:
        return context.peers.wrap(model, context.device), None
    from accordion_workers.training.model_shards import shard_model

    shards = mesh.of(context)["shard"]
    with task_code(None, None):  # it goes to the device block by block, and stays there in parts
        shard_model(model, shards)
    return model, mesh.replicate_group(context, model)


def assemble_train_state(
    context: WorkerContext,
    clock: Clock,
    parts: tuple[Task, Data, Data],
    *,
    ddp: nn.Module,
    optimizer: Optimizers,
    scaler: GradScaler | None = None,
    replicate_group: ProcessGroup | None = None,
) -> TrainState:
    """Build the state before the first step from given parts: the task, its training data and its
    held-out data. `replicate_group` is as in `accordion.attach`.

    Raises:
        HookError: `accordion.attach` refused the model.
        ConfigError: no local steps keep to the budget of the job.
    """
    task, data, held_out = parts
    spec = resolve_budget(context.launch.spec, unwrap_module(ddp), samples=len(data))
    if spec is not context.launch.spec:
        context.link.log(describe_rounds(spec))
        context = replace(context, launch=context.launch.model_copy(update={"spec": spec}))
    decider = ActorDecider(link=context.link)
    batch = spec.training.global_batch
    session = attach(
        ddp,
        spec.config(),
        optimizer=optimizer,
        scaler=scaler,
        decider=decider,
        global_batch=batch,
        replicate_group=replicate_group,
    )
    decider.controller = session.controller
    decider.phases = Phases(
        clock=clock, exchange_times=lambda: (session.communicate_s, session.encoded_s)
    )
    return TrainState(
        context=context,
        task=task,
        data=data,
        held_out=held_out,
        ddp=ddp,
        optimizer=as_sequence(optimizer)[0],
        session=session,
        schedule=build_schedule(spec.training),
        scaling=build_scaling(spec),
        batch_change=BatchChange(size=session.global_batch),
        decider=decider,
        phases=decider.phases,
        division=Division(world_size=context.world_size, num_shards=spec.num_shards),
        epoch_loss=LossSum.zero(context.device),
        recent_loss=LossSum.zero(context.device),
        scaler=scaler,
        replicate_group=replicate_group,
        progress_s=clock.elapsed(),
    )


@contextmanager
def _without_exchange(sharded: Any) -> Iterator[None]:
    sharded.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        sharded.set_requires_gradient_sync(True)


@contextmanager
def task_code(step: int | None, epoch: int | None) -> Iterator[None]:
    """Turn whatever the task raises into `TaskRaised`; the traceback goes to the log."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        logger.exception("the task raised")
        raise TaskRaised(step, epoch, format_with_line(error)) from error


@contextmanager
def seeded_generators(seed: int, device: str) -> Iterator[None]:
    """Seed the default generators inside the block, and restore them afterwards."""
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        # torch.manual_seed notes a traceback for devices that are not there: 0.3 ms and more a
        # micro-batch.
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
