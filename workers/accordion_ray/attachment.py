"""`attach`: follows an unchanged Ray Train loop and registers the run with a running service."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

import ray.train
from pydantic import ValidationError
from ray.train import Checkpoint
from torch import nn
from torch.amp import GradScaler
from torch.distributed import ProcessGroup

import accordion
from accordion.config import Config
from accordion.hook.attach_refusal import check_not_refused
from accordion.session.optimizer_steps import Optimizers
from accordion.session.session import Session
from accordion_ray.checkpoints import load_state
from accordion_ray.checks import check_config, check_model, check_name
from accordion_ray.epochs import EpochFollower
from accordion_ray.failures import OutcomeStore, watch_end
from accordion_ray.guest_run import GuestRun
from accordion_ray.identity import IdentityFile, make_file_name
from accordion_ray.records import Attached, known_spec, make_label
from accordion_ray.rendezvous import TIMEOUT_S, default_store, wait_for_ranks
from accordion_ray.service_connection import (
    ServiceConnection,
    check_installations,
    find_installations,
)
from accordion_ray.train_context import GuestContext, current_run, follow_reports
from accordion_workers.hub.journal import Journal
from accordion_workers.records.contract import GUEST_ATTEMPT, FailureRecord, Guest, JobSpec
from accordion_workers.training.clock import Clock

logger = logging.getLogger(__name__)


def attach(
    model: nn.Module,
    optimizer: Optimizers,
    config: Config | None = None,
    *,
    scaler: GradScaler | None = None,
    steps_per_epoch: int | None = None,
    global_batch: int = 0,
    checkpoint: Checkpoint | Literal["newest"] | None = "newest",
    overlap: bool = True,
    replicate_group: ProcessGroup | None = None,
    register: bool = True,
    name: str | None = None,
    installation: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Session:
    """Compress the gradients of a Ray Train loop from now on; the loop stays as it is.

    Every rank calls this with equal arguments, after `ray.train.torch.prepare_model` and before the
    first forward pass. The session follows `optimizer.step()`, or `scaler.step(optimizer)`; give a
    list if the model has several optimizers. An epoch ends with each `ray.train.report`, or after
    `steps_per_epoch` steps. The state that `save_state` has put into a checkpoint, by default the
    run's newest, is loaded.

    With `register`, rank 0 registers the run with the Accordion service of this Ray cluster as soon
    as there is one: as `name`, by default the name of the run, with `installation` if there are
    several. Training never waits for the service. `global_batch`, in samples a step over all
    workers, is only reported.

    With local steps, `save_state` and a report that ends an epoch end the round that is running; on
    every rank, call `session.finish_round()` before an evaluation.

    A model that FSDP2 shards needs no `prepare_model`, and `replicate_group` as in
    `accordion.attach`.

    A function that trains several models gives each of its sessions a `name`, which their files in
    checkpoints have too.

    Raises:
        AttachError: the model is not prepared, or sharded without `replicate_group`, a setting
            does not fit an unchanged loop, another session has the name, some rank did not call
            this within `timeout_s`, or the run starts for the first time and there are several
            services.
        HookError: as `accordion.attach`.
        StateError: the checkpoint's state is of another model.
    """
    check_not_refused()
    run, config = current_run(), (config or Config()).for_unchanged_loop()
    check_model(model, world_size=run.world_size, has_replicas=replicate_group is not None)
    check_config(config, steps_per_epoch, global_batch=global_batch)
    label = make_label(name or run.name)
    check_name(make_file_name(label), run.attached)
    guest: GuestRun | None = None
    if register and run.rank == 0:
        spec = partial(known_spec, config, name=label, global_batch=global_batch)
        guest = _prepare_guest(run, label, spec=spec, installation=installation)
    wait_for_ranks("attach", rank=run.rank, world_size=run.world_size, timeout_s=timeout_s)
    session = accordion.attach(
        model,
        config,
        optimizer=optimizer,
        scaler=scaler,
        step="optimizer",
        decider=guest.keep_measurements if guest is not None else None,
        global_batch=global_batch,
        overlap=overlap,
        replicate_group=replicate_group,
    )
    run.attached.add(make_file_name(label))
    session.name = "" if label == make_label(run.name) else make_file_name(label)
    newest = ray.train.get_checkpoint() if checkpoint == "newest" else checkpoint
    attached = Attached(
        session=session,
        optimizer=optimizer,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        steps_per_epoch=steps_per_epoch,
        resumed_from=load_state(session, newest, node=run.node),
    )
    follower = EpochFollower(attached, guest, has_node_notice=run.has_node_notice)
    session.on_boundary = follower.pass_boundary
    follow_reports(follower.begin_report, follower.finish_report)
    if register:
        _follow_end(run, label, guest, follower=follower)
    if guest is not None:
        guest.begin(attached, model)
    return session


def _prepare_guest(
    run: GuestContext, label: str, *, spec: Callable[..., JobSpec], installation: str | None
) -> GuestRun | None:
    """Return the guest run; None, with a warning, if the run cannot be registered.

    Raises:
        AttachError: the run starts for the first time and there are several services.
    """
    context, file = ray.get_runtime_context(), IdentityFile(run, label)
    if installation is None:
        _check_first_start(file)
    try:
        known = spec(world_size=run.world_size, resources=context.get_assigned_resources())
        identity = file.claim()
    except (OSError, ValidationError) as error:
        logger.warning("the run is not registered with Accordion (%s); training continues", error)
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
    journal = Journal(
        identity.records,
        attempt=GUEST_ATTEMPT,
        generation=identity.generation,
        clock=clock.now,
        is_forced=False,
    )
    before = identity.state
    connection = ServiceConnection(guest, installation=installation, preferred=before.installation)
    return GuestRun(
        connection,
        journal,
        clock,
        max_failures=run.max_failures,
        before=before,
        save=partial(file.save, identity),
    )


def _check_first_start(file: IdentityFile) -> None:
    """Check before a run's first start that there is at most one installation.

    A restart only warns, because an installation that appears during a run must not end training.

    Raises:
        AttachError: there are several.
    """
    try:
        found, is_restart = find_installations(), file.is_restart()
    except Exception as error:  # noqa: BLE001  # whatever fails here, training continues
        logger.warning(
            "Accordion's installations are not known yet (%s); training continues", error
        )
        return
    if not is_restart:
        check_installations(found)


def _follow_end(
    run: GuestContext, label: str, guest: GuestRun | None, *, follower: EpochFollower
) -> None:
    def record_end(failure: FailureRecord | None) -> None:
        if guest is not None:
            follower.record_ended()
            guest.record_end(failure)

    def keep_newest_step() -> None:
        if guest is not None:
            guest.keep_newest_step()

    outcomes = None
    if run.world_size > 1:
        outcomes = OutcomeStore(default_store(), label, world_size=run.world_size)
    if guest is not None or run.rank != 0:
        watch_end(record_end, rank=run.rank, outcomes=outcomes, on_own_end=keep_newest_step)
