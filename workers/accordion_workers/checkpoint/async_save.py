"""Writes a checkpoint while training continues: one thread per rank; rank 0's thread writes the
manifest when all parts are written.

The threads take part in no collective. They exchange results through the key-value store of the
process group: each publishes what it wrote or why it failed, and rank 0's thread collects all
results. A full or unreachable storage cannot prevent that.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from accordion_workers.checkpoint.checkpoint_files import (
    FileChecksum,
    Manifest,
    discard_checkpoint,
    prune_checkpoints,
    write_manifest,
    write_part,
)
from accordion_workers.checkpoint.lineage import Lineage, SurvivorFilter, newest_first
from accordion_workers.checkpoint.storage import Storage, storage_advice
from accordion_workers.common.peers import Peers
from accordion_workers.spec.objective import Mode

SHARED_FILE = "shared.pt"
"""Name of the file in a checkpoint that holds the state shared by all ranks."""
COLLECT_POLL_S = 0.02
"""Interval between checks for the other ranks' results, on rank 0."""
POLLS_PER_GROUP_CHECK = 50
"""Checks for results per check whether the group is over, which reads a directory."""
COLLECT_TIMEOUT_S = 600.0
"""Seconds that rank 0's thread waits for the other ranks' parts after its own. Only a lost worker
publishes nothing, and then training ends as well; the thread must not outlive its group.
"""

logger = logging.getLogger(__name__)


class GroupOverError(Exception):
    """The worker group was given up while its checkpoint was being written."""


class PartResult(BaseModel):
    """Result of writing one rank's part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[FileChecksum, ...] = ()
    error: str | None = None
    """One sentence; None if everything is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One rank's part of a checkpoint, in memory that training does not change."""

    manifest: Manifest
    """Manifest without files."""
    parts: Mapping[str, Mapping[str, Any]]
    """State by file name."""
    keep: int
    """Complete checkpoints to keep; used on rank 0."""
    keep_best: Mode | None = None
    """Which value of the objective is better; the checkpoint with the best one is kept too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGroup:
    """Exchange of results between the saving threads of a group, for one checkpoint."""

    store: Any
    """A `torch.distributed.Store`."""
    name: str
    number: int
    """Number of the checkpoint in its group; it distinguishes a retry at the same position from the
    first try.
    """
    rank: int
    world_size: int

    @classmethod
    def of_peers(cls, peers: Peers, name: str, number: int) -> SaveGroup:
        """Build it from a worker's peers."""
        return cls(
            store=peers.store,
            name=name,
            number=number,
            rank=peers.rank,
            world_size=peers.world_size,
        )

    def publish(self, written: PartResult) -> None:
        """Publish this rank's result to rank 0."""
        self.store.set(self._result_key(self.rank), written.model_dump_json())

    def collect(self, timeout_s: float, over: Callable[[], bool]) -> list[PartResult] | None:
        """Return every rank's result, in rank order; on rank 0, once. None if the group is `over`.

        Raises:
            TimeoutError: a rank published nothing in time.
        """
        keys = [self._result_key(rank) for rank in range(self.world_size)]
        looks, pause = math.ceil(timeout_s / COLLECT_POLL_S), threading.Event()
        # Polling, because one long wait would block the store for the rest of this process.
        while not self.store.check(keys):
            if (looks := looks - 1) < 0:
                raise TimeoutError(
                    f"other workers have not written their parts {timeout_s:g} s after rank 0"
                )
            if looks % POLLS_PER_GROUP_CHECK == 0 and over():
                return None
            pause.wait(COLLECT_POLL_S)
        results = [PartResult.model_validate_json(self.store.get(key)) for key in keys]
        for key in keys:
            self.store.delete_key(key)
        return None if over() else results

    def _result_key(self, rank: int) -> str:
        return f"checkpoint/{self.name}/{self.number}/{rank}"


