"""Groups of a job that has saved steps, and whose storage has nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.common.errors import WorkerError
from accordion_workers.records.contract import DesiredState
from accordion_workers.training.checkpointing import restore_checkpoint
from accordion_workers.training.clock import Clock
from accordion_workers.training.resume import StopRequested
from accordion_workers.training.train_state import build_train_state
from tests.distributed import gate
from tests.distributed.loop_jobs import RecordingLink, context, synthetic

PAUSE = DesiredState(version=1, stop="pause")


def begin(rank: int, storage: Path, url: str | None) -> str:
    """Begin a group of a job that has saved three steps and that is to be paused; return why it
    does not train.
    """
    assert gate.GatedFileSystem.protocol == "gate"  # importing it registers the filesystem
    job = synthetic()
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_validate({"storage": url})})
    here = context(rank, storage, job, RecordingLink(orders=PAUSE))
    known = replace(here, launch=here.launch.model_copy(update={"saved_step": 3}))
    try:
        return f"it trains on from {restore_checkpoint(build_train_state(known, Clock()))}"
    except (StopRequested, WorkerError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("workers", [1, 2])
def test_all_ranks_wait_for_the_checkpoints_and_say_which_are_missing(
    run_group: Any, tmp_path: Path, workers: int
) -> None:
    for told in run_group(workers, begin, tmp_path, None):
        assert told.startswith("StopRequested: the checkpoints of this job cannot be reached: 3 st")
        assert f"no checkpoint is in {tmp_path}/checkpoints; mount the storage that has" in told


def test_a_place_that_is_gone_is_waited_for(run_group: Any, tmp_path: Path) -> None:
    for told in run_group(2, begin, tmp_path, f"gate://{tmp_path}/away"):
        assert told.startswith("StopRequested: the checkpoints of this job cannot be reached: ")
        assert "No such file or directory" in told
