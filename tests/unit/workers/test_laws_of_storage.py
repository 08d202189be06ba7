"""The history of a job is the samples of its surviving line, whatever its storage does at whichever
call.

One call of the first group's goes wrong: it fails, loses its answer, kills the process, or arrives
when the next group already trains.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion_workers.checkpoint.lineage import Lineage
from accordion_workers.hub.journal import read_records
from accordion_workers.training import checkpointing as state
from accordion_workers.training import slow_work as together
from tests.unit.workers.faulty import FAULTS, STORE, Fault, Group
from tests.unit.workers.faulty_paths import make_paths_faulty
from tests.unit.workers.storage_world import EPOCHS, SAMPLES, Job, JournalLink

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
"""A killed process's threads end in the middle of what they do."""
CALLS = 34
"""Calls of an undisturbed group, at least; the first test counts them."""

AFTER_A_CHECKPOINT = 20
"""A call of a group that saves after each step, between its first checkpoint and its second."""
DIRECTORY_CALLS = 18
"""Calls of an undisturbed group whose checkpoints are in a directory, at least."""


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    for module in (state, together):
        monkeypatch.setattr(module, "POLL_INTERVAL_S", 0.01)
    return Job(tmp_path)


def test_every_call_of_a_group_that_nothing_disturbs_is_among_those_that_go_wrong(job: Job) -> None:
    assert 0 < job.disturb("error", -1).calls <= CALLS


def test_a_group_that_has_ended_leaves_no_model_and_no_thread(job: Job) -> None:
    def left() -> int:
        gc.collect()
        threads = [one for one in threading.enumerate() if one.name == "accordion-exchange"]
        models = [found for found in gc.get_objects() if isinstance(found, DistributedDataParallel)]
        return len(threads) + len(models)

    before = left()
    job.run(Group(at=-1, fault="error"))
    assert _comes_true(lambda: left() == before)


def _comes_true(condition: Callable[[], bool], patience: int = 500) -> bool:
    for _ in range(patience):
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(CALLS))
def test_the_history_is_the_samples_of_the_surviving_line(job: Job, fault: Fault, at: int) -> None:
    job.disturb(fault, at)
    assert sorted(job.history()) == list(range(EPOCHS))
    assert {row.samples for row in job.history().values()} == {SAMPLES}
    assert torch.equal(job.visits(), torch.ones(EPOCHS, SAMPLES))


