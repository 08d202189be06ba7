"""A session's state in Ray Train's checkpoints: the residuals, warm starts and controller of all
ranks.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.fs
import torch
import torch.distributed as dist

from accordion.base.errors import StateError
from accordion.session.saved_states import state_file
from accordion.session.session import Session
from accordion_ray.epochs import follower_of
from accordion_ray.errors import AttachError
from accordion_ray.rendezvous import TIMEOUT_S, wait_for_ranks

logger = logging.getLogger(__name__)


def save_state(session: Session, directory: str | Path, *, timeout_s: float = TIMEOUT_S) -> None:
    """Save the state of all ranks to a directory that becomes a checkpoint; every rank calls this.

    Rank 0 writes the file `accordion.pt`, or `accordion-NAME.pt` if `attach` got a name for the
    session. Call it just before the `ray.train.report` with the checkpoint, and with local steps
    before the model is saved, since it ends the round that is running. `attach` loads the
    state from the run's newest checkpoint when Ray Train restarts the run, with the same or another
    number of workers.

    Raises:
        AttachError: some rank did not call this within the limit, or the session was not made by
            `accordion_ray.attach`.
        OSError: rank 0 cannot write the file.
    """
    follower = follower_of(session)
    if follower is None:
        raise AttachError("save_state() got a session that accordion_ray.attach() has not made")
    wait_for_ranks(
        "save_state", rank=session.rank, world_size=session.world_size, timeout_s=timeout_s
    )
    follower.end_before_save()
    states = session.gather_state_dict()
    if states is not None:
        torch.save(states, Path(directory) / state_file(session.name))


def save_is_due(session: Session) -> bool:
    """Return whether Ray Train has told that a node of the run is about to leave: save now.

    True once for each group of workers, on all ranks after the same step, so it costs no wait as
    `ray.train.get_preemption_info` does. Call it after each step, and when it is True `save_state`
    and `ray.train.report` with a checkpoint; that report ends no epoch. Needs Ray 2.57 or newer;
    with older releases it is always False.

    Raises:
        AttachError: the session was not made by `accordion_ray.attach`.
    """
    follower = follower_of(session)
    if follower is None:
        raise AttachError("save_is_due() got a session that accordion_ray.attach() has not made")
    return follower.take_notice()


def load_state(session: Session, checkpoint: Any, *, node: str = "") -> str | None:
    """Load the state from a Ray Train checkpoint; return the checkpoint's name.

    Every rank calls this. Only the file with the state is read, and each rank reads its own part of
    it. From storage that is not a mounted folder, the first rank of each node downloads the file
    for the others; `node` identifies the node of this rank.

    Return None if there is no checkpoint, or none that `save_state` has written to.

    Raises:
        StateError: the state is of another model, or ranks have different checkpoints.
        OSError: the storage cannot be read.
    """
    file = state_file(session.name)
    found = _gather_objects((_find_state(checkpoint, file), node))
    names: list[str] = [name for name, _ in found]
    _check_equal_names(names, file)
    if not names[0]:
        if checkpoint is not None and session.rank == 0:
            logger.warning(
                "checkpoint %s has no %s, so compression starts without residuals; call "
                "accordion_ray.save_state() before ray.train.report()",
                checkpoint.path,
                file,
            )
        return None
    if isinstance(checkpoint.filesystem, pyarrow.fs.LocalFileSystem):
        _load_file(session, Path(checkpoint.path) / file)
    else:
        _load_downloaded(session, checkpoint, first=[node for _, node in found].index(node))
    return names[0]


def _find_state(checkpoint: Any, file: str) -> str:
    """Return the name of a checkpoint that has a state, else an empty text."""
    if checkpoint is None:
        return ""
    info = checkpoint.filesystem.get_file_info(f"{checkpoint.path}/{file}")
    return Path(checkpoint.path).name if info.type == pyarrow.fs.FileType.File else ""


def _check_equal_names(names: list[str], file: str) -> None:
    if len(set(names)) == 1:
        return
    listed = ", ".join(f"rank {rank}: {name or 'none'}" for rank, name in enumerate(names))
    raise StateError(
        f"ranks have different checkpoints with a {file} ({listed}); give attach() the same "
        "checkpoint on every rank, in storage that all nodes reach"
    )


def _load_downloaded(session: Session, checkpoint: Any, *, first: int) -> None:
    """Load the state from a copy that the rank `first`, on the same node, downloads."""
    file = state_file(session.name)
    folder = tempfile.mkdtemp(prefix="accordion-state-") if session.rank == first else ""
    try:
        if folder:
            source = f"{checkpoint.path}/{file}"
            target = f"{folder}/{file}"
            local = pyarrow.fs.LocalFileSystem()
            pyarrow.fs.copy_files(
                source,
                target,
                source_filesystem=checkpoint.filesystem,
                destination_filesystem=local,
            )
        # It ends with a collective, so no rank reads the copy any more when it is removed.
        _load_file(session, Path(_gather_objects(folder)[first]) / file)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _load_file(session: Session, file: Path) -> None:
    # Mapped into memory, since the file contains the residuals of all ranks, of which this reads
    # one.
    session.load_state_dict(torch.load(file, map_location="cpu", weights_only=True, mmap=True))


def _gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks, in rank order."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
