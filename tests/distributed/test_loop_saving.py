"""When checkpoints are taken, and what training does while one is written."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accordion_workers.common.errors import WorkerError
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.checkpointing import (
    restore_checkpoint,
    save_checkpoint,
    wait_for_pending_save,
)
from accordion_workers.training.clock import Clock
from accordion_workers.training.loop import train_batch, train_job
from accordion_workers.training.reports import report_progress
from accordion_workers.training.sampler import epoch_order
from accordion_workers.training.train_state import TrainState, build_train_state
from tests.distributed import gate
from tests.distributed.loop_jobs import (
    RecordingLink,
    Result,
    context,
    equal,
    parameters,
    run_job,
    saved,
    synthetic,
)

WAITED_S = 5.0
LARGE = synthetic(width=256)
"""Half a megabyte of parameters; a rank's part is as large."""


def checkpointed(job: JobSpec, **settings: Any) -> JobSpec:
    return job.model_copy(update={"checkpoint": job.checkpoint.model_validate(settings)})


def begun(
    rank: int, storage: Path, job: JobSpec, link: RecordingLink, clock: Clock | None = None
) -> TrainState:
    """A run before its first step."""
    run = build_train_state(context(rank, storage, job, link), clock or Clock())
    restore_checkpoint(run)
    return run


def steps(run: TrainState, count: int) -> None:
    order = epoch_order(len(run.data), seed=0, epoch=0)
    for _ in range(count):
        train_batch(run, order)


@pytest.mark.parametrize(
    ("every_steps", "taken"), [(1, [1, 2, 3, 4, 5, 6, 7, 8]), (3, [3, 4, 6, 8]), (4, [4, 8])]
)
def test_a_checkpoint_is_taken_every_so_many_steps_and_once_at_the_end_of_an_epoch(
    run_group, tmp_path, every_steps, taken
):
    job = checkpointed(synthetic(), every_steps=every_steps)
    records = run_group(2, run_job, tmp_path, job)[0].link.of("checkpoint")
    assert [record.step for record in records] == taken


@dataclass
class Ticking:
    """A clock on which only sleeping takes time."""

    pace: float
    time: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.time += seconds * self.pace

    def clock(self) -> Clock:
        return Clock(elapsed=lambda: self.time, now=lambda: 1.0, sleep=self.sleep)


def train_by_seconds(rank: int, storage: Path, job: JobSpec) -> list[int]:
    link = RecordingLink()
    train_job(context(rank, storage, job, link), Ticking(pace=1.0 if rank == 0 else 9.0).clock())
    return [record.step for record in link.of("checkpoint")]


def test_a_checkpoint_is_taken_every_so_many_seconds_of_rank_0_one_step_later(run_group, tmp_path):
    """Steps of one second on rank 0: after four it asks, and the fifth takes it."""
    job = checkpointed(synthetic(3, min_step_s=1.0), every_epochs=100, every_seconds=4.0)
    assert run_group(2, train_by_seconds, tmp_path, job)[0] == [5, 10, 12]


def train_beside_a_write(rank: int, storage: Path, job: JobSpec) -> dict[str, Any]:
    link = RecordingLink()
    run = begun(rank, storage, job, link)
    steps(run, 1)
    then = parameters(run)
    gate.OPEN.clear()
    save_checkpoint(run)
    steps(run, 3)
    told, unfinished = list(link.posted), run.save_status.pending.written(0.0) is None
    gate.OPEN.set()
    error = wait_for_pending_save(run)
    held = saved(rank, storage, job)
    return {
        "told": told,
        "unfinished": unfinished,
        "error": error,
        "steps": (run.session.steps, held.session.steps),
        "records": link.of("checkpoint"),
        "same": equal(parameters(held), then),
        "moved": not equal(parameters(run), then),
    }


def test_a_checkpoint_written_during_training_holds_the_state_of_its_step(run_group, tmp_path):
    job = checkpointed(synthetic(), storage=f"gate://{tmp_path}")
    for seen in run_group(2, train_beside_a_write, tmp_path, job):
        assert (seen["unfinished"], seen["error"]) == (True, None)
        assert seen["steps"] == (4, 1)
        assert (seen["moved"], seen["same"]) == (True, True)


def test_a_checkpoint_is_reported_once_complete_with_the_time_training_stopped(run_group, tmp_path):
    job = checkpointed(synthetic(), storage=f"gate://{tmp_path}")
    seen = run_group(2, train_beside_a_write, tmp_path, job)[0]
    assert seen["told"] == []
    (record,) = seen["records"]
    assert record.step == 1
    assert 0 < record.blocked_s < record.seconds


