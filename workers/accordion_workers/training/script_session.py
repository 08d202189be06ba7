"""`session`: what a user's training script calls, in a job, under torchrun or inside Ray Train.

    from accordion_workers import session
    session.init_process_group("gloo")                      # no-op if a group exists
    loader = DataLoader(data, batch_sampler=session.batches(len(data)))
    session.attach(model, optimizer, scheduler=scheduler)   # a DDP module; resumes the job
    for epoch in session.epochs(10):
        for inputs, targets in loader:
            session.backward(loss(model(inputs), targets))  # replaces .backward()
            session.step()                                  # replaces optimizer.step()
        session.end_epoch(accuracy=...)                     # optional

Every worker makes the same calls in the same order. In a job the spec's epochs, batch, seed and
compression hold, and records, checkpoints, overrides and resizes are those of `loop.py`; outside of
one the arguments hold, and checkpoints are kept if `init_process_group` got a `storage`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import DeviceMesh

from accordion.base.errors import HookError
from accordion.compress.step_signals import Signal
from accordion.session.optimizer_steps import Optimizers
from accordion.session.session import Session
from accordion_workers.common.errors import CodeError
from accordion_workers.training import script_checks as checks
from accordion_workers.training import standalone_context as standalone
from accordion_workers.training.boundaries import (
    FLUSH_TIMEOUT_S,
    EpochRates,
    Outcome,
    finish_epoch,
    finish_step,
    follow_signals,
    open_epoch,
    start_training,
)
from accordion_workers.training.checkpointing import save_checkpoint
from accordion_workers.training.context import WorkerContext
from accordion_workers.training.data_paths import find_data
from accordion_workers.training.evaluation import MetricSums, is_evaluation_due
from accordion_workers.training.generators import read_generators, restore_generators
from accordion_workers.training.kept_objects import Stateful
from accordion_workers.training.load_timing import time_loading
from accordion_workers.training.resume import StopRequested
from accordion_workers.training.sampler import loss_weight
from accordion_workers.training.script_batches import Batches, current_batch
from accordion_workers.training.script_rates import override_rates
from accordion_workers.training.script_task import ScriptExit, ScriptParts
from accordion_workers.training.switches import finish_round
from accordion_workers.training.train_state import TrainState
from accordion_workers.training.worker_mesh import WorkerMesh


class ScriptSession:
    """One worker's side of a training script; `session` is the one of this process."""

    def __init__(self) -> None:
        self._mesh = WorkerMesh()
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state, because a process serves one script after the other."""
        self._context: WorkerContext | None = None
        self._state: TrainState | None = None
        self._batches: Batches | None = None
        self._mesh.forget()
        self._epochs: int | None = None
        self.leaving: Outcome | None = None
        """How the script was told to end by SystemExit; it counts if the script catches that."""
        self._announced: frozenset[Signal] | None = None
        """Signals of the last step, until the next call follows them."""
        self._thread = 0
        """Thread that called `backward` last."""
        self._rate: float | None = None
        self._has_backward = False
        """Whether `backward` was called since the last step."""
        self._has_read_on = False
        """Whether a batch was asked for since that call."""
        self._generators: dict[str, Any] | None = None
        """Generators as of a stop within an epoch, until that epoch goes on or ends."""
        self._is_epoch_unread = False
        """Whether the script has not read in which epoch, after the first one, it resumed."""
        self.failure: BaseException | None = None
        """Error raised by the service's code, not by the script."""

    def bind(self, context: WorkerContext) -> None:
        """Serve a script of this job from now on."""
        self.reset()
        self._context = context

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0."""
        return self._worker_context.rank

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._worker_context.world_size

    @property
    def device(self) -> str:
        """Device of this worker: `cpu` or `cuda:N`."""
        return self._worker_context.device

    @property
    def mesh(self) -> DeviceMesh:
        """Grid of workers, for `fully_shard(part, mesh=session.mesh["shard"])` on all of them.

        Raises:
            CodeError: the run has no `parallelism.shard`.
        """
        return self._mesh.of(self._worker_context)

    @property
    def step_and_epoch(self) -> tuple[int | None, int | None]:
        """Step and epoch; None before `attach`."""
        state = self._state
        return (state.session.steps, state.position.epoch) if state else (None, None)

    @property
    def epoch(self) -> int:
        """Epoch that is trained, counted from 0; after `attach`, the one in which the job resumes.

        Raises:
            CodeError: `attach` was not called yet.
        """
        self._is_epoch_unread = False
        return self.state.position.epoch

    @property
    def global_batch(self) -> int:
        """Samples per step, over all workers."""
        spec = self._worker_context.launch.spec
        return self._state.session.global_batch if self._state else spec.training.global_batch

    @property
    def job_epochs(self) -> int | None:
        """`training.epochs` of the job; None outside of one, where the script decides."""
        launch = self._worker_context.launch
        return None if launch.job_id == standalone.NO_JOB else launch.spec.training.epochs

    @property
    def state(self) -> TrainState:
        """Training state that `attach` created; a CodeError is raised before it."""
        if self._state is None:
            raise CodeError(
                f"session.attach(model, optimizer) must come first{checks.OF_FRAMEWORKS}"
            )
        return self._state

    def init_process_group(
        self,
        backend: str | None = None,
        *,
        job: Mapping[str, Any] | None = None,
        storage: str | Path | None = None,
    ) -> None:
        """Join the other workers, unless this process has; replaces
        `torch.distributed.init_process_group`.

        The other arguments are for runs outside of a job, and ignored in one. `job` holds parts of
        a job file, such as `{"compression": {"method": "powersgd"}}`. `storage` is a directory that
        all workers see: checkpoints are kept there, and a run that finds one resumes from it.
        Without `storage` nothing is saved.

        Raises:
            CodeError: an argument is wrong, or others were used before.
            StorageError: `storage` cannot be written.
        """
        if not dist.is_initialized():
            standalone.join_group(backend)
        if self._context is None:
            self._context = standalone.standalone_context(job or {}, storage)
        else:
            standalone.check_unchanged(self._context, job, storage)

    def data_path(self, name: str) -> Path:
        """Return where the data of this name are on this node: of `data` in the spec, or outside of
        a job of the variable `ACCORDION_DATA_NAME`. They are for reading only.

        Raises:
            CodeError: the job names no such data, or the variable is not set.
        """
        return find_data(name, self._context.launch if self._context is not None else None)

    def batches(self, num_samples: int) -> Batches:
        """Return this rank's indices, in place of a DistributedSampler: `DataLoader(data,
        batch_sampler=session.batches(len(data)))`.

        Sizes are those of the job: `training.global_batch` samples per step, divided into whole
        micro-batches of `micro_batch` samples.
        """
        self._batches = Batches(self, num_samples)
        return self._batches

    def attach(
        self,
        module: nn.Module,
        optimizer: Optimizers,
        *,
        samples: int = 0,
        scaler: GradScaler | None = None,
        **kept: Stateful,
    ) -> Session:
        """Compress the module's gradients, and resume the job; on all workers, before any epoch.

        Module, optimizer (or a list of all), scaler and everything in `kept` that has
        `state_dict()` and `load_state_dict()`, such as a learning rate scheduler, are saved and
        loaded together; of `kept`, rank 0's states, which must be tensors and plain values.
        `samples` is the number of training samples if `batches` does not read them; an epoch that
        was stopped then starts again.

        Raises:
            CodeError: the number of training samples is not known, the session has a module
                already, it is sharded without `parallelism.shard` or the other way round, or a
                state in `kept` could not be loaded back.
            HookError: `accordion.attach` refused the module.
        """
        self.follow_last_step()
        if self._state is not None:
            raise CodeError(
                "session.attach() was called twice, but a job saves and resumes one module; put all"
                " trained modules into one, such as nn.ModuleDict, and wrap that"
            )
        count = samples or (self._batches.num_samples if self._batches is not None else 0)
        if count < 1:
            raise CodeError(
                "session.attach() must know the number of training samples; call"
                " session.batches(len(data)) before it, or give samples=len(data)"
            )
        parts = ScriptParts(
            module=module,
            optimizer=optimizer,
            scaler=scaler,
            kept=kept,
            replicate_group=self._mesh.replicate_group(self._worker_context, module),
            samples=count,
        )
        with self._service_errors():
            state = self._state = parts.build_state(self._worker_context)
            try:
                standalone.log_resume(state, start_training(state))
            except StopRequested:
                self.leaving = "stopped"
                raise
        self.failure = None
        if state.position.samples:
            self._generators = read_generators(state.context.device)
        self._is_epoch_unread = state.position.epoch > 0
        time_loading(module, state.phases)
        state.phases.start_step()
        return state.session

    def epochs(self, number: int) -> Iterator[int]:
        """Iterate over the remaining epochs, from 0; a job has `training.epochs`, not `number`."""
        state = self.state
        self._is_epoch_unread = False
        self._epochs = number if self.job_epochs is None else self.job_epochs
        if self._epochs != number:
            checks.log_replaced_epochs(state, number)
        standalone.log_if_done(state, self._epochs)
        while state.position.epoch < self._epochs and not state.ends_early:
            self.follow_last_step()
            epoch = state.position.epoch
            if self._batches is None and state.position.samples:
                open_epoch(state, epoch)
            yield epoch
            if state.position.epoch == epoch:
                self.end_epoch()

    @property
    def evaluation_is_due(self) -> bool:
        """Whether this epoch is one of those that `training.evaluate_every_epochs` asks to
        evaluate; `end_epoch` needs no metrics otherwise.
        """
        state, epoch = self.state, self.state.position.epoch
        return is_evaluation_due(state.spec, epoch, is_last=epoch + 1 == self._num_epochs)

    def backward(self, loss: Tensor) -> None:
        """Run `loss.backward()` for the mean loss of this rank's samples, weighted by their number.
        A script of a job ends here by SystemExit if all epochs are trained.

        It is called once per step, or for parts of a batch, each under `model.no_sync()` but the
        last: their losses add up to the mean loss, so weigh each by its share of the samples.

        With a scaler given to `attach`, the loss is scaled here; do not scale it before.

        Raises:
            CodeError: the script calls `batches` and did not read this batch from them, or read
                another one since the last step.
        """
        state = self.state
        self.follow_last_step()
        self._leave_if_trained()
        if self._is_epoch_unread:
            self._is_epoch_unread = False
            checks.log_unread_epoch(state)
        state.context.control.enter_phase(
            "training", epoch=state.position.epoch, step=state.session.steps
        )
        batch, own = current_batch(state, self._batches)
        if self._has_read_on:
            raise checks.explain_second_batch(state)
        if own:
            state.add_loss(loss, own, again=self._has_backward)
        self._has_backward, self._thread, self._generators = True, threading.get_ident(), None
        weight = 1.0
        if self._batches is not None:
            weight = loss_weight(range(own), batch, world_size=state.context.world_size)
        with self._service_errors():
            state.backward(loss * weight)

    def step(self) -> bool:
        """Take the optimizer's step, and follow signals; return False if a gradient was not finite
        on any worker.

        If the job is to stop or to continue with other workers, or a checkpoint is due, everything
        is saved in the next call of the session, or when `batches` is asked for more: so what the
        script does after a step, such as `scheduler.step()`, is saved with it. To stop, the script
        ends there by SystemExit: `finally` blocks run, `except Exception` does not catch it, and
        every later call raises it again.

        Raises:
            CodeError: `backward` was not called since the last step.
            LossNotFinite: too many steps were skipped in a row.
            RuntimeError: another worker is gone.
        """
        state = self.state
        self.follow_last_step()
        checks.check_backward(state, has_run=self._has_backward)
        self._has_backward = self._has_read_on = False
        state.phases.count_lap("compute")
        with self._service_errors(), override_rates(state) as self._rate:
            batch, own = current_batch(state, self._batches)
            if self._batches is not None:
                self._batches.finish_current()
                state.own_work.end_step(own, state.phases.seconds)
            result = state.session.step()
            state.phases.count_lap("optimize")
            finish_step(state, batch, result)
            if batch.start < len(state.data) <= batch.stop:
                with state.phases("optimize"):
                    finish_round(state)  # the script may evaluate before it ends the epoch
            self._announced = result.announced
            state.phases.start_step()
        self.failure = None
        return result.taken

    def follow_last_step(self) -> None:
        """Save if the last step announced it or the job's spec asks for it, and end the script if
        its job is to stop or to continue with other workers; each call of the session begins so.
        """
        self._check_leaving()
        if self._announced is None:
            return
        announced, self._announced = self._announced, None
        with self._service_errors():
            if (outcome := follow_signals(self.state, announced)) is not None:
                self.state.context.link.flush(FLUSH_TIMEOUT_S)
                self._leave(outcome)

    def before_batch(self, *, is_first: bool) -> None:
        """Prepare for a batch that the script asks for."""
        # Another thread may read ahead, at moments that differ between the workers.
        if self._thread in {0, threading.get_ident()}:
            self.follow_last_step()
            self._has_read_on = self._has_backward
            self.state.phases.start_load()
        if is_first and self._generators is not None:
            # Since attach() the script has drawn from them, as a DataLoader does when it starts.
            restore_generators(self._generators, self.device)

    def end_epoch(self, **metrics: float | Tensor) -> None:
        """Report the epoch, decide on the next one, and save; on all workers, after the learning
        rate scheduler's step.

        A metric becomes its mean over the workers that give it. If the job's `objective` stopped
        improving, `epochs` ends; a script with a loop of its own ends here by SystemExit, as does
        one that ends an epoch after the last one of its job.

        Raises:
            CodeError: no step was taken in this epoch.
            TaskRaised: the metric of the job's `objective` is not given, and `evaluation_is_due`.
        """
        state = self.state
        self._check_leaving()
        checks.check_trained(state)
        self._leave_if_trained()
        checks.check_epoch_trained(state)
        self._generators = None
        now, rate = (state.rate_in_force(state.rate, of) for of in (state.held, state.held_next))
        last_step = now if self._rate is None else self._rate
        totals = {name: float(value) for name, value in metrics.items()}
        sums = MetricSums(totals=totals, samples=1 if totals else 0)
        state.phases.count_lap("evaluate")
        with self._service_errors():
            standalone.check_not_superseded(state)
            is_saved = finish_epoch(
                state,
                lambda: sums,
                rates=EpochRates(last_step=last_step, epoch=last_step, next_epoch=rate),
                is_last=state.position.epoch + 1 == self._num_epochs,
            )
            state.phases.start_step()
            if not is_saved:
                self._leave("unsaved")
            if state.ends_early and self._epochs is None:
                state.context.link.flush(FLUSH_TIMEOUT_S)
                self._leave("ended early")
        # The epoch is over for the script, so a stop that its last step announced comes after it.
        self.follow_last_step()

    def finish_round(self) -> None:
        """End a round of local steps early, to evaluate within an epoch; on all workers."""
        self.follow_last_step()
        with self._service_errors():
            finish_round(self.state)
            self.state.phases.start_step()

    def checkpoint(self) -> None:
        """Save everything now, beside the checkpoints of the job; on all workers, after a step."""
        self.follow_last_step()
        with self._service_errors():
            save_checkpoint(self.state)
            self.state.phases.start_step()

    def close(self) -> None:
        """Save what is not saved yet, at the end of the script.

        Raises:
            CodeError: the script did not call `attach`, or never took a step.
        """
        state = self.state
        self._check_leaving()
        checks.check_trained(state)
        checks.log_missing_epochs(state)
        state.context.control.enter_phase(
            "finished", epoch=state.position.epoch, step=state.session.steps
        )
        with self._service_errors():
            if dist.is_initialized() and not save_checkpoint(state, wait=True):
                self._leave("unsaved")
            state.context.link.flush(FLUSH_TIMEOUT_S)

    @property
    def _worker_context(self) -> WorkerContext:
        if self._context is None:
            self._context = standalone.standalone_context({}, None)
        return self._context

    def _leave_if_trained(self) -> None:
        """End a script that goes on after the last epoch of its job; all is saved."""
        if self.job_epochs is not None and self.state.position.epoch >= self.job_epochs:
            checks.log_extra_epochs(self.state)
            self.close()
            self._leave("ended early" if self.state.ends_early else "completed")

    def _check_leaving(self) -> None:
        if self.leaving is not None:
            raise ScriptExit(self.leaving)

    def _leave(self, outcome: Outcome) -> NoReturn:
        self.leaving = outcome
        raise ScriptExit(outcome)

    @property
    def _num_epochs(self) -> int | None:
        """Number of epochs, if it is known before the script ends."""
        return self.job_epochs if self._epochs is None else self._epochs

    @contextmanager
    def _service_errors(self) -> Iterator[None]:
        """Mark what is raised inside the block as not raised by the script; a HookError says that
        the script calls the session wrongly.
        """
        try:
            yield
        except HookError:
            raise
        except Exception as error:
            self.failure = error
            raise


session = ScriptSession()
"""The session of this process."""

__all__ = ["Batches", "ScriptExit", "ScriptSession", "session"]
