"""Writing a checkpoint while training goes on: a thread a rank, rank 0's writes the manifest when
all parts are there.

The threads take part in no collective. What they have to tell each other goes by the key-value
store that the process group was made with: each says what it wrote, or why not, and rank 0's hears
all. A storage that is full or gone cannot get in the way of that.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict

from workers.checkpoint.checkpoint_files import (
    FileChecksum,
    Manifest,
    discard_checkpoint,
    prune_checkpoints,
    write_manifest,
    write_part,
)
from workers.checkpoint.lineage import Lineage, SurvivorFilter, newest_first
from workers.checkpoint.storage import Storage, storage_advice

SHARED_FILE = "shared.pt"
"""Name of the file in a checkpoint that holds the state shared by all ranks."""
COLLECT_POLL_S = 0.02
"""Distance between two looks for what the others wrote, on rank 0."""
POLLS_PER_GROUP_CHECK = 50
"""After so many of these it also looks whether its group is over, which is a look into a folder."""
COLLECT_TIMEOUT_S = 600.0
"""How long rank 0's thread waits for the others' parts after its own. Only a worker that is gone
says nothing, and then training ends as well; the thread must not stay in a process that goes on in
another group.
"""

logger = logging.getLogger(__name__)


class GroupOverError(Exception):
    """The worker group was given up while its checkpoint was being written."""


class PartResult(BaseModel):
    """How writing ended on one rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[FileChecksum, ...] = ()
    error: str | None = None
    """One sentence; None where everything is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one rank writes of a checkpoint: a moment of the run, in memory that nobody changes."""

    manifest: Manifest
    """Still without files."""
    parts: Mapping[str, Mapping[str, Any]]
    """State by file name."""
    keep: int
    """Complete checkpoints to be left, on rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGroup:
    """What the threads of a group tell each other about one checkpoint."""

    store: Any
    """A `torch.distributed.Store`."""
    name: str
    number: int
    """Of the checkpoint; the number tells a second try at the same place from the first."""
    rank: int
    world_size: int

    @classmethod
    def of_group(cls, name: str, number: int) -> SaveGroup:
        """Of the default process group."""
        store = dist.distributed_c10d._get_default_store()  # the one store that every backend has
        return cls(
            store=store,
            name=name,
            number=number,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
        )

    def publish(self, written: PartResult) -> None:
        """Tell rank 0."""
        self.store.set(self._key(self.rank), written.model_dump_json())

    def collect(self, timeout_s: float, over: Callable[[], bool]) -> list[PartResult] | None:
        """What every rank said, in rank order; on rank 0, once. None where the group is `over`.

        Raises:
            TimeoutError: some said nothing.
        """
        keys = [self._key(rank) for rank in range(self.world_size)]
        looks, pause = math.ceil(timeout_s / COLLECT_POLL_S), threading.Event()
        # looks instead of one wait: that would keep the store from everybody else in this process.
        while not self.store.check(keys):
            if (looks := looks - 1) < 0:
                raise TimeoutError(
                    f"other workers have not written their parts {timeout_s:g} s after rank 0"
                )
            if looks % POLLS_PER_GROUP_CHECK == 0 and over():
                return None
            pause.wait(COLLECT_POLL_S)
        heard = [PartResult.model_validate_json(self.store.get(key)) for key in keys]
        for key in keys:
            self.store.delete_key(key)
        return None if over() else heard

    def _key(self, rank: int) -> str:
        return f"checkpoint/{self.name}/{self.number}/{rank}"


class AsyncSave:
    """One rank's part of a checkpoint on its way.

    Args:
        snapshot: what is written.
        storage: where to.
        peers: the other ranks' uploads.
        done: called on rank 0 in the thread: with the manifest, once the checkpoint can be resumed
            from.
        failed: likewise with one sentence, where it never will.
        superseded: whether another worker group has taken over, which must neither resume from this
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
        # a daemon: a worker that ends before its time must not wait for a storage that hangs.
        self._thread = threading.Thread(target=self._run, name=f"upload {self.name}", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def written(self, timeout_s: float) -> PartResult | None:
        """How it ended: on rank 0 for the whole checkpoint, elsewhere for the own part; None while
        it goes on.
        """
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else self._written

    def _run(self) -> None:
        try:
            written = self._write()
            self._peers.publish(written)
            self._written = self._complete() if self._peers.rank == 0 else written
        except GroupOverError as error:
            self._written = PartResult(error=str(error))
        except Exception as error:
            logger.exception("checkpoint %s", self.name)
            self._written = PartResult(
                error=f"checkpoint {self.name} is not complete: {type(error).__name__}: {error}"
            )
        # the memory is given back now, not with the next checkpoint.
        self._snapshot = replace(self._snapshot, parts={})
        if self._peers.rank == 0 and self._written.error is not None:
            self._failed(self._written.error)

    def _write(self) -> PartResult:
        """This rank's parts; what goes wrong with them is told, not raised."""
        try:
            parts = self._snapshot.parts.items()
            files = [
                write_part(self._storage, f"{self.name}/{name}", state) for name, state in parts
            ]
        except OSError as error:
            return PartResult(error=f"{type(error).__name__}: {error}; {storage_advice(error)}")
        return PartResult(files=tuple(files))

    def _complete(self) -> PartResult:
        """Rank 0: the manifest, or an end without one."""
        heard = self._peers.collect(COLLECT_TIMEOUT_S, self._superseded)
        if heard is None:
            return self._give_up(["another worker group runs the job"])
        errors = [
            f"rank {rank}: {written.error}"
            for rank, written in enumerate(heard)
            if written.error is not None
        ]
        files = tuple(file for written in heard for file in written.files)
        if not errors:
            errors = self._write_manifest(
                self._snapshot.manifest.model_copy(update={"files": files})
            )
        return self._give_up(errors) if errors else PartResult(files=files)

    def _give_up(self, errors: Sequence[str]) -> PartResult:
        self._clear()
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
            # not removed: the newer group may be reading it, and no later group will resume from
            # it.
            raise GroupOverError(
                f"checkpoint {self.name} came too late: another worker group runs the job"
            )
        self._done(manifest)
        try:
            prune_checkpoints(
                self._storage,
                keep=self._snapshot.keep,
                newest_name=self.name,
                survivors=self._survivors,
            )
        except OSError as error:
            logger.warning("older checkpoints stay where they are: %s", error)
        return []

    def _clear(self) -> None:
        """Give back the space; where that fails too it stays torn, and the next good one removes
        it.
        """
        try:
            discard_checkpoint(self._storage, self.name)
        except OSError as error:
            logger.warning(
                "what was written of checkpoint %s stays where it is: %s", self.name, error
            )


@dataclass(slots=True, kw_only=True)
class SaveStatus:
    """Where a worker is with its checkpoints; all but the clock alike on all ranks."""

    upload: AsyncSave | None = None
    """In flight, or at its end and nobody has asked how that was."""
    begun: int = 0
    """Checkpoints of this worker group."""
    failed: int = 0
    """Of these, how many could not be written."""
    newest: str | None = None
    """Name of the last completed checkpoint, or of the one that this worker group resumed from."""
    lineage: Lineage = field(default_factory=Lineage)
    """Surviving line up to this worker group; set on rank 0."""
    began_s: float = math.inf
    """When the last began, on the clock's `elapsed`; infinite until the run has begun."""


def rank_file_name(rank: int) -> str:
    """Return the name of the file in a checkpoint that holds a rank's own part."""
    return f"rank-{rank}.pt"


__all__ = [
    "COLLECT_TIMEOUT_S",
    "SHARED_FILE",
    "AsyncSave",
    "PartResult",
    "SaveGroup",
    "SaveStatus",
    "Snapshot",
    "rank_file_name",
]