@pytest.fixture
def directory_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose checkpoints are in a directory."""
    make_paths_faulty(monkeypatch)
    return Job(job.folder, storage=None)


def test_every_call_of_a_directory_is_among_those_that_go_wrong(directory_job: Job) -> None:
    assert 0 < directory_job.disturb("error", -1).calls <= DIRECTORY_CALLS


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(DIRECTORY_CALLS))
def test_the_history_is_the_samples_of_the_surviving_line_in_a_directory(
    directory_job: Job, fault: Fault, at: int
) -> None:
    directory_job.disturb(fault, at)
    assert sorted(directory_job.history()) == list(range(EPOCHS))
    assert torch.equal(directory_job.visits(), torch.ones(EPOCHS, SAMPLES))


@pytest.mark.parametrize("at", [0, 12, 20])
def test_a_storage_that_is_full_for_a_while_makes_nothing_be_trained_again(
    job: Job, at: int
) -> None:
    link = job.run(Group(at=at, times=60))
    assert link.outcome == "completed"
    assert any("No space left on device" in line for line in link.lines)
    assert torch.equal(job.visits(), torch.ones(EPOCHS, SAMPLES))


def test_a_storage_that_hangs_costs_checkpoints_and_the_job_waits_at_its_end(job: Job) -> None:
    job = Job(job.folder, every_steps=1)
    group = Group(at=12, fault="hang")
    link = job.run(
        group, on_line=lambda _, line: group.arrives.set() if "training is paused" in line else None
    )
    assert link.outcome == "completed"
    assert (
        "due after step 2 is skipped: g000000000001-e000000-s0000000002 is still being written to"
        in link.lines[0]
    )
    assert "while saving checkpoint" in link.lines[-1]
    assert torch.equal(job.visits(), torch.ones(EPOCHS, SAMPLES))


def test_a_job_that_is_cancelled_does_not_wait_for_a_storage_that_hangs(job: Job) -> None:
    group = Group(at=12, fault="hang")
    link = job.run(
        group,
        on_line=lambda link, line: link.order("cancel") if "training is paused" in line else None,
    )
    assert link.outcome == "unsaved"
    group.let_arrive()


def _waits(job: Job, group: Group, **settings: Any) -> tuple[set[str], JournalLink]:
    """Run a group; return what it waited for each time it wrote to the log, and the link."""
    seen: set[str] = set()

    def look(link: JournalLink, line: str) -> None:
        seen.add(link.control.progress.waiting_for)
        if group.fault == "hang" and "training is paused" in line:
            group.arrives.set()

    return seen, Job(job.folder, **settings).run(group, on_line=look)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (Group(at=0, times=9), "cannot be reached: [Errno 28] No space left on device"),
        (Group(at=30, times=60), "its state cannot be saved: "),
        (Group(at=12, fault="hang"), "while saving checkpoint"),
    ],
    ids=["at its start", "at its end", "hanging"],
)
def test_a_group_that_waits_for_its_storage_shows_that_and_takes_it_back(
    job: Job, group: Group, text: str
) -> None:
    seen, link = _waits(job, group, every_steps=1)
    assert any(text in waited for waited in seen)
    assert link.outcome == "completed"
    assert link.control.progress.waiting_for == ""


def test_a_group_that_waits_for_a_storage_that_hangs_is_not_taken_for_a_hung_one(job: Job) -> None:
    group, signs = Group(at=12, fault="hang"), []

    def look(link: JournalLink, line: str) -> None:
        signs.append(link.control.activity_count)
        if len([told for told in link.lines if "training is paused" in told]) == 2:
            group.arrives.set()

    Job(job.folder, every_steps=1).run(group, on_line=look)
    assert signs[-1] > signs[-2] + 1


def order_pause(link: JournalLink, line: str) -> None:
    link.order("pause")


def test_a_job_whose_storage_is_away_can_be_stopped_before_its_first_step(job: Job) -> None:
    link = job.run(Group(at=0, times=10**6), on_line=order_pause)
    assert link.outcome == "stopped"
    assert "it is tried again in 1 s" in link.lines[0]


@pytest.fixture
def emptied(job: Job) -> tuple[Job, dict[str, bytes]]:
    """A job that has saved one step, and what its storage had before it was emptied."""
    job = Job(job.folder, every_steps=1)
    job.run(Group(at=AFTER_A_CHECKPOINT, fault="kill"))
    assert Lineage.of_records(read_records(job.folder)).saved_step
    lost = dict(STORE.files)
    STORE.files.clear()
    return job, lost


def test_a_job_whose_storage_was_emptied_waits_until_its_checkpoints_are_back(
    emptied: tuple[Job, dict[str, bytes]],
) -> None:
    job, lost = emptied
    shown: list[str] = []

    def restore(link: JournalLink, line: str) -> None:
        if "no checkpoint is in" in line:
            shown.append(link.control.progress.waiting_for)
            if len(shown) == 3:
                STORE.files.update(lost)

    link = job.run(Group(), on_line=restore)
    assert "1 steps were saved, and no checkpoint is in faulty:///bucket/job-1;" in shown[0]
    assert "a clone of the job trains from the beginning" in shown[0]
    assert (len(shown), link.outcome) == (3, "completed")
    assert torch.equal(job.visits(), torch.ones(EPOCHS, SAMPLES))


def test_a_job_without_records_and_checkpoints_waits_for_those_the_service_knows(
    job: Job,
) -> None:
    job.launch = job.launch.model_copy(update={"saved_step": 3})
    link = job.run(Group(), on_line=order_pause)
    assert link.outcome == "stopped"
    assert "3 steps were saved, and no checkpoint is in faulty:///bucket/job-1;" in link.lines[0]


def test_a_retried_job_whose_checkpoints_retention_removed_trains_from_the_beginning(
    emptied: tuple[Job, dict[str, bytes]],
) -> None:
    job, _ = emptied
    job.launch = job.launch.model_copy(update={"attempt": 2, "saved_step": 0})
    link = job.run(Group())
    assert link.outcome == "completed"
    assert "no checkpoint in faulty:///bucket/job-1 can be used" in link.lines[0]
    assert torch.equal(job.visits(), torch.ones(EPOCHS, SAMPLES))
