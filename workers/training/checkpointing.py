"""When a checkpoint is taken, when training waits for it, and how a run resumes from one; all ranks
together.

`shared.pt` is written by rank 0 and is the same for all ranks; `rank-N.pt` holds what differs
(`snapshot.py`). If the storage fails, the run retries where it cannot go on without the checkpoint;
elsewhere the checkpoint is skipped and training goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accordion.step_signals import Signal
from workers.checkpoint.async_save import SHARED, Peers, Snapshot, Upload, Written, rank_file
from workers.checkpoint.checkpoint_files import Manifest, checkpoint_name
from workers.checkpoint.storage import Storage, storage_of
from workers.contract import CheckpointRecord, StorageUse
from workers.hub.journal import SupersededError, is_superseded
from workers.training.resume import find_checkpoint, read_parts
from workers.training.running_statistics import average_buffers
from workers.training.slow_work import (
    FIRST_PAUSE_S,
    LOOK_S,
    MOST_PAUSE_S,
    SLOW_STORAGE_S,
    SlowWork,
    decide_on_rank_0,
    gather,
)
from workers.training.snapshot import copy_to_cpu, load_state, own_state, shared_state
from workers.training.train_state import Run

logger = logging.getLogger(__name__)

_Verdict = Literal["again", "cancelled", "superseded"]


def is_due(run: Run, words: Container[Signal]) -> bool:
    """Whether a checkpoint is to be taken at this step boundary; the same on all ranks.

    Steps are counted alike everywhere. Seconds are rank 0's, which asks for a checkpoint with the
    next step's gradients; so that comes one step after its time.
    """
    spec, at_epochs_end = run.spec.checkpoint, run.position.samples >= len(run.data)
    by_steps = spec.every_steps is not None and run.session.steps % spec.every_steps == 0
    due = Signal.CHECKPOINT in words or (by_steps and not (at_epochs_end and _is_saved_at_end(run)))
    if run.context.rank == 0 and not due and spec.every_seconds is not None:
        passed = run.phases.clock.elapsed() - run.saving.began_s
        if passed >= spec.every_seconds:
            run.session.request(Signal.CHECKPOINT)
    return due


def is_due_after_epoch(run: Run, epoch: int, *, is_last: bool) -> bool:
    """Return whether a checkpoint is to be taken at the end of this epoch."""
    return is_last or (epoch + 1) % run.spec.checkpoint.every_epochs == 0


def save(run: Run, *, wait: bool = False) -> bool:
    """Take a checkpoint of this moment; all ranks together, at a step boundary.

    Returns as soon as the state is copied; a thread writes it. If the previous checkpoint is still
    being written after `SLOW_STORAGE_S`, this one is skipped, with a warning in the job's log. With
    `wait` the checkpoint is complete on return: a failing storage is retried until it works or the
    job is cancelled. Running statistics are averaged over the workers.

    Returns:
        Whether the state is saved or being saved, or there is no storage; equal on all ranks.

    Raises:
        SupersededError: another worker group runs the job.
        RuntimeError: another worker is gone.
    """
    if not run.context.launch.storage:
        return True
    with run.phases("checkpoint"):
        start = run.phases.clock.elapsed()
        if wait:
            try:
                return _save_surely(run, start)
            finally:
                run.context.helm.wait_for("")
        settle(run, give_up=lambda: _is_slow(run))
        if run.saving.upload is not None:
            _say_skipped(run)
            return False
        if checkpoint_name(run.context.generation, run.position) != run.saving.newest:
            _begin(run, start=start, wait=False)
        return True


def settle(run: Run, *, give_up: Callable[[], bool] = bool) -> str | None:
    """Wait until no checkpoint is being written; return the error of the last one. All ranks
    together.

    If `give_up` returns True on rank 0, the checkpoint stays in `run.saving.upload`.

    Raises:
        RuntimeError: another worker is gone.
    """
    upload = run.saving.upload
    if upload is None:
        return None
    ends = _wait_for(run, upload, give_up)
    if ends is None:
        return None
    run.saving.upload = None
    error: str | None = ends[0].error
    if error is None:
        run.saving.newest = upload.name
    else:
        run.saving.failed += 1
    return error


def _wait_for(run: Run, upload: Upload, give_up: Callable[[], bool]) -> list[Written] | None:
    """Return how writing ended on all ranks; None if `give_up` returned True first."""
    text = (
        f"training is paused: {_storage(run)} has not responded for {{:.0f}} s while saving"
        f" checkpoint {upload.name}"
    )
    slow = SlowWork(run, f"{text}; check that the workers can reach it")
    # one collective per round, so that waiting for a slow storage does not run into a timeout.
    try:
        while None in (ends := gather(run, upload.written(LOOK_S))):
            shown = slow.show()
            if shown is not None and run.context.rank == 0:
                run.context.link.log(f"warning: {shown}")
            if decide_on_rank_0(run, give_up):
                return None
    finally:
        slow.end()
    return ends


def restore(run: Run) -> str | None:
    """Resume from the newest valid checkpoint and return its name; None, with no change, if there
    is none, or no storage.

    Rank 0 picks the checkpoint. Each rank reads its own part if the group has the size of the one
    that saved it; else rank 0 reads all parts. A checkpoint that any rank finds damaged is refused
    by all. While the storage is unreachable, all ranks wait.

    Raises:
        StateError: the checkpoint is of another model.
        StorageError: the storage cannot serve this job.
        SupersededError: another worker group runs the job.
    """
    if not run.context.launch.storage:
        return None
    storage = _storage(run)
    run.saving.began_s = run.phases.clock.elapsed()
    refused: set[str] = set()
    while True:
        manifest, lineage = find_checkpoint(run, storage, refused)
        parts = read_parts(run, storage, manifest) if manifest is not None else None
        if manifest is not None and parts is None:
            refused.add(manifest.name)
            continue
        name = manifest.name if manifest is not None else None
        if parts is not None:
            load_state(run, *parts)
        run.saving.lineage = lineage.begin(run.context.generation, name)
        run.saving.newest = name
        return name


def _save_surely(run: Run, start: float) -> bool:
    """Save, and retry while the storage fails; return whether the state is saved."""
    pause_s = FIRST_PAUSE_S
    gives_up = partial(_is_cancelled_and_slow, run, start)
    while True:
        settle(run, give_up=gives_up)
        if (
            run.saving.upload is None
            and checkpoint_name(run.context.generation, run.position) != run.saving.newest
        ):
            _begin(run, start=start, wait=True)
            error = settle(run, give_up=gives_up)
        else:
            error = None
        if run.saving.upload is not None or error is None:
            return run.saving.upload is None
        match decide_on_rank_0(run, partial(_judge, run)):
            case "superseded":
                raise SupersededError(f"{error}; this worker group ends")
            case "cancelled":
                return False
        run.context.helm.wait_for(f"training is paused because its state cannot be saved: {error}")
        run.phases.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _judge(run: Run) -> _Verdict:
    """Decide on rank 0 what to do after a checkpoint that the run waits for could not be
    written.
    """
    if is_superseded(Path(run.context.launch.storage), run.context.generation):
        return "superseded"
    return "cancelled" if run.stop == "cancel" else "again"


def _is_cancelled_and_slow(run: Run, start: float) -> bool:
    return run.stop == "cancel" and run.phases.clock.elapsed() - start >= SLOW_STORAGE_S


def _is_slow(run: Run) -> bool:
    """Return whether the checkpoint that is being written has taken longer than
    `SLOW_STORAGE_S`.
    """
    return run.phases.clock.elapsed() - run.saving.began_s >= SLOW_STORAGE_S


def _say_skipped(run: Run) -> None:
    if run.context.rank == 0 and run.saving.upload is not None:
        seconds = run.phases.clock.elapsed() - run.saving.began_s
        run.context.link.log(
            f"warning: the checkpoint that was due after step {run.session.steps} is skipped:"
            f" {run.saving.upload.name} has been on its way to {_storage(run)} for {seconds:.0f} s;"
            f" training goes on, and the newest that can be resumed from is {_newest(run)}"
        )


def _begin(run: Run, *, start: float, wait: bool) -> None:
    """Copy the state, and let a thread write it."""
    average_buffers(run)
    run.saving.began_s = start
    run.saving.begun += 1
    run.saving.upload = _upload(run, start=start, wait=wait)
    run.saving.upload.start()


def _upload(run: Run, *, start: float, wait: bool) -> Upload:
    """Copy the state and return the upload that will write it."""
    parts: dict[str, Mapping[str, Any]] = {rank_file(run.context.rank): copy_to_cpu(own_state(run))}
    if run.context.rank == 0:
        parts[SHARED] = copy_to_cpu(shared_state(run))
    name = checkpoint_name(run.context.generation, run.position)
    manifest = Manifest(
        job_id=run.context.launch.job_id,
        name=name,
        epoch=run.position.epoch,
        step=run.session.steps,
        world_size=run.context.world_size,
    )
    blocked_s = None if wait else run.phases.clock.elapsed() - start
    return Upload(
        Snapshot(manifest=manifest, parts=parts, keep=run.spec.checkpoint.keep),
        _storage(run),
        Peers.of_group(name, run.saving.begun),
        done=partial(_record, run, start=start, blocked_s=blocked_s),
        failed=partial(_warn, run, count=run.saving.failed + 1),
        superseded=partial(is_superseded, Path(run.context.launch.storage), run.context.generation),
        survivors=run.saving.lineage.survivors,
    )


def _record(run: Run, manifest: Manifest, *, start: float, blocked_s: float | None) -> None:
    """Say that there is a checkpoint; rank 0, in the upload's thread. With None training stood
    still all the time.
    """
    seconds = run.phases.clock.elapsed() - start
    record = CheckpointRecord(
        name=manifest.name,
        epoch=manifest.epoch,
        step=manifest.step,
        size_bytes=manifest.size_bytes,
        seconds=seconds,
        blocked_s=seconds if blocked_s is None else blocked_s,
    )
    try:
        run.context.link.post(record)
    except OSError as error:
        logger.warning(
            "checkpoint %s is complete, but its record could not be written: %s",
            manifest.name,
            error,
        )


def _warn(run: Run, error: str, *, count: int) -> None:
    """Say that a checkpoint could not be written; rank 0, in the upload's thread."""
    run.context.link.log(
        f"warning: {error}; that was failure {count} of this worker group; the newest that can be"
        f" resumed from is {_newest(run)}, and the next one that is due tries again"
    )


def storage_use(run: Run) -> StorageUse:
    """Return where this group keeps its checkpoints, and how many workers were shown to see that
    place.
    """
    return StorageUse(place=str(_storage(run)), workers=run.context.world_size, hosts=run.num_hosts)


def _newest(run: Run) -> str:
    return run.saving.newest or "the job's beginning"


def _storage(run: Run) -> Storage:
    launch = run.context.launch
    return storage_of(
        launch.spec.checkpoint.storage, job_id=launch.job_id, directory=run.context.checkpoints
    )


def _is_saved_at_end(run: Run) -> bool:
    """Return whether the end of this epoch takes a checkpoint by itself."""
    epoch = run.position.epoch
    return is_due_after_epoch(run, epoch, is_last=epoch + 1 == run.spec.training.epochs)


__all__ = ["is_due", "is_due_after_epoch", "restore", "save", "settle", "storage_use"]
