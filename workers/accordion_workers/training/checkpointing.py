"""When a checkpoint is saved, when training waits for it, and how training resumes from one; all
ranks together.

`shared.pt` is written by rank 0 and holds the state equal on all ranks; `rank-N.pt` holds what
differs (`snapshot.py`), and `shard-N.pt` part N of a sharded model (`sharded_state.py`). If the
storage fails, saving is retried if training cannot continue without the checkpoint; otherwise the
checkpoint is skipped and training continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accordion.compress.step_signals import Signal
from accordion_workers.checkpoint.async_save import (
    SHARED_FILE,
    AsyncSave,
    PartResult,
    SaveGroup,
    Snapshot,
    rank_file_name,
    shard_file_name,
)
from accordion_workers.checkpoint.checkpoint_files import Manifest, checkpoint_name
from accordion_workers.checkpoint.storage import Storage, open_storage
from accordion_workers.hub.journal import SupersededError, is_superseded
from accordion_workers.records.contract import CheckpointRecord, StorageUse
from accordion_workers.training.resume import find_checkpoint, read_parts
from accordion_workers.training.round_memory import recall_round
from accordion_workers.training.running_statistics import average_buffers, mark_buffers_equal
from accordion_workers.training.sharded_state import sharded_dimensions
from accordion_workers.training.slow_work import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    POLL_INTERVAL_S,
    SLOW_STORAGE_S,
    SlowWaitNotice,
    decide_on_rank_0,
    gather_objects,
)
from accordion_workers.training.snapshot import (
    copy_to_cpu,
    load_state,
    model_state,
    rank_state,
    shared_state,
)
from accordion_workers.training.switches import finish_round
from accordion_workers.training.train_state import TrainState
from accordion_workers.training.warm_start import load_initial_model

logger = logging.getLogger(__name__)

_FailureDecision = Literal["again", "cancelled", "superseded"]


def is_due_after_step(state: TrainState, signals: Container[Signal]) -> bool:
    """Return whether a checkpoint is due at this step boundary; equal on all ranks.

    Steps are counted equally everywhere. Seconds are measured on rank 0, which signals a checkpoint
    with the next step's gradients, so that one comes a step after its time.
    """
    spec, at_epochs_end = state.spec.checkpoint, state.position.samples >= len(state.data)
    by_steps = spec.every_steps is not None and state.session.steps % spec.every_steps == 0
    due = Signal.CHECKPOINT in signals or (
        by_steps and not (at_epochs_end and _is_saved_at_end(state))
    )
    if state.context.rank == 0 and not due and spec.every_seconds is not None:
        passed = state.phases.clock.elapsed() - state.save_status.began_s
        if passed >= spec.every_seconds:
            state.session.request(Signal.CHECKPOINT)
    return due


def is_due_after_epoch(state: TrainState, epoch: int, *, is_last: bool) -> bool:
    """Return whether a checkpoint is to be taken at the end of this epoch, whose objective is
    known.
    """
    return state.objective.has_improved or _is_planned(state, epoch, is_last=is_last)


def _is_planned(state: TrainState, epoch: int, *, is_last: bool) -> bool:
    return is_last or (epoch + 1) % state.spec.checkpoint.every_epochs == 0


def save_checkpoint(state: TrainState, *, wait: bool = False) -> bool:
    """Take a checkpoint of this moment; all ranks together, at a step boundary.

    Returns as soon as the state is copied; a thread writes it. If the previous checkpoint is still
    being written after `SLOW_STORAGE_S`, this one is skipped, with a warning in the job's log. With
    `wait` the checkpoint is complete on return: a failing save is retried until it succeeds or the
    job is cancelled. Running statistics are averaged over the workers.

    Returns:
        Whether the state is saved or being saved, or there is no storage; equal on all ranks.

    Raises:
        SupersededError: another worker group runs the job.
        RuntimeError: another worker is gone.
    """
    if not state.context.launch.storage:
        return True
    finish_round(state)
    with state.phases("checkpoint"):
        start = state.phases.clock.elapsed()
        if wait:
            try:
                return _save_with_retries(state, start)
            finally:
                state.context.control.show_wait("")
        wait_for_pending_save(state, give_up=lambda: _is_save_slow(state))
        if state.save_status.pending is not None:
            _log_skipped(state)
            return False
        if checkpoint_name(state.context.generation, state.position) != state.save_status.newest:
            _start_save(state, start=start, wait=False)
        return True


def wait_for_pending_save(state: TrainState, *, give_up: Callable[[], bool] = bool) -> str | None:
    """Wait until no checkpoint is being written; return the error of the last one. All ranks
    together.

    If `give_up` returns True on rank 0, the checkpoint stays in `state.save_status.pending`.

    Raises:
        RuntimeError: another worker is gone.
    """
    save = state.save_status.pending
    if save is None:
        return None
    ends = _wait_for_results(state, save, give_up)
    if ends is None:
        return None
    state.save_status.pending = None
    error: str | None = ends[0].error
    if error is None:
        state.save_status.newest = save.name
    else:
        state.save_status.failed += 1
    return error


def _wait_for_results(
    state: TrainState, save: AsyncSave, give_up: Callable[[], bool]
) -> list[PartResult] | None:
    """Return how writing ended on all ranks; None if `give_up` returned True first."""
    text = (
        f"training is paused: {_open_storage(state)} has not responded for {{:.0f}} s while saving"
        f" checkpoint {save.name}"
    )
    slow = SlowWaitNotice(state, f"{text}; check that the workers can reach it")
    # one collective per round, so that waiting for a slow storage does not run into a timeout.
    try:
        while None in (ends := gather_objects(state, save.written(POLL_INTERVAL_S))):
            shown = slow.show()
            if shown is not None and state.context.rank == 0:
                state.context.link.log(f"warning: {shown}")
            if decide_on_rank_0(state, give_up):
                return None
    finally:
        slow.end()
    return ends


def restore_checkpoint(state: TrainState) -> str | None:
    """Resume from the newest valid checkpoint, or from a newer round that the workers remember, and
    return its name; None if there is neither, or no storage. Then the model of the launch's
    `warm_start` is loaded.

    Rank 0 picks the checkpoint. Each rank reads its own part if the group has the size of the one
    that saved it; else rank 0 reads all parts. A checkpoint that any rank finds damaged is refused
    by all. While the storage is unreachable, all ranks wait.

    Raises:
        StateError: the checkpoint is of another model.
        StorageError: the storage cannot serve this job.
        SupersededError: another worker group runs the job.
    """
    if not state.context.launch.storage:
        return None
    storage = _open_storage(state)
    state.save_status.began_s = state.phases.clock.elapsed()
    refused: set[str] = set()
    while True:
        manifest, lineage = find_checkpoint(state, storage, refused)
        name = state.save_status.newest = manifest.name if manifest is not None else None
        if (round_name := recall_round(state, lineage, name)) is not None:
            state.save_status.lineage = lineage.begin(state.context.generation, round_name)
            return round_name
        parts = read_parts(state, storage, manifest) if manifest is not None else None
        if manifest is not None and parts is None:
            refused.add(manifest.name)
            continue
        if parts is not None:
            load_state(state, *parts)
            mark_buffers_equal(state)
        elif state.context.launch.warm_start is not None:
            load_initial_model(state, state.context.launch.warm_start)
        state.save_status.lineage = lineage.begin(state.context.generation, name)
        return name


def _save_with_retries(state: TrainState, start: float) -> bool:
    """Save, and retry while the storage fails; return whether the state is saved."""
    pause_s = FIRST_PAUSE_S
    give_up = partial(_is_cancelled_and_slow, state, start)
    while True:
        wait_for_pending_save(state, give_up=give_up)
        if (
            state.save_status.pending is None
            and checkpoint_name(state.context.generation, state.position)
            != state.save_status.newest
        ):
            _start_save(state, start=start, wait=True)
            error = wait_for_pending_save(state, give_up=give_up)
        else:
            error = None
        if state.save_status.pending is not None or error is None:
            return state.save_status.pending is None
        match decide_on_rank_0(state, partial(_decide_after_failure, state)):
            case "superseded":
                raise SupersededError(f"{error}; this worker group ends")
            case "cancelled":
                return False
        state.context.control.show_wait(
            f"training is paused because its state cannot be saved: {error}"
        )
        state.phases.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _decide_after_failure(state: TrainState) -> _FailureDecision:
    """Decide on rank 0 what to do after a checkpoint that the run waits for could not be
    written.
    """
    if is_superseded(Path(state.context.launch.storage), state.context.generation):
        return "superseded"
    return "cancelled" if state.stop == "cancel" else "again"


def _is_cancelled_and_slow(state: TrainState, start: float) -> bool:
    return state.stop == "cancel" and state.phases.clock.elapsed() - start >= SLOW_STORAGE_S


def _is_save_slow(state: TrainState) -> bool:
    """Return whether the checkpoint that is being written has taken longer than
    `SLOW_STORAGE_S`.
    """
    return state.phases.clock.elapsed() - state.save_status.began_s >= SLOW_STORAGE_S


def _log_skipped(state: TrainState) -> None:
    if state.context.rank == 0 and state.save_status.pending is not None:
        state.save_status.count_missed()
        seconds = state.phases.clock.elapsed() - state.save_status.began_s
        state.context.link.log(
            f"warning: the checkpoint that was due after step {state.session.steps} is skipped:"
            f" {state.save_status.pending.name} is still being written to {_open_storage(state)}"
            f" after {seconds:.0f} s; training continues, and the newest checkpoint is"
            f" {_newest_name(state)}"
        )


def _start_save(state: TrainState, *, start: float, wait: bool) -> None:
    """Copy the state, and let a thread write it."""
    average_buffers(state)
    state.save_status.began_s = start
    state.save_status.begun += 1
    state.save_status.pending = _create_save(state, start=start, wait=wait)
    state.save_status.pending.start()


def _create_save(state: TrainState, *, start: float, wait: bool) -> AsyncSave:
    """Copy the state and return the save that will write it."""
    parts: dict[str, Mapping[str, Any]] = {
        rank_file_name(state.context.rank): copy_to_cpu(rank_state(state))
    }
    rank, num_shards = state.context.rank, state.spec.num_shards
    if num_shards > 1 and rank < num_shards:
        parts[shard_file_name(rank)] = copy_to_cpu(model_state(state))
    if rank == 0:
        whole = model_state(state)
        if num_shards > 1:
            whole = {"sharded_dimensions": sharded_dimensions(state.model)}
        parts[SHARED_FILE] = copy_to_cpu({**shared_state(state), **whole})
    name = checkpoint_name(state.context.generation, state.position)
    manifest = Manifest(
        job_id=state.context.launch.job_id,
        name=name,
        epoch=state.position.epoch,
        step=state.session.steps,
        world_size=state.context.world_size,
        num_shards=num_shards,
        objective=None if state.position.samples else state.objective.newest,
    )
    objective = state.spec.objective
    blocked_s = None if wait else state.phases.clock.elapsed() - start
    return AsyncSave(
        Snapshot(
            manifest=manifest,
            parts=parts,
            keep=state.spec.checkpoint.keep,
            keep_best=objective.mode if objective is not None else None,
        ),
        _open_storage(state),
        SaveGroup.of_peers(state.context.peers, name, state.save_status.begun),
        done=partial(_post_record, state, start=start, blocked_s=blocked_s),
        failed=partial(_log_failure, state, count=state.save_status.failed + 1),
        superseded=partial(
            is_superseded, Path(state.context.launch.storage), state.context.generation
        ),
        survivors=state.save_status.lineage.survivors,
    )


def _post_record(
    state: TrainState, manifest: Manifest, *, start: float, blocked_s: float | None
) -> None:
    """Post the checkpoint's record; on rank 0, in the saving thread. `blocked_s` is None if
    training stood still all the time.
    """
    state.save_status.missed_in_a_row = 0
    seconds = state.phases.clock.elapsed() - start
    record = CheckpointRecord(
        name=manifest.name,
        epoch=manifest.epoch,
        step=manifest.step,
        size_bytes=manifest.size_bytes,
        objective=manifest.objective,
        seconds=seconds,
        blocked_s=seconds if blocked_s is None else blocked_s,
    )
    try:
        state.context.link.post(record)
    except OSError as error:
        logger.warning(
            "checkpoint %s is complete, but its record could not be written: %s",
            manifest.name,
            error,
        )


def _log_failure(state: TrainState, error: str, *, count: int) -> None:
    """Log that a checkpoint could not be written; on rank 0, in the saving thread."""
    state.save_status.count_missed()
    state.context.link.log(
        f"warning: {error}; that was failure {count} of this worker group; the newest that can be"
        f" resumed from is {_newest_name(state)}, and the next one that is due tries again"
    )


def storage_use(state: TrainState) -> StorageUse:
    """Return where this group keeps its checkpoints, and how many workers were shown to see that
    place.
    """
    return StorageUse(
        place=str(_open_storage(state)),
        workers=state.context.world_size,
        hosts=state.num_hosts,
    )


def _newest_name(state: TrainState) -> str:
    return state.save_status.newest or "the job's beginning"


def _open_storage(state: TrainState) -> Storage:
    launch = state.context.launch
    return open_storage(
        launch.spec.checkpoint.storage, job_id=launch.job_id, directory=state.context.checkpoints
    )


def _is_saved_at_end(state: TrainState) -> bool:
    """Return whether the end of this epoch takes a checkpoint, whatever its objective."""
    epoch = state.position.epoch
    return _is_planned(state, epoch, is_last=epoch + 1 == state.spec.training.epochs)


__all__ = [
    "is_due_after_epoch",
    "is_due_after_step",
    "restore_checkpoint",
    "save_checkpoint",
    "storage_use",
    "wait_for_pending_save",
]
