"""Training that starts with the model of another job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.common.errors import StorageError, TaskRaised
from accordion_workers.records.contract import JobSpec, ModelSource
from accordion_workers.training.checkpointing import restore_checkpoint
from accordion_workers.training.clock import Clock
from accordion_workers.training.train_state import build_train_state
from tests.distributed.loop_jobs import (
    RecordingLink,
    context,
    parameters,
    run_job,
    saved,
    synthetic,
)


def source_of(folder: Path, *names: str) -> ModelSource:
    directory = folder / "checkpoints"
    found = names or tuple(sorted(LocalStorage(directory).names(), reverse=True))
    return ModelSource(job_id="job-1", url=None, directory=str(directory), names=found)


def start(
    rank: int, storage: Path, job: JobSpec, source: ModelSource
) -> tuple[str | None, list[torch.Tensor], list[str], bool]:
    """Build and restore; return what is known then, and whether the optimizer has state."""
    link = RecordingLink()
    given = context(rank, storage, job, link, 9)
    launch = given.launch.model_copy(update={"job_id": "job-2", "warm_start": source})
    state = build_train_state(replace(given, launch=launch), Clock())
    resumed = restore_checkpoint(state)
    return resumed, parameters(state), link.lines, bool(state.optimizer.state)


def saved_parameters(rank: int, storage: Path, job: JobSpec) -> list[torch.Tensor]:
    return parameters(saved(rank, storage, job))


def test_all_ranks_start_with_the_saved_model_and_nothing_else_of_it(run_group, tmp_path):
    job = synthetic(1)
    run_group(2, run_job, tmp_path / "a", job)
    [trained] = run_group(1, saved_parameters, tmp_path / "a", job)
    other = synthetic(1).model_copy(
        update={"training": job.training.model_copy(update={"seed": 7})}
    )
    started = run_group(3, start, tmp_path / "b", other, source_of(tmp_path / "a"))
    for resumed, found, _, has_state in started:
        assert resumed is None
        assert not has_state
        assert all(torch.equal(a, b) for a, b in zip(found, trained, strict=True))
    [line] = started[0][2]
    assert "training starts with the model of checkpoint g" in line
    assert line.endswith("of job job-1")


def test_the_first_complete_one_is_taken(run_group, tmp_path):
    job = synthetic(2)
    run_group(1, run_job, tmp_path / "a", job)
    newest, older = source_of(tmp_path / "a").names
    (tmp_path / "a" / "checkpoints" / newest / "shared.pt").write_bytes(b"torn")
    source = source_of(tmp_path / "a", "g-removed", newest, older)
    [(_, _, [line], _)] = run_group(1, start, tmp_path / "b", job, source)
    assert older in line


def test_a_model_that_is_gone_or_does_not_fit_is_reported(run_group, tmp_path):
    run_group(1, run_job, tmp_path / "a", synthetic(1))
    with pytest.raises(StorageError, match="model of job job-1 to start with cannot be read"):
        run_group(2, start, tmp_path / "b", synthetic(1), source_of(tmp_path / "a", "g-removed"))
    with pytest.raises(TaskRaised, match=r"of job job-1 does not fit: ") as caught:
        run_group(2, start, tmp_path / "b", synthetic(1, width=8), source_of(tmp_path / "a"))
    assert str(caught.value).count("size mismatch") == 3
    assert "; and 1 more; " in str(caught.value)


def continue_own(rank: int, storage: Path, job: JobSpec, source: ModelSource) -> str | None:
    given = context(rank, storage, job, RecordingLink(), 9)
    launch = given.launch.model_copy(update={"warm_start": source})
    return restore_checkpoint(build_train_state(replace(given, launch=launch), Clock()))


def test_a_job_with_a_checkpoint_of_its_own_continues_from_it(run_group, tmp_path):
    job = synthetic(1)
    run_group(1, run_job, tmp_path / "a", job)
    own = source_of(tmp_path / "a").names[0]
    gone = source_of(tmp_path / "nowhere", "g-removed")
    assert run_group(2, continue_own, tmp_path / "a", job, gone) == [own, own]