class AsyncSave:
    """Saves one rank's part of a checkpoint in a thread.

    Args:
        snapshot: the state to write.
        storage: where it is written.
        peers: exchange with the other ranks' threads.
        done: called in rank 0's thread with the manifest, once the checkpoint can be resumed from.
        failed: called in rank 0's thread with one sentence, if the checkpoint will not be complete.
        superseded: whether another worker group has taken over; it must neither resume from this
            checkpoint nor lose an older one.
        survivors: selects the names on the job's surviving line, the newest first; only these are
            kept.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        storage: Storage,
        peers: SaveGroup,
        *,
        done: Callable[[Manifest], None],
        failed: Callable[[str], None],
        superseded: Callable[[], bool] = bool,
        survivors: SurvivorFilter = newest_first,
    ) -> None:
        self.name = snapshot.manifest.name
        self._snapshot = snapshot
        self._storage = storage
        self._peers = peers
        self._done = done
        self._failed = failed
        self._superseded = superseded
        self._survivors = survivors
        self._written: PartResult | None = None
        # A daemon: a worker that ends early must not wait for a storage that hangs.
        self._thread = threading.Thread(target=self._run, name=f"save {self.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def written(self, timeout_s: float) -> PartResult | None:
        """Return the result: on rank 0 of the whole checkpoint, elsewhere of the rank's own part;
        None while it is being written.
        """
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else self._written

    def _run(self) -> None:
        try:
            written = self._write_parts()
            self._peers.publish(written)
            self._written = self._complete_checkpoint() if self._peers.rank == 0 else written
        except GroupOverError as error:
            self._written = PartResult(error=str(error))
        except Exception as error:
            logger.exception("checkpoint %s", self.name)
            self._written = PartResult(
                error=f"checkpoint {self.name} is not complete: {type(error).__name__}: {error}"
            )
        # Free the memory now, not with the next checkpoint.
        self._snapshot = replace(self._snapshot, parts={})
        if self._peers.rank == 0 and self._written.error is not None:
            self._failed(self._written.error)

    def _write_parts(self) -> PartResult:
        """Write this rank's parts; errors are returned, not raised."""
        try:
            parts = self._snapshot.parts.items()
            files = [
                write_part(self._storage, f"{self.name}/{name}", state) for name, state in parts
            ]
        except OSError as error:
            return PartResult(error=f"{type(error).__name__}: {error}; {storage_advice(error)}")
        return PartResult(files=tuple(files))

    def _complete_checkpoint(self) -> PartResult:
        """Write the manifest on rank 0, or give the checkpoint up."""
        results = self._peers.collect(COLLECT_TIMEOUT_S, self._superseded)
        if results is None:
            return self._discard_failed(["another worker group runs the job"])
        errors = [
            f"rank {rank}: {written.error}"
            for rank, written in enumerate(results)
            if written.error is not None
        ]
        files = tuple(file for written in results for file in written.files)
        if not errors:
            errors = self._write_manifest(
                self._snapshot.manifest.model_copy(update={"files": files})
            )
        return self._discard_failed(errors) if errors else PartResult(files=files)

    def _discard_failed(self, errors: Sequence[str]) -> PartResult:
        self._discard_written()
        return PartResult(
            error=(
                f"checkpoint {self.name} could not be written to {self._storage}:"
                f" {'; '.join(errors)}"
            )
        )

    def _write_manifest(self, manifest: Manifest) -> list[str]:
        try:
            write_manifest(self._storage, manifest)
        except OSError as error:
            return [f"{type(error).__name__}: {error}; {storage_advice(error)}"]
        if self._superseded():
            # Not removed: the newer group may be reading it, and no later group will resume from
            # it.
            raise GroupOverError(
                f"checkpoint {self.name} came too late: another worker group runs the job"
            )
        self._done(manifest)
        try:
            prune_checkpoints(
                self._storage,
                keep=self._snapshot.keep,
                keep_best=self._snapshot.keep_best,
                newest_name=self.name,
                survivors=self._survivors,
            )
        except OSError as error:
            logger.warning("older checkpoints stay where they are: %s", error)
        return []

    def _discard_written(self) -> None:
        """Remove what was written; if that fails too, the incomplete checkpoint stays until the
        next complete one removes it.
        """
        try:
            discard_checkpoint(self._storage, self.name)
        except OSError as error:
            logger.warning(
                "what was written of checkpoint %s stays where it is: %s", self.name, error
            )


@dataclass(slots=True, kw_only=True)
class SaveStatus:
    """State of a worker's checkpoints; equal on all ranks except for times, and for what only
    rank 0 has.
    """

    pending: AsyncSave | None = None
    """Save in progress, or finished with a result that was not read yet."""
    begun: int = 0
    """Checkpoints started by this worker group."""
    failed: int = 0
    """Checkpoints of this worker group that could not be written."""
    missed: int = 0
    """Checkpoints of this worker group that failed or were skipped; counted on rank 0 at once."""
    missed_in_a_row: int = 0
    """Failed or skipped checkpoints since the newest complete one; counted on rank 0."""
    newest: str | None = None
    """Name of the last completed checkpoint, or of the one that this worker group resumed from."""
    lineage: Lineage = field(default_factory=Lineage)
    """Surviving line up to this worker group; set on rank 0."""
    began_s: float = math.inf
    """Start of the last save, on the clock's `elapsed`; infinite until training has started."""

    def count_missed(self) -> None:
        """Count a checkpoint that failed or was skipped."""
        self.missed += 1
        self.missed_in_a_row += 1


def rank_file_name(rank: int) -> str:
    """Return the name of the file in a checkpoint that holds a rank's own part."""
    return f"rank-{rank}.pt"


def shard_file_name(part: int) -> str:
    """Return the name of the file in a checkpoint that holds a part of a sharded model, and of its
    optimizer.
    """
    return f"shard-{part}.pt"


__all__ = [
    "COLLECT_TIMEOUT_S",
    "SHARED_FILE",
    "AsyncSave",
    "PartResult",
    "SaveGroup",
    "SaveStatus",
    "Snapshot",
    "rank_file_name",
    "shard_file_name",
]
