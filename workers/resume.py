"""Finding the checkpoint that a worker group goes on from, and reading it; all ranks together.

A storage that is away is waited for, with a word in the job's log, rather than taken for an empty one or for a fault of
the worker group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from workers.checkpoint import Manifest, candidates, read_part
from workers.errors import CheckpointError, StopRequested, StorageError
from workers.journal import SupersededError, is_superseded, read_records
from workers.lineage import Lineage
from workers.run import Run
from workers.storage import Storage, way_out
from workers.together import FIRST_PAUSE_S, MOST_PAUSE_S, decide_on_rank_0, work_side_by_side
from workers.upload import SHARED, rank_file

Parts = tuple[dict[str, Any], list[dict[str, Any]]]
"""What all ranks share, and the parts in rank order."""
_T = TypeVar("_T")


def find_checkpoint(run: Run, storage: Storage, refused: Iterable[str]) -> tuple[Manifest | None, Lineage]:
    """Return the newest checkpoint on the surviving line, and that line; rank 0 looks and all take what it found.

    `refused` names those that a rank found damaged.

    Raises:
        StorageError: nothing was ever kept there, and nothing can be.
        StopRequested: people stopped the job while its storage was away.
    """
    told: set[str] = set()

    def look() -> tuple[Manifest | None, Lineage]:
        return _look(run, storage, refused=refused, told=told) if run.context.rank == 0 else (None, Lineage())

    found = wait_for_storage(run, look)
    return decide_on_rank_0(run, lambda: found)


def read_parts(run: Run, storage: Storage, manifest: Manifest) -> Parts | None:
    """Read what this rank needs of a checkpoint; None on all ranks where one found it damaged.

    In a group as large as the saved one the own part stands in everybody's place: no other is looked at.

    Raises:
        StopRequested: people stopped the job while its storage was away.
    """
    try:
        return wait_for_storage(run, partial(_read, run, storage, manifest))
    except CheckpointError as error:
        if run.context.rank == 0:
            run.context.link.log(str(error))
        return None


def wait_for_storage(run: Run, work: Callable[[], _T]) -> _T:
    """Do the work on every rank, and again while the storage is away; returns this rank's result.

    Raises:
        CheckpointError: on all ranks, what any of them found damaged.
        StorageError: the storage cannot serve a job that has never trained.
        StopRequested: people stopped the job meanwhile.
    """
    pause_s = FIRST_PAUSE_S
    run.context.link.on_orders(lambda orders: setattr(run, "stop", orders.stop))
    while True:
        result, errors = work_side_by_side(run, work)
        if not errors:
            return result  # type: ignore[return-value]
        _raise_final(errors)
        text = f"the checkpoints of this job cannot be reached: {errors[0]}; {way_out(errors[0])}"  # type: ignore[arg-type]
        if run.context.rank == 0:
            run.context.link.log(f"warning: {text}; it is tried again in {pause_s:g} s")
        if decide_on_rank_0(run, lambda: run.stop is not None):
            raise StopRequested(text)
        run.phases.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _raise_final(errors: Iterable[CheckpointError | OSError]) -> None:
    """Raise what no waiting mends: damage, joined to one sentence for all ranks."""
    damaged = sorted({str(error) for error in errors if isinstance(error, CheckpointError)})
    if damaged:
        raise CheckpointError("; ".join(damaged))


def _look(run: Run, storage: Storage, *, refused: Iterable[str], told: set[str]) -> tuple[Manifest | None, Lineage]:
    """Look for the newest checkpoint that the history bears out; rank 0.

    Raises:
        OSError: the storage cannot be reached.
        SupersededError: another worker group runs the job.
    """
    place, generation = Path(run.context.launch.storage), run.context.generation
    if is_superseded(place, generation):
        raise SupersededError(f"generation {generation} is over: another worker group runs the job")
    lineage = Lineage.of_records(read_records(place))

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            run.context.link.log(text)

    offers = candidates(storage, run.context.launch.job_id, tell, lineage=lineage)
    found = next((manifest for manifest in offers if manifest.name not in refused), None)
    if found is None:
        _prepare(storage, is_new=not lineage.groups)
    return found, lineage


def _prepare(storage: Storage, *, is_new: bool) -> None:
    try:
        storage.prepare()
    except (FileNotFoundError, PermissionError) as error:
        if not is_new:
            raise
        text = f"checkpoints of this job cannot be kept: {type(error).__name__}: {error}; {way_out(error)}"
        raise StorageError(text) from error


def _read(run: Run, storage: Storage, manifest: Manifest) -> Parts:
    ranks = range(manifest.world_size)
    shared = read_part(storage, manifest, SHARED)
    if manifest.world_size == run.context.world_size:
        return shared, [read_part(storage, manifest, rank_file(run.context.rank))] * len(ranks)
    return shared, [read_part(storage, manifest, rank_file(rank)) for rank in ranks]


__all__ = ["find_checkpoint", "read_parts", "wait_for_storage"]
