"""A session's state in Ray Train's checkpoints: residuals, warm starts and controller of all ranks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from accordion.session import Session
from accordion_ray.epochs import follower_of
from accordion_ray.errors import AttachError
from accordion_ray.rendezvous import TIMEOUT_S, wait_for_ranks

STATE_FILE = "accordion.pt"
"""Name of the state's file in a checkpoint's directory."""

log = logging.getLogger(__name__)


def save_state(session: Session, directory: str | Path, *, timeout_s: float = TIMEOUT_S) -> None:
    """Save the state of all ranks to a directory that becomes a checkpoint; every rank calls this.

    Rank 0 writes the file `accordion.pt`. Call it just before the `ray.train.report` with the
    checkpoint. `attach` loads the state from the run's newest checkpoint when Ray Train restarts the
    run, with the same or another number of workers.

    Raises:
        AttachError: some rank did not call this within the limit, or the session was not made by
            `accordion_ray.attach`.
        OSError: rank 0 cannot write the file.
    """
    follower = follower_of(session)
    if follower is None:
        raise AttachError("save_state() got a session that accordion_ray.attach() has not made")
    wait_for_ranks("save_state", rank=session.rank, world_size=session.world_size, timeout_s=timeout_s)
    follower.end_before_save()
    states = session.gather_state_dict()
    if states is not None:
        torch.save(states, Path(directory) / STATE_FILE)


def load_state(session: Session, checkpoint: Any) -> str | None:
    """Load the state from a Ray Train checkpoint, on every rank; return the checkpoint's name.

    Return None if there is no checkpoint, or none that `save_state` has written to.

    Raises:
        StateError: the state is of another model, or ranks have different checkpoints.
    """
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as directory:
        file = Path(directory) / STATE_FILE
        if not file.is_file():
            if session.rank == 0:
                log.warning(
                    "checkpoint %s has no %s, so compression starts without residuals; call "
                    "accordion_ray.save_state() before ray.train.report()",
                    checkpoint.path,
                    STATE_FILE,
                )
            return None
        states = torch.load(file, map_location="cpu", weights_only=True)
    session.load_state_dict(states)
    return Path(checkpoint.path).name
