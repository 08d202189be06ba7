"""One attempt's supervisor, with a function in place of Ray Train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError
from ray.train import WorkerGroupError

from tests.unit.workers.world import JOB, FakeCluster, journal, launch, note, until
from workers import supervisor as supervisor_module
from workers.contract import EndRecord, FailureRecord, Orders
from workers.errors import LossNotFinite, TaskRaised
from workers.journal import Journal, read_end, read_records, write_end
from workers.supervisor import Supervisor, parse_name, supervisor_name

RAISED = WorkerGroupError("", {1: TaskRaised(3, 0, "ValueError: no such label")})
LOST = WorkerGroupError("", {0: ActorDiedError()})
COMPLETED = EndRecord(status="SUCCEEDED", reason="COMPLETED")


@dataclass
class Groups:
    """In place of `fit`: each worker group ends as the next outcome says; the last one says it for ever."""

    outcomes: list[str | Exception]
    note_progress: bool = True
    generations: list[int] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def fit(self, launch: Any, generation: int) -> str:
        self.generations.append(generation)
        if self.note_progress:
            Journal(Path(launch.storage), attempt=1, generation=generation, clock=lambda: 0.0).write(note(generation))
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


Run = Callable[..., Groups]


@pytest.fixture
def run(cluster: FakeCluster, tmp_path: Path) -> Run:
    """Runs one supervisor to its end."""

    def to_the_end(*outcomes: str | Exception, note_progress: bool = True, **spec: Any) -> Groups:
        groups = Groups(list(outcomes), note_progress)
        json = launch(tmp_path, **spec).model_dump_json()
        supervisor = Supervisor(json, fit=groups.fit, ask=cluster, pause=groups.pauses.append)
        until(lambda: supervisor.state()[0] == "ended")
        return groups

    return to_the_end


def the_end(storage: Path) -> EndRecord:
    found = read_end(storage)
    assert found is not None
    return found[0]


def recorded(storage: Path, kind: str) -> list[Any]:
    return [item.payload for item in read_records(storage) if item.payload.kind == kind]


def test_a_group_that_completes_ends_the_job(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    groups = run("completed")
    assert (the_end(tmp_path), groups.generations) == (COMPLETED, [1])
    assert cluster.held() == [note(1), COMPLETED]


def test_the_end_file_holds_all_records_of_all_generations(run: Run, tmp_path: Path) -> None:
    run(LOST, LOST, "completed")
    _, history = read_end(tmp_path)
    assert [record.payload.kind for record in history.records] == ["checkpoint", "failure"] * 2 + ["checkpoint", "end"]


def test_every_group_is_a_generation_newer_than_what_was_said_of_the_last(run: Run, tmp_path: Path) -> None:
    groups = run(LOST, RAISED, "completed")
    failures = [item.generation for item in read_records(tmp_path) if item.payload.kind == "failure"]
    told = [generation for pair in zip(groups.generations, [*failures, 99], strict=True) for generation in pair]
    assert told == sorted(set(told))


def test_lost_workers_spend_no_budget(run: Run, tmp_path: Path) -> None:
    groups = run(*[LOST] * 10, "completed", max_failures=0)
    assert the_end(tmp_path) == COMPLETED
    assert groups.pauses == [0.5] * 10


def test_the_same_error_at_the_same_step_twice_fails_the_job(run: Run, tmp_path: Path) -> None:
    groups = run(RAISED)
    end = the_end(tmp_path)
    assert (end.status, end.reason, len(groups.generations)) == ("FAILED", "TASK_RAISED", 2)
    assert "the task raised ValueError: no such label in step 3 (epoch 0)" in end.message
    assert [failure.step for failure in recorded(tmp_path, "failure")] == [3, 3]


def test_a_loss_that_is_not_finite_fails_the_job_at_once(run: Run, tmp_path: Path) -> None:
    groups = run(WorkerGroupError("", dict.fromkeys(range(2), LossNotFinite(9, 0, 10))))
    assert (the_end(tmp_path).reason, groups.generations) == ("LOSS_NOT_FINITE", [1])


def test_a_spent_budget_fails_the_job(run: Run, tmp_path: Path) -> None:
    errors = [WorkerGroupError("", {0: TaskRaised(step, 0, "ValueError: no")}) for step in range(3)]
    run(*errors, max_failures=2)
    assert the_end(tmp_path).reason == "TOO_MANY_FAILURES"


def test_groups_that_never_come_up_end_the_job_as_lost(run: Run, tmp_path: Path) -> None:
    groups = run(LOST, note_progress=False)
    assert (the_end(tmp_path).reason, len(groups.generations)) == ("LOST", 21)
    assert groups.pauses[:4] == [0.5, 1.0, 2.0, 4.0]


def test_an_error_outside_of_the_workers_is_recorded_without_a_rank(run: Run, tmp_path: Path) -> None:
    run(ValueError("no such backend"), "completed")
    [failure] = recorded(tmp_path, "failure")
    assert (failure.cause, failure.rank) == ("job", None)
    assert failure.message == "the worker group did not run: ValueError: no such backend"


@pytest.mark.parametrize("silent", [set(), {"watch"}])
def test_a_group_that_was_stopped_ends_the_job_as_cancelled_whether_the_actor_answers_or_not(
    run: Run, cluster: FakeCluster, tmp_path: Path, silent: set[str]
) -> None:
    cluster.silent = silent
    groups = run("stopped")
    assert (the_end(tmp_path).status, the_end(tmp_path).message) == ("CANCELLED", "cancelled; its state was saved")
    assert groups.generations == [1]


def test_a_cancelled_job_starts_no_worker_group(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.call("order", JOB, Orders(version=1, stop="cancel"))
    assert run("completed").generations == []
    assert the_end(tmp_path).reason == "CANCELLED_BY_USER"


def test_a_supervisor_that_starts_again_after_the_end_does_nothing(run: Run, tmp_path: Path) -> None:
    run(RAISED)
    before = (tmp_path / "end.json").read_bytes()
    assert run("completed").generations == []
    assert (tmp_path / "end.json").read_bytes() == before


def test_a_supervisor_that_died_before_the_end_file_only_writes_it(run: Run, tmp_path: Path) -> None:
    journal(tmp_path).write(EndRecord(status="FAILED", reason="TASK_RAISED"))
    assert run("completed").generations == []
    assert the_end(tmp_path).reason == "TASK_RAISED"
    assert len(recorded(tmp_path, "end")) == 1


def test_a_supervisor_that_starts_again_remembers_what_was_spent(run: Run, tmp_path: Path) -> None:
    journal(tmp_path).write(FailureRecord(cause="job", rank=1, epoch=0, step=3, message=str(RAISED.worker_failures[1])))
    assert len(run(RAISED).generations) == 1
    assert the_end(tmp_path).reason == "TASK_RAISED"


def test_a_supervisor_whose_storage_is_full_says_so_and_ends_the_job_when_it_is_not(run, tmp_path, monkeypatch) -> None:
    refusals = [OSError("No space left on device")]

    def write(storage: Path, end: EndRecord) -> None:
        if refusals:
            raise refusals.pop()
        write_end(storage, end)

    monkeypatch.setattr(supervisor_module, "write_end", write)
    groups = run("completed")
    assert (groups.generations, groups.pauses) == ([1], [5.0])
    assert (the_end(tmp_path), len(recorded(tmp_path, "end"))) == (COMPLETED, 1)


def test_the_supervisor_says_what_it_waits_for(cluster: FakeCluster, tmp_path: Path) -> None:
    states: list[tuple[str, str]] = []
    groups = Groups([LOST, "completed"])
    json = launch(tmp_path).model_dump_json()
    supervisor = Supervisor(json, fit=groups.fit, ask=cluster, pause=lambda _: states.append(supervisor.state()))
    until(lambda: supervisor.state()[0] == "ended")
    assert states == [("running", "the process of rank 0 is gone; it goes on in 0.5 s")]


def test_what_the_supervisor_says_is_in_the_jobs_log(run: Run, cluster: FakeCluster) -> None:
    run(LOST, "completed")
    lines = [line.text for line in cluster.drain().logs if line.rank is None]
    assert any("the process of rank 0 is gone; another worker group starts in 0.5 s" in line for line in lines)


@given(st.from_regex(r"[A-Za-z0-9._-]+", fullmatch=True), st.integers(1, 10**6))
def test_a_supervisors_name_tells_job_and_attempt(job_id: str, attempt: int) -> None:
    assert parse_name(supervisor_name(job_id, attempt)) == (job_id, attempt)


@pytest.mark.parametrize("name", ["accordion-v1", "job-7", "job-7.", "job-7.x", "7.1", ""])
def test_other_names_are_no_supervisors(name: str) -> None:
    assert parse_name(name) is None