class Stopped:
    """A clock that stands still until the gate opens, `WAITED_S` after somebody has begun
    to wait.
    """

    def __init__(self) -> None:
        self._time = 0.0
        self._looks = threading.Semaphore(0)

    def elapsed(self) -> float:
        time = self._time
        self._looks.release()
        return time

    def open_the_gate(self, *, looks: int) -> None:
        """After so many more looks at the clock."""
        while self._looks.acquire(blocking=False):
            continue
        threading.Thread(target=self._open, args=(looks,)).start()

    def _open(self, looks: int) -> None:
        for _ in range(looks):
            self._looks.acquire()
        self._time += WAITED_S
        gate.OPEN.set()


def save_twice(rank: int, storage: Path, job: JobSpec) -> list[Any]:
    link, stopped = RecordingLink(), Stopped()
    run = begun(rank, storage, job, link, Clock(elapsed=stopped.elapsed))
    steps(run, 1)
    gate.OPEN.clear()
    save_checkpoint(run)
    steps(run, 1)
    # saving looks when it begins, and once more when its phase does.
    stopped.open_the_gate(looks=2)
    save_checkpoint(run)
    wait_for_pending_save(run)
    return [*link.of("checkpoint"), run.phases.seconds["checkpoint"]]


def test_a_second_checkpoint_waits_for_the_first_and_that_counts_as_standing_still(
    run_group, tmp_path
):
    job = checkpointed(synthetic(), storage=f"gate://{tmp_path}")
    first, second, seconds = run_group(2, save_twice, tmp_path, job)[0]
    assert (first.step, second.step) == (1, 2)
    assert (first.blocked_s, second.blocked_s, seconds) == (0.0, WAITED_S, WAITED_S)


