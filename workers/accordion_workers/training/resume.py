"""Find the checkpoint that a worker group resumes from and read it; all ranks together.

While the storage is unreachable the group waits and writes warnings to the job's log. An outage is
neither treated as an empty storage nor counted as a failure of the group.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accordion.base.errors import StateError
from accordion_workers.checkpoint.async_save import SHARED_FILE, rank_file_name, shard_file_name
from accordion_workers.checkpoint.broadcast import broadcast_state
from accordion_workers.checkpoint.checkpoint_files import Manifest, find_candidates, read_part
from accordion_workers.checkpoint.lineage import Lineage, generation_of
from accordion_workers.checkpoint.shared_storage import not_shared, sees_token
from accordion_workers.checkpoint.storage import MissingCheckpointsError, Storage, storage_advice
from accordion_workers.common.errors import (
    CheckpointError,
    PeerUnfit,
    StorageError,
    StorageNotShared,
    TaskRaised,
)
from accordion_workers.hub.journal import SupersededError, is_superseded
from accordion_workers.hub.journal_summary import read_milestones
from accordion_workers.records.milestones import Milestones
from accordion_workers.training.slow_work import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    decide_on_rank_0,
    gather_objects,
    run_on_all_ranks,
)
from accordion_workers.training.snapshot import MergedParts
from accordion_workers.training.standalone_context import NO_JOB
from accordion_workers.training.train_state import TrainState

Parts = tuple[dict[str, Any], dict[str, Any]]
"""State shared by all ranks, then what this rank continues from: its own part, or the merged parts.
"""
_T = TypeVar("_T")


class StopRequested(SystemExit):
    """The job was paused or cancelled before its worker group had trained a step.

    Derives from `SystemExit`, so that `except Exception` in a user's script does not catch it.
    """


def find_checkpoint(
    state: TrainState, storage: Storage, refused: Iterable[str]
) -> tuple[Manifest | None, Lineage]:
    """Return the newest checkpoint on the surviving line, and that line; rank 0 searches for all
    ranks.

    `refused` holds the names of checkpoints that a rank found damaged.

    Raises:
        StorageError: the job has never trained and its storage cannot be written, or is not shared;
            or the storage of a run outside of a job lacks its checkpoints.
        PeerUnfit: another rank does not see the storage.
        StopRequested: the job was paused or cancelled while its storage was unreachable.
    """
    logged: set[str] = set()
    if state.context.world_size > 1:
        _check_shared(state, storage)

    def look() -> tuple[Manifest | None, Lineage]:
        return (
            _find_newest(state, storage, refused=refused, logged=logged)
            if state.context.rank == 0
            else (None, Lineage())
        )

    found = wait_for_storage(state, look)
    return decide_on_rank_0(state, lambda: found)


def read_parts(state: TrainState, storage: Storage, manifest: Manifest) -> Parts | None:
    """Read what this rank needs of a checkpoint; None on all ranks if any rank found it damaged.

    In a group of the same size as the saved one, each rank reads its own part. In a group of
    another size, rank 0 reads all parts, one at a time, and broadcasts the merged state. Of a
    sharded model, each rank reads its part.

    Raises:
        TaskRaised: other numbers of workers hold a model together now.
        StopRequested: the job was paused or cancelled while its storage was unreachable.
    """
    num_shards = state.spec.num_shards
    if manifest.num_shards != num_shards:
        saved, now = manifest.num_shards, num_shards
        raise TaskRaised(
            None,
            None,
            f"checkpoint {manifest.name} is of"
            f" {f'a model in {saved} parts' if saved > 1 else 'a whole model'}, and this run has"
            f" {f'parallelism.shard {now}' if now > 1 else 'no parallelism.shard'}; resume it as it"
            " was saved, or start another job with this model (warm_start)",
        )
    read_shard = partial(_read_shard, state, storage, manifest)
    try:
        if manifest.world_size == state.context.world_size:
            read = partial(_read_own_parts, state, storage, manifest)
            shared, own = wait_for_storage(state, read)
        else:
            shared, own = _broadcast_merged(state, storage, manifest)
        if num_shards > 1:
            shared = {**shared, **wait_for_storage(state, read_shard)}
    except CheckpointError as error:
        if state.context.rank == 0:
            state.context.link.log(str(error))
        return None
    return shared, own


def wait_for_storage(state: TrainState, work: Callable[[], _T]) -> _T:
    """Run `work` on every rank, retrying while the storage is unreachable; return this rank's
    result.

    Raises:
        CheckpointError: on all ranks, if any rank found a checkpoint damaged.
        StorageError: the job has never trained and its storage cannot be written.
        StopRequested: the job was paused or cancelled meanwhile.
    """
    state.context.link.on_orders(lambda orders: setattr(state, "stop", orders.stop))
    try:
        return _retry_until_reachable(state, work)
    finally:
        state.context.control.show_wait("")


def _retry_until_reachable(state: TrainState, work: Callable[[], _T]) -> _T:
    pause_s = FIRST_PAUSE_S
    while True:
        result, errors = run_on_all_ranks(state, work)
        if not errors:
            return result  # type: ignore[return-value]
        _raise_damaged(errors)
        advice = storage_advice(errors[0])  # type: ignore[arg-type]
        text = f"the checkpoints of this job cannot be reached: {errors[0]}; {advice}"
        state.context.control.show_wait(text)
        if state.context.rank == 0:
            state.context.link.log(f"warning: {text}; it is tried again in {pause_s:g} s")
        if decide_on_rank_0(state, lambda: state.stop is not None):
            raise StopRequested(text)
        state.phases.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def _check_shared(state: TrainState, storage: Storage) -> None:
    """Check that all ranks see the same storage: rank 0 writes a token, and all ranks read it.

    Raises:
        StorageError: this rank does not see the storage.
        PeerUnfit: another rank does not see the storage.
    """
    path = f".seen-g{state.context.generation:012d}"
    token = decide_on_rank_0(state, lambda: secrets.token_hex(16))
    is_first = state.context.rank == 0
    wait_for_storage(
        state,
        lambda: (
            _write_or_refuse(state, partial(storage.put, path, token.encode()))
            if is_first
            else None
        ),
    )
    read = partial(storage.read, path)
    sees = wait_for_storage(
        state, lambda: sees_token(read, token=token, pause=state.phases.clock.sleep)
    )
    found = gather_objects(state, (sees, host := socket.gethostname()))
    blind = [rank for rank, (there, _) in enumerate(found) if not there]
    if not sees:
        raise StorageNotShared(not_shared(str(storage), host))
    if blind:
        raise PeerUnfit(f"rank {blind[0]} does not see the storage of this job")
    state.num_hosts = len({name for _, name in found})
    wait_for_storage(state, lambda: storage.remove(path) if is_first else None)


def _write_or_refuse(state: TrainState, write: Callable[[], None]) -> None:
    """Write to the storage.

    Raises:
        OSError: the storage cannot be written now.
        StorageError: the storage cannot be written, and the job has never trained.
    """
    try:
        write()
    except (FileNotFoundError, PermissionError) as error:
        _refuse_new_job(state, error)
        raise


def _refuse_new_job(state: TrainState, error: OSError) -> None:
    """Fail a job that has never trained; for one that has, the error may be an outage that passes.

    Raises:
        StorageError: the job has never trained.
    """
    launch = state.context.launch
    has_trained = any(row.started for row in read_milestones(Path(launch.storage)))
    if not has_trained and not launch.saved_step:
        text = (
            f"checkpoints of this job cannot be kept: {type(error).__name__}: {error};"
            f" {storage_advice(error)}"
        )
        raise StorageError(text) from error


def _raise_damaged(errors: Iterable[CheckpointError | OSError]) -> None:
    """Raise errors that a retry cannot fix: damaged checkpoints, joined into one message for all
    ranks.
    """
    damaged = sorted({str(error) for error in errors if isinstance(error, CheckpointError)})
    if damaged:
        raise CheckpointError("; ".join(damaged))


def _find_newest(
    state: TrainState, storage: Storage, *, refused: Iterable[str], logged: set[str]
) -> tuple[Manifest | None, Lineage]:
    """Find the newest checkpoint that the job's records confirm; rank 0 only.

    Raises:
        OSError: the storage cannot be reached, or lacks all checkpoints of the job.
        StorageError: it lacks those of a run outside of a job.
        SupersededError: another worker group runs the job.
    """
    directory, generation = Path(state.context.launch.storage), state.context.generation
    if is_superseded(directory, generation):
        raise SupersededError(f"another worker group runs the job; generation {generation} is over")
    milestones = read_milestones(directory)
    lineage = Lineage.of_milestones(milestones)

    def log_once(text: str) -> None:
        if text not in logged:
            logged.add(text)
            state.context.link.log(text)

    offers = find_candidates(storage, state.context.launch.job_id, log_once, lineage=lineage)
    found = next((manifest for manifest in offers if manifest.name not in refused), None)
    if found is None:
        _check_not_lost(state, storage, milestones=milestones, lineage=lineage)
        _write_or_refuse(state, storage.prepare)
        if lineage.saved_step:
            log_once(
                f"warning: no checkpoint in {storage} can be used, the newest had"
                f" {lineage.saved_step} steps; training starts from scratch"
            )
    return found, lineage


def _check_not_lost(
    state: TrainState, storage: Storage, *, milestones: Iterable[Milestones], lineage: Lineage
) -> None:
    """Check that a job which has saved steps finds some checkpoint, if only a damaged one.

    It finds none after the retention of an ended job has removed them all: that sets the launch's
    `saved_step` to 0, and the retried job is meant to train from the beginning.

    Raises:
        MissingCheckpointsError: there is none.
        StorageError: there is none, and no service would show that a run waits for them.
    """
    launch = state.context.launch
    saved_step = lineage.saved_step if lineage.groups else launch.saved_step
    was_saved_here = launch.saved_step or any(
        row.saved_step and row.attempt == launch.attempt for row in milestones
    )
    if not saved_step or not was_saved_here or any(map(generation_of, storage.names())):
        return
    text = f"{saved_step} steps were saved, and no checkpoint is in {storage}"
    if launch.job_id == NO_JOB:
        raise StorageError(
            f"{text}; mount the storage that has them, or give a run that starts from the beginning"
            " a storage of its own"
        )
    raise MissingCheckpointsError(text)


def _read_own_parts(state: TrainState, storage: Storage, manifest: Manifest) -> Parts:
    shared = read_part(storage, manifest, SHARED_FILE)
    return shared, read_part(storage, manifest, rank_file_name(state.context.rank))


def _read_shard(state: TrainState, storage: Storage, manifest: Manifest) -> dict[str, Any]:
    return read_part(storage, manifest, shard_file_name(state.context.rank % manifest.num_shards))


def _broadcast_merged(state: TrainState, storage: Storage, manifest: Manifest) -> Parts:
    """Read all parts on rank 0 and return the merged state of the workers with this one's part of
    the model; the first of them takes over their loss of the open epoch.
    """
    rank, num_shards = state.context.rank, manifest.num_shards
    kept: Parts = ({}, {})
    for part in range(num_shards):
        ranks = range(part, manifest.world_size, num_shards)
        read = partial(_read_merged, storage, manifest, MergedParts(len(ranks)), ranks=ranks)
        found = wait_for_storage(state, read if rank == 0 else lambda: None)
        sent = broadcast_state(found, state.context.peers, device=state.context.device)
        kept = sent if rank % num_shards == part else kept
    shared, own = kept
    return shared, own if rank < num_shards else {**own, "loss": {"total": 0.0, "samples": 0}}


def _read_merged(
    storage: Storage, manifest: Manifest, merged: MergedParts, *, ranks: Sequence[int]
) -> Parts:
    """Read the parts of these ranks, one at a time; a second call after an error continues where
    the first stopped.

    Raises:
        CheckpointError: a part is damaged, or does not fit the others.
        OSError: the storage cannot be reached.
    """
    shared = read_part(storage, manifest, SHARED_FILE)
    while merged.count < len(ranks):
        name = rank_file_name(ranks[merged.count])
        try:
            merged.add(read_part(storage, manifest, name))
        except StateError as error:
            raise CheckpointError(
                f"checkpoint {manifest.name}: {name}: {error}; the one before it is used"
            ) from error
    return shared, merged.result()


__all__ = ["StopRequested", "find_checkpoint", "read_parts", "wait_for_storage"]
