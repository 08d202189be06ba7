"""Find the checkpoint that a worker group resumes from and read it; all ranks together.

While the storage is unreachable the group waits and writes warnings to the job's log. An outage is
neither treated as an empty storage nor counted as a failure of the group.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accordion.errors import StateError
from workers.checkpoint.async_save import SHARED, rank_file
from workers.checkpoint.broadcast import broadcast_state
from workers.checkpoint.checkpoint_files import Manifest, candidates, read_part
from workers.checkpoint.lineage import Lineage
from workers.checkpoint.shared_storage import not_shared, sees_token
from workers.checkpoint.storage import Storage, way_out
from workers.errors import CheckpointError, PeerUnfit, StorageError
from workers.hub.journal import SupersededError, is_superseded, read_records
from workers.training.slow_work import (
    FIRST_PAUSE_S,
    MOST_PAUSE_S,
    decide_on_rank_0,
    gather,
    work_side_by_side,
)
from workers.training.snapshot import MergedParts
from workers.training.train_state import Run

Parts = tuple[dict[str, Any], dict[str, Any]]
"""State shared by all ranks, then what this rank continues from: its own part, or the merged parts.
"""
_T = TypeVar("_T")


class StopRequested(SystemExit):
    """The job was paused or cancelled before its worker group had trained a step.

    Derives from `SystemExit`, so that `except Exception` in a user's script does not catch it.
    """


def find_checkpoint(
    run: Run, storage: Storage, refused: Iterable[str]
) -> tuple[Manifest | None, Lineage]:
    """Return the newest checkpoint on the surviving line, and that line; rank 0 searches for all
    ranks.

    `refused` holds the names of checkpoints that a rank found damaged.

    Raises:
        StorageError: the job has never trained and its storage cannot be written, or is not shared.
        PeerUnfit: another rank does not see the storage.
        StopRequested: the job was paused or cancelled while its storage was unreachable.
    """
    told: set[str] = set()
    if run.context.world_size > 1:
        _check_shared(run, storage)

    def look() -> tuple[Manifest | None, Lineage]:
        return (
            _look(run, storage, refused=refused, told=told)
            if run.context.rank == 0
            else (None, Lineage())
        )

    found = wait_for_storage(run, look)
    return decide_on_rank_0(run, lambda: found)


def read_parts(run: Run, storage: Storage, manifest: Manifest) -> Parts | None:
    """Read what this rank needs of a checkpoint; None on all ranks if any rank found it damaged.

    In a group of the same size as the saved one, each rank reads its own part. In a group of
    another size, rank 0 reads all parts, one at a time, and broadcasts the merged state.

    Raises:
        StopRequested: the job was paused or cancelled while its storage was unreachable.
    """
    try:
        if manifest.world_size == run.context.world_size:
            return wait_for_storage(run, partial(_read_own, run, storage, manifest))
        return _share_merged(run, storage, manifest)
    except CheckpointError as error:
        if run.context.rank == 0:
            run.context.link.log(str(error))
        return None


def wait_for_storage(run: Run, work: Callable[[], _T]) -> _T:
    """Run `work` on every rank, retrying while the storage is unreachable; return this rank's
    result.

    Raises:
        CheckpointError: on all ranks, if any rank found a checkpoint damaged.
        StorageError: the job has never trained and its storage cannot be written.
        StopRequested: the job was paused or cancelled meanwhile.
    """
    run.context.link.on_orders(lambda orders: setattr(run, "stop", orders.stop))
    try:
        return _retry(run, work)
    finally:
        run.context.helm.wait_for("")


def _retry(run: Run, work: Callable[[], _T]) -> _T:
    pause_s = FIRST_PAUSE_S
    while True:
        result, errors = work_side_by_side(run, work)
        if not errors:
            return result  # type: ignore[return-value]
        _raise_final(errors)
        text = f"the checkpoints of this job cannot be reached: {errors[0]}; {way_out(errors[0])}"  # type: ignore[arg-type]
        run.context.helm.wait_for(text)
        if run.context.rank == 0:
            run.context.link.log(f"warning: {text}; it is tried again in {pause_s:g} s")
        if decide_on_rank_0(run, lambda: run.stop is not None):
            raise StopRequested(text)
        run.phases.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _check_shared(run: Run, storage: Storage) -> None:
    """Check that all ranks see the same storage: rank 0 writes a token, and all ranks read it.

    Raises:
        StorageError: this rank does not see the storage.
        PeerUnfit: another rank does not see the storage.
    """
    path = f".seen-g{run.context.generation:012d}"
    token = decide_on_rank_0(run, lambda: secrets.token_hex(16))
    is_first = run.context.rank == 0
    wait_for_storage(
        run, lambda: _keep(run, partial(storage.put, path, token.encode())) if is_first else None
    )
    read = partial(storage.read, path)
    sees = wait_for_storage(
        run, lambda: sees_token(read, token=token, pause=run.phases.clock.sleep)
    )
    found = gather(run, (sees, host := socket.gethostname()))
    blind = [rank for rank, (there, _) in enumerate(found) if not there]
    if not sees:
        raise StorageError(not_shared(str(storage), host))
    if blind:
        raise PeerUnfit(f"rank {blind[0]} does not see the storage of this job")
    run.num_hosts = len({name for _, name in found})
    wait_for_storage(run, lambda: storage.remove(path) if is_first else None)


def _keep(run: Run, write: Callable[[], None]) -> None:
    """Write to the storage.

    Raises:
        OSError: the storage cannot be written now.
        StorageError: the storage cannot be written, and the job has never trained.
    """
    try:
        write()
    except (FileNotFoundError, PermissionError) as error:
        _refuse_new(run, error)
        raise


def _refuse_new(run: Run, error: OSError) -> None:
    """Fail a job that has never trained; for one that has, the error may be an outage that passes.

    Raises:
        StorageError: the job has never trained.
    """
    if not Lineage.of_records(read_records(Path(run.context.launch.storage))).groups:
        text = (
            f"checkpoints of this job cannot be kept: {type(error).__name__}: {error};"
            f" {way_out(error)}"
        )
        raise StorageError(text) from error


def _raise_final(errors: Iterable[CheckpointError | OSError]) -> None:
    """Raise errors that a retry cannot fix: damaged checkpoints, joined into one message for all
    ranks.
    """
    damaged = sorted({str(error) for error in errors if isinstance(error, CheckpointError)})
    if damaged:
        raise CheckpointError("; ".join(damaged))


def _look(
    run: Run, storage: Storage, *, refused: Iterable[str], told: set[str]
) -> tuple[Manifest | None, Lineage]:
    """Find the newest checkpoint that the job's records confirm; rank 0 only.

    Raises:
        OSError: the storage cannot be reached.
        SupersededError: another worker group runs the job.
    """
    place, generation = Path(run.context.launch.storage), run.context.generation
    if is_superseded(place, generation):
        raise SupersededError(f"another worker group runs the job; generation {generation} is over")
    lineage = Lineage.of_records(read_records(place))

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            run.context.link.log(text)

    offers = candidates(storage, run.context.launch.job_id, tell, lineage=lineage)
    found = next((manifest for manifest in offers if manifest.name not in refused), None)
    if found is None:
        _keep(run, storage.prepare)
        if lineage.saved_step:
            tell(
                f"warning: {storage} holds none of the checkpoints that the job's records name, the"
                f" newest of {lineage.saved_step} steps; it was emptied, or checkpoint.storage has"
                " changed; training starts from scratch"
            )
    return found, lineage


def _read_own(run: Run, storage: Storage, manifest: Manifest) -> Parts:
    shared = read_part(storage, manifest, SHARED)
    return shared, read_part(storage, manifest, rank_file(run.context.rank))


def _share_merged(run: Run, storage: Storage, manifest: Manifest) -> Parts:
    """Read all parts on rank 0 and return the merged state; rank 0 takes over the loss of the open
    epoch.
    """
    merged, is_first = MergedParts(manifest.world_size), run.context.rank == 0
    found = wait_for_storage(
        run, lambda: _read_merged(storage, manifest, merged) if is_first else None
    )
    shared, own = broadcast_state(found, device=run.context.device)
    return shared, own if is_first else {**own, "loss": {"total": 0.0, "samples": 0}}


def _read_merged(storage: Storage, manifest: Manifest, merged: MergedParts) -> Parts:
    """Read all parts, one at a time; a second call after an error goes on where the first stopped.

    Raises:
        CheckpointError: a part is damaged, or does not fit the others.
        OSError: the storage cannot be reached.
    """
    shared = read_part(storage, manifest, SHARED)
    while merged.count < manifest.world_size:
        name = rank_file(merged.count)
        try:
            merged.add(read_part(storage, manifest, name))
        except StateError as error:
            raise CheckpointError(
                f"checkpoint {manifest.name}: {name}: {error}; the one before it is used"
            ) from error
    return shared, merged.result()


__all__ = ["StopRequested", "find_checkpoint", "read_parts", "wait_for_storage"]