def limited(run: TrainState, *, wait: bool) -> Any:
    """Save while files of this process may have 100 KB at most, on rank 1; gives whether it is
    saved, or why not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if run.context.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        is_saved = save_checkpoint(run, wait=wait)
        return is_saved if wait else wait_for_pending_save(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fail_and_go_on(rank: int, storage: Path) -> tuple[str | None, list[str], list[str], list[Any]]:
    link = RecordingLink()
    run = begun(rank, storage, LARGE, link)
    steps(run, 1)
    error = limited(run, wait=False)
    left = sorted(path.name for path in (storage / "checkpoints").iterdir())
    dist.barrier()
    steps(run, 1)
    save_checkpoint(run, wait=True)
    return error, left, link.lines, link.of("checkpoint")


def test_a_write_that_fails_on_one_rank_is_reported_removed_and_retried_at_the_next(
    run_group, tmp_path
):
    (error, left, (line,), (record,)), (other, *_) = run_group(2, fail_and_go_on, tmp_path)
    assert "rank 1: OSError: [Errno 27] File too large" in error
    assert "raise the limit of a file's size" in line
    assert "failure 1 of this worker group" in line
    assert (other, left) == (error, [])
    assert record.step == 2


def fail_and_report(rank: int, storage: Path) -> list[tuple[int, int]]:
    """Two checkpoints fail, and the third does not."""
    link = RecordingLink()
    run = begun(rank, storage, LARGE, link)
    for save in (partial(limited, wait=False), partial(limited, wait=False), save_checkpoint):
        steps(run, 1)
        save(run)
        wait_for_pending_save(run)
        report_progress(run, last=True)
    return [
        (progress.failed_checkpoints, progress.failed_checkpoints_in_a_row)
        for progress in link.progresses
    ]


def test_progress_counts_checkpoints_that_fail_until_one_is_complete(run_group, tmp_path):
    assert run_group(2, fail_and_report, tmp_path)[0] == [(1, 1), (2, 2), (2, 0)]


def fail_and_wait(rank: int, storage: Path) -> tuple[bool, list[str], list[Any]]:
    """While one waits between two tries there is room again, or people cancel the job."""
    link = RecordingLink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    make_room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
    run = begun(rank, storage, LARGE, link, Clock(sleep=lambda _: make_room()))
    steps(run, 1)
    return limited(run, wait=True), link.lines, link.of("checkpoint")


def test_a_write_that_somebody_waits_for_is_tried_again_until_it_works(run_group, tmp_path):
    (saved_here, (line,), (record,)), (saved_there, *_) = run_group(2, fail_and_wait, tmp_path)
    assert (saved_here, saved_there, record.step) == (True, True, 1)
    assert "rank 1: OSError: [Errno 27] File too large" in line


def fail_and_cancel(rank: int, storage: Path) -> bool:
    run = begun(rank, storage, LARGE, RecordingLink())
    steps(run, 1)
    run.stop = "cancel" if rank == 0 else None
    return limited(run, wait=True)


def test_a_write_that_fails_is_waited_for_no_longer_when_the_job_is_cancelled(run_group, tmp_path):
    assert run_group(2, fail_and_cancel, tmp_path) == [False, False]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A filesystem of four megabytes: room for one checkpoint of `LARGE`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a disk can be mounted by root only: {mounted.stderr.decode()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill_and_free(rank: int, disk: Path) -> tuple[list[str], list[str], list[int]]:
    link, ballast = RecordingLink(), disk / "ballast"
    run = begun(rank, disk, LARGE, link)
    steps(run, 1)
    if rank == 0:
        ballast.write_bytes(bytes(3_500_000))
    dist.barrier()
    save_checkpoint(run)
    wait_for_pending_save(run)
    left = sorted(path.name for path in (disk / "checkpoints").iterdir())
    dist.barrier()
    if rank == 0:
        ballast.unlink()
    dist.barrier()
    steps(run, 1)
    save_checkpoint(run, wait=True)
    return link.lines, left, [record.step for record in link.of("checkpoint")]


def test_a_full_disk_costs_a_checkpoint_and_not_the_job(run_group, small_disk):
    ((line,), left, taken), _ = run_group(2, fill_and_free, small_disk)
    assert f"could not be written to {small_disk / 'checkpoints'}: rank " in line
    assert "[Errno 28] No space left on device" in line
    assert "free space there, or lower checkpoint.keep" in line
    assert (left, taken) == ([], [2])


def die_in_an_upload(rank: int, storage: Path, job: JobSpec) -> None:
    """The second of two workers is killed while it writes; the first hears of it and does not wait
    for ever.
    """
    dist.init_process_group("gloo", init_method=f"file://{storage}/store", rank=rank, world_size=2)
    run = begun(rank, storage, job, RecordingLink())
    steps(run, 1)
    save_checkpoint(run, wait=True)
    steps(run, 1)
    if rank == 1:
        gate.OPEN.clear()
        gate.REACHED.clear()
    save_checkpoint(run)
    if rank == 1:
        gate.REACHED.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError):
        wait_for_pending_save(run)
    # as Ray ends a worker: the interpreter's own end would meet the thread that still asks for the
    # dead one's part.
    os._exit(0)


def go_on(rank: int, storage: Path, job: JobSpec) -> Result:
    """In a process that knows the gate."""
    return run_job(rank, storage, job, None, 2)


def test_a_worker_that_is_killed_in_an_upload_leaves_the_checkpoint_before_it(run_group, tmp_path):
    job = checkpointed(synthetic(), storage=f"gate://{tmp_path}")
    processes = [
        multiprocessing.get_context("forkserver").Process(
            target=die_in_an_upload, args=(rank, tmp_path, job)
        )
        for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    resumed = run_group(2, go_on, tmp_path, job)[0].link
    assert resumed.of("started")[0].step == 1
    assert "was never finished; the one before it is used" in resumed.lines[0]


def begin_on_its_own_disk(rank: int, folder: Path) -> str:
    """Each rank has a directory to itself, as on nodes that share none."""
    try:
        begun(
            rank, folder / f"node-{rank}", synthetic(), RecordingLink(), Clock(sleep=lambda _: None)
        )
    except WorkerError as error:
        return f"{type(error).__name__}: {error}"
    return "it trains"


def test_a_rank_that_does_not_see_the_storage_of_the_others_does_not_train(run_group, tmp_path):
    here, there = run_group(2, begin_on_its_own_disk, tmp_path)
    assert there.startswith("StorageNotShared: node ")
    assert (
        "node-1/checkpoints: a checkpoint would lose the part that is saved there; mount the same"
        in there
    )
    assert here == "PeerUnfit: rank 1 does not see the storage of this job"


def read_again(rank: int, storage: Path, job: JobSpec) -> tuple[list[str], list[torch.Tensor]]:
    gate.READ.clear()
    run = saved(rank, storage, job)
    return sorted(name for name in gate.READ if name.endswith(".pt")), parameters(run)


@pytest.mark.parametrize(
    ("workers", "rank_1_reads"),
    [(2, ["rank-1.pt", "shared.pt"]), (3, [])],
)
def test_a_rank_reads_its_own_part_and_none_in_a_group_of_another_size(
    run_group, tmp_path, workers, rank_1_reads
):
    job = checkpointed(synthetic(), storage=f"gate://{tmp_path}")
    written = run_group(2, run_job, tmp_path, job)[0].parameters
    read, held = run_group(workers, read_again, tmp_path, job)[1]
    assert (read, equal(held, written)) == (rank_1_reads, True)
