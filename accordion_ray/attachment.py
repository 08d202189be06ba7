"""`attach`: follows an unchanged Ray Train loop, and registers the run with the service if there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import ray.train
from pydantic import ValidationError
from ray.train import Checkpoint
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

import accordion
from accordion.config import Config, DetectorConfig, Window
from accordion.session import Session
from accordion_ray.checkpoints import load_state
from accordion_ray.checks import check_config, check_model
from accordion_ray.connection import (
    ServiceConnection,
    check_installations,
    find_installations,
)
from accordion_ray.epochs import EpochFollower
from accordion_ray.failures import FailureBoard, watch_end
from accordion_ray.guest_run import GuestRun
from accordion_ray.identity import Identity, IdentityFile
from accordion_ray.records import Attached, known_spec, label_of
from accordion_ray.rendezvous import TIMEOUT_S, default_store, wait_for_ranks
from accordion_ray.train_context import TrainRun, current_run, follow_reports
from workers.clock import Clock
from workers.contract import GUEST_ATTEMPT, FailureRecord, Guest, JobSpec
from workers.journal import Journal

DEFAULT_CONFIG = Config(detector=DetectorConfig(window=Window(steps=100)))
"""PowerSGD with windows of 100 steps: a loop that never reports has no epochs to count."""

log = logging.getLogger(__name__)


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    config: Config | None = None,
    *,
    scaler: GradScaler | None = None,
    steps_per_epoch: int | None = None,
    global_batch: int = 0,
    checkpoint: Checkpoint | Literal["newest"] | None = "newest",
    overlap: bool = True,
    register: bool = True,
    name: str | None = None,
    installation: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Session:
    """Compress the gradients of a Ray Train loop from now on; the loop stays as it is.

    Every rank calls this with equal arguments, after `ray.train.torch.prepare_model` and before the
    first forward pass. The session follows `optimizer.step()`, or `scaler.step(optimizer)`. An epoch
    ends with each `ray.train.report`, or after `steps_per_epoch` steps. The state that `save_state`
    has put into a checkpoint, by default the run's newest, is loaded.

    With `register`, rank 0 registers the run with the Accordion service of this Ray cluster as soon as
    there is one: as `name`, by default the name of the run, with `installation` if there are several.
    Training never waits for the service. `global_batch`, in samples a step over all workers, is only
    reported.

    Raises:
        AttachError: the model is not prepared or is sharded, a setting does not fit an unchanged loop,
            some rank did not call this within `timeout_s`, or the service is ambiguous.
        HookError: as `accordion.attach`.
        StateError: the checkpoint's state is of another model.
    """
    run, config = current_run(), config or DEFAULT_CONFIG
    check_model(model, world_size=run.world_size)
    check_config(config, steps_per_epoch, global_batch=global_batch)
    label = label_of(name or run.name)
    registered: _Registered | None = None
    if register and run.rank == 0:
        spec = partial(known_spec, config, name=label, global_batch=global_batch)
        registered = _prepare(run, label, spec=spec, installation=installation)
    wait_for_ranks("attach", rank=run.rank, world_size=run.world_size, timeout_s=timeout_s)
    session = accordion.attach(
        model,
        config,
        optimizer=optimizer,
        scaler=scaler,
        step="optimizer",
        decider=registered.guest.keep_statistic if registered is not None else None,
        global_batch=global_batch,
        overlap=overlap,
    )
    newest = ray.train.get_checkpoint() if checkpoint == "newest" else checkpoint
    attached = Attached(
        session=session,
        optimizer=optimizer,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        steps_per_epoch=steps_per_epoch,
        resumed_from=load_state(session, newest, node=run.node),
    )
    follower = EpochFollower(attached, registered.guest if registered is not None else None)
    session.on_boundary = follower.pass_boundary
    follow_reports(follower.begin_report, follower.finish_report)
    if register:
        _follow_end(run, label, registered, follower=follower)
    if registered is not None:
        registered.guest.begin(attached)
    return session


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registered:
    """What rank 0 needs to report to the service."""

    guest: GuestRun
    identity: Identity
    file: IdentityFile

    def record_end(self, failure: FailureRecord | None) -> None:
        if self.guest.record_end(failure):
            self.file.mark_ended(self.identity)


def _prepare(
    run: TrainRun, label: str, *, spec: Callable[..., JobSpec], installation: str | None
) -> _Registered | None:
    """Return what reports to the service; None, with a warning, if the run cannot be registered."""
    if installation is None:
        check_installations(find_installations())
    context, file = ray.get_runtime_context(), IdentityFile(run, label)
    try:
        known = spec(world_size=run.world_size, resources=context.get_assigned_resources())
        identity = file.claim()
    except (OSError, ValidationError) as error:
        log.warning("the run is not registered with Accordion (%s); training goes on", error)
        return None
    guest = Guest(
        job_id=identity.job_id,
        name=label,
        generation=identity.generation,
        train_run=run.name,
        ray_job_id=context.get_job_id(),
        spec=known,
    )
    clock = Clock()
    journal = Journal(identity.records, attempt=GUEST_ATTEMPT, generation=identity.generation, clock=clock.now)
    connection = ServiceConnection(guest, installation=installation)
    reporter = GuestRun(connection, journal, clock, max_failures=run.max_failures)
    return _Registered(guest=reporter, identity=identity, file=file)


def _follow_end(run: TrainRun, label: str, registered: _Registered | None, *, follower: EpochFollower) -> None:
    board = FailureBoard(default_store(), label) if run.world_size > 1 else None
    if registered is not None:

        def record_end(failure: FailureRecord | None) -> None:
            follower.record_ended()
            registered.record_end(failure)

        watch_end(record_end, rank=run.rank, board=board)
    elif run.rank != 0:
        watch_end(lambda _: None, rank=run.rank, board=board)
