"""One attempt's supervisor, without Ray's processes."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from accordion_workers.common.errors import EngineUnavailable, LossNotFinite, TaskRaised
from accordion_workers.controller import supervisor as supervisor_module
from accordion_workers.controller.supervisor import Supervisor
from accordion_workers.hub.journal import newest_generation, read_end, read_records, write_end
from accordion_workers.records.contract import (
    DesiredState,
    EndRecord,
    FailureRecord,
    Launch,
    PausedRecord,
)
from accordion_workers.spec.job import CheckpointSpec
from tests.unit.workers.fake_pool import FakePool, Outcome
from tests.unit.workers.test_accordion_actor import progress
from tests.unit.workers.world import JOB, STARTED, FakeCluster, journal, launch, note, token, until

TASK_ERROR = TaskRaised(3, 0, "ValueError: no such label")
RAISED: Outcome = {1: TASK_ERROR}
LOST: Outcome = {0: ActorDiedError()}
COMPLETED = EndRecord(status="SUCCEEDED", reason="COMPLETED")
PAUSES: list[float] = []
PLACE = frozenset({"attempt", "retried_attempt", "saved_step"})
"""Fields of a launch; all others of a test are those of its spec."""
Run = Callable[..., FakePool]


@pytest.fixture
def run(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one supervisor to its end; pauses between groups are not waited for."""
    monkeypatch.setattr("accordion_workers.controller.failure_policy.MAX_PAUSE_S", 0.0)
    PAUSES.clear()

    def to_the_end(*outcomes: Outcome, note_progress: bool = True, **spec: Any) -> FakePool:
        place = {name: spec.pop(name) for name in PLACE & spec.keys()}
        started = launch(tmp_path, **spec).model_copy(update=place)
        pool = FakePool(started, list(outcomes), note_progress)
        json = started.model_dump_json()
        supervisor = Supervisor(
            json, create_pool=lambda _: pool, client=cluster, pause=PAUSES.append
        )
        until(lambda: supervisor.state()[0] == "ended")
        return pool

    return to_the_end


@pytest.fixture
def stop_first_group(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], None]:
    """People stop the job while its first group trains."""

    def arrange(stop: Any) -> None:
        start_group = FakePool.start_group

        def start_and_stop(pool: FakePool, *arguments: Any) -> None:
            cluster.call("order", JOB, DesiredState(version=1, stop=stop))
            start_group(pool, *arguments)

        monkeypatch.setattr(FakePool, "start_group", start_and_stop)

    return arrange


def the_end(storage: Path) -> EndRecord:
    found = read_end(storage)
    assert found is not None
    return found[0]


def recorded(storage: Path, kind: str) -> list[Any]:
    return [item.payload for item in read_records(storage) if item.payload.kind == kind]


def test_a_group_that_completes_ends_the_job(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    pool = run("completed")
    assert (the_end(tmp_path), pool.generations) == (COMPLETED, [1])
    assert cluster.held() == [note(1), COMPLETED]


def test_the_end_file_holds_all_records_of_all_generations(run: Run, tmp_path: Path) -> None:
    run(LOST, LOST, "completed")
    _, history = read_end(tmp_path)
    assert [record.payload.kind for record in history.records] == ["checkpoint", "failure"] * 2 + [
        "checkpoint",
        "end",
    ]


def test_a_supervisor_keeps_a_summary_of_the_generations_that_are_over(
    run: Run, tmp_path: Path
) -> None:
    run(LOST, "completed")
    rows = (tmp_path / "records" / "summary.jsonl").read_text().split()
    # the last generation is the end's.
    assert [json.loads(row)["generation"] for row in rows] == list(
        range(1, newest_generation(tmp_path))
    )


def test_every_group_is_a_generation_newer_than_what_was_said_of_the_last(
    run: Run, tmp_path: Path
) -> None:
    pool = run(LOST, RAISED, "completed")
    failures = [
        item.generation for item in read_records(tmp_path) if item.payload.kind == "failure"
    ]
    told = [
        generation
        for pair in zip(pool.generations, [*failures, 99], strict=True)
        for generation in pair
    ]
    assert told == sorted(set(told))


def test_lost_workers_spend_no_budget(run: Run, tmp_path: Path) -> None:
    run(*[LOST] * 10, "completed", max_failures=0)
    assert the_end(tmp_path) == COMPLETED


def test_the_same_error_at_the_same_step_twice_fails_the_job(run: Run, tmp_path: Path) -> None:
    pool = run(RAISED)
    end = the_end(tmp_path)
    assert (end.status, end.reason, len(pool.generations)) == ("FAILED", "TASK_RAISED", 2)
    assert "the task raised in step 3 (epoch 0): ValueError: no such label" in end.message
    assert [failure.step for failure in recorded(tmp_path, "failure")] == [3, 3]


def test_a_task_that_was_trained_is_tried_again_although_its_records_are_gone(
    run: Run, tmp_path: Path
) -> None:
    absent = dict.fromkeys(range(2), TaskRaised(None, None, "OSError: no such data"))
    elsewhere = CheckpointSpec(storage=f"file://{tmp_path}/elsewhere")
    pool = run(absent, "completed", saved_step=7, checkpoint=elsewhere)
    assert (the_end(tmp_path), len(pool.generations)) == (COMPLETED, 2)


def test_a_loss_that_is_not_finite_fails_the_job_at_once(run: Run, tmp_path: Path) -> None:
    pool = run(dict.fromkeys(range(2), LossNotFinite(9, 0, 10)))
    assert (the_end(tmp_path).reason, pool.generations) == ("LOSS_NOT_FINITE", [1])


def test_a_spent_budget_fails_the_job(run: Run, tmp_path: Path) -> None:
    errors: list[Outcome] = [{0: TaskRaised(step, 0, "ValueError: no")} for step in range(3)]
    run(*errors, max_failures=2)
    assert the_end(tmp_path).reason == "TOO_MANY_FAILURES"


def test_groups_that_lose_a_process_again_and_again_end_the_job(run: Run, tmp_path: Path) -> None:
    pool = run(LOST, note_progress=False)
    assert (the_end(tmp_path).reason, len(pool.generations)) == ("NO_PROGRESS", 6)


def test_a_group_that_was_stopped_for_a_cancel_ends_the_job(
    run: Run, tmp_path: Path, stop_first_group: Any
) -> None:
    stop_first_group("cancel")
    pool = run("stopped")
    assert (the_end(tmp_path).status, the_end(tmp_path).message) == (
        "CANCELLED",
        "cancelled; its state was saved",
    )
    assert pool.generations == [1]


def test_a_job_that_is_cancelled_without_a_checkpoint_does_not_say_that_it_was_saved(
    run: Run, tmp_path: Path, stop_first_group: Any
) -> None:
    stop_first_group("cancel")
    run("unsaved", note_progress=False)
    assert the_end(tmp_path).message == "cancelled; no checkpoint was saved"


def test_a_group_that_was_stopped_for_a_pause_ends_the_attempt(
    run, cluster, tmp_path, stop_first_group
) -> None:
    stop_first_group("pause")
    run("stopped")
    assert read_end(tmp_path) is None
    assert isinstance(cluster.held()[-1], PausedRecord)
    assert run("completed").generations == []  # a supervisor that Ray restarts does not go on


def test_a_cancelled_job_starts_no_worker_group(
    run: Run, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.call("order", JOB, DesiredState(version=1, stop="cancel"))
    assert run("completed").generations == []
    assert the_end(tmp_path).reason == "CANCELLED_BY_USER"


def test_a_supervisor_that_starts_again_after_the_end_does_nothing(
    run: Run, tmp_path: Path
) -> None:
    run(RAISED)
    before = (tmp_path / "end.json").read_bytes()
    assert run("completed").generations == []
    assert (tmp_path / "end.json").read_bytes() == before


def test_a_supervisor_that_died_before_the_end_file_only_writes_it(
    run: Run, tmp_path: Path
) -> None:
    journal(tmp_path).write(EndRecord(status="FAILED", reason="TASK_RAISED"))
    assert run("completed").generations == []
    assert the_end(tmp_path).reason == "TASK_RAISED"
    assert len(recorded(tmp_path, "end")) == 1


def test_a_supervisor_that_starts_again_remembers_what_was_spent(run: Run, tmp_path: Path) -> None:
    journal(tmp_path).write(
        FailureRecord(cause="job", rank=1, epoch=0, step=3, message=f"rank 1: {TASK_ERROR}")
    )
    assert len(run(RAISED).generations) == 1
    assert the_end(tmp_path).reason == "TASK_RAISED"


def test_a_supervisor_that_starts_again_says_what_its_workers_had_been_doing(
    run: Run, tmp_path: Path
) -> None:
    before = journal(tmp_path)
    before.write(STARTED)
    before.write(note(7))
    [previous_group] = run("completed").interruptions
    assert previous_group is not None
    assert (previous_group.cause, previous_group.world_size, previous_group.step) == (
        "recovery",
        STARTED.world_size,
        7,
    )
    [failure] = recorded(tmp_path, "failure")
    assert (failure.cause, failure.message.partition(",")[0]) == (
        "infrastructure",
        "the supervisor's process is gone",
    )


def test_a_supervisor_that_starts_again_asks_how_far_its_workers_had_been(
    run, cluster, tmp_path: Path
) -> None:
    before = journal(tmp_path)
    before.write(STARTED)
    cluster.call("post", JOB, token(before.generation), (), progress=progress(5))
    [previous_group] = run("completed").interruptions
    assert previous_group.step == progress(5).step


def test_a_supervisor_whose_storage_is_full_says_so_and_ends_the_job_when_it_is_not(
    run, tmp_path, monkeypatch
) -> None:
    refusals = [OSError("No space left on device")]

    def write(storage: Path, end: EndRecord) -> None:
        if refusals:
            raise refusals.pop()
        write_end(storage, end)

    monkeypatch.setattr(supervisor_module, "write_end", write)
    pool = run("completed")
    assert (pool.generations, PAUSES) == ([1], [5.0])
    assert (the_end(tmp_path), len(recorded(tmp_path, "end"))) == (COMPLETED, 1)


def test_what_the_supervisor_says_is_in_the_jobs_log(run: Run, cluster: FakeCluster) -> None:
    run(LOST, "completed")
    lines = [line.text for line in cluster.drain().logs if line.rank is None]
    assert any(
        "the process of rank 0 is gone; the job continues from its newest checkpoint" in line
        for line in lines
    )


RETRY = {"attempt": 2, "retried_attempt": 1}
"""Fields of the launch of an attempt that people ordered after the first one had ended the job."""


def test_a_retried_job_trains_on_after_its_end_and_ends_anew_with_its_whole_history(
    run: Run, tmp_path: Path
) -> None:
    ended = run(RAISED).generations
    retried = run("completed", **RETRY).generations
    assert (the_end(tmp_path), len(retried)) == (COMPLETED, 1)
    assert retried[0] > ended[-1]
    _, history = read_end(tmp_path)
    ends = [
        (record.attempt, record.payload.status)
        for record in history.records
        if record.payload.kind == "end"
    ]
    assert ends == [(1, "FAILED"), (2, "SUCCEEDED")]


def test_a_retried_job_has_its_whole_budget_of_failures_again(run: Run, tmp_path: Path) -> None:
    errors: list[Outcome] = [{0: TaskRaised(step, 0, "ValueError: no")} for step in range(5)]
    run(*errors[:3], max_failures=2)
    assert the_end(tmp_path).reason == "TOO_MANY_FAILURES"
    run(*errors[3:], "completed", max_failures=2, **RETRY)
    assert the_end(tmp_path) == COMPLETED


def test_a_supervisor_of_a_retry_that_has_ended_does_not_go_on(run: Run, tmp_path: Path) -> None:
    run(RAISED)
    run("completed", **RETRY)
    assert run("completed", **RETRY).generations == []


def test_an_attempt_that_is_no_retry_does_not_go_on_after_the_end(run: Run, tmp_path: Path) -> None:
    run(RAISED)
    assert run("completed", attempt=2).generations == []
    assert the_end(tmp_path).reason == "TASK_RAISED"


@pytest.mark.parametrize("is_late", [False, True])
def test_an_engine_that_cannot_run_ends_the_job_with_its_sentence(
    cluster: FakeCluster, tmp_path: Path, is_late: bool
) -> None:
    started = launch(tmp_path)

    def create(_: Launch) -> FakePool:
        if not is_late:
            raise EngineUnavailable("needs pyarrow")
        pool = FakePool(started, ["completed"], True)
        pool.poll = fail
        return pool

    def fail(timeout_s: float) -> None:
        raise EngineUnavailable("needs pyarrow")

    supervisor = Supervisor(
        started.model_dump_json(), create_pool=create, client=cluster, pause=PAUSES.append
    )
    until(lambda: supervisor.state()[0] == "ended")
    assert the_end(tmp_path) == EndRecord(
        status="FAILED", reason="START_FAILED", message="needs pyarrow"
    )


def test_on_an_unknown_ray_an_attempt_runs_on_plain_actors_and_says_why(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.99.0")
    made: list[Launch] = []

    def create(given: Launch) -> FakePool:
        made.append(given)
        return FakePool(given, ["completed"], True)

    supervisor = Supervisor(
        launch(tmp_path).model_dump_json(),
        create_pool=create,
        client=cluster,
        pause=PAUSES.append,
    )
    until(lambda: supervisor.state()[0] == "ended")
    assert [one.spec.workers.engine for one in made] == ["actors"]
    lines = [line.text for line in cluster.drain().logs if line.rank is None]
    assert any("Ray 2.99.0 is installed, and the ray-train engine was" in line for line in lines)


def swap(here: Path) -> None:
    """Mount or unmount the storage, whose files are beside it while it is not mounted."""
    away, other = here.with_name("away"), here.with_name("other")
    if away.exists():
        here.rename(other)
        away.rename(here)
    else:
        here.rename(away)
        here.mkdir()


@pytest.fixture
def unmounted(cluster: FakeCluster, tmp_path: Path) -> Path:
    """The directory of a job that has trained and saved, which is not mounted."""
    here = tmp_path / "job"
    here.mkdir()
    for payload in (STARTED, note(7)):
        journal(here).write(payload)
    swap(here)
    return here


def begin(
    cluster: FakeCluster, here: Path, on_pause: Callable[[Supervisor], object], *, attempt: int = 2
) -> FakePool:
    """Run an attempt that knows of seven saved steps to its end; `on_pause` hears each pause."""
    started = launch(here).model_copy(update={"attempt": attempt, "saved_step": 7})
    pool = FakePool(started, ["completed"], True)
    found: list[Supervisor] = []

    def pause(_: float) -> None:
        until(lambda: bool(found))
        on_pause(found[0])

    supervisor = Supervisor(
        started.model_dump_json(), create_pool=lambda _: pool, client=cluster, pause=pause
    )
    found.append(supervisor)
    until(lambda: supervisor.state()[0] == "ended")
    return pool


def test_a_job_that_has_saved_steps_waits_until_its_storage_is_mounted(
    cluster: FakeCluster, unmounted: Path
) -> None:
    states: list[tuple[str, str]] = []

    def mount(supervisor: Supervisor) -> None:
        states.append(supervisor.state()[:2])
        assert list(unmounted.iterdir()) == []
        if len(states) == 3:
            swap(unmounted)

    pool = begin(cluster, unmounted, mount)
    assert {phase for phase, _ in states} == {"waiting"}
    assert f"has saved 7 steps, and nothing of it is in {unmounted};" in states[0][1]
    assert the_end(unmounted) == COMPLETED
    assert pool.generations == [3], "newer than what the storage has"


def test_a_job_can_be_paused_while_its_storage_is_not_mounted(
    cluster: FakeCluster, unmounted: Path
) -> None:
    pool = begin(
        cluster,
        unmounted,
        lambda _: cluster.call("order", JOB, DesiredState(version=1, stop="pause")),
    )
    assert pool.generations == []
    assert [item.payload.kind for item in read_records(unmounted)] == ["paused"]


@pytest.fixture
def full_storage(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Files in which nothing can be written while the set holds `full`."""
    full, open_file = {"full"}, Path.open

    def open_or_refuse(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if full and mode != "r" and mode != "rb":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return open_file(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_or_refuse)
    return full


def test_a_supervisor_that_cannot_record_a_failure_waits_for_its_storage(
    cluster: FakeCluster, tmp_path: Path, full_storage: set[str]
) -> None:
    full_storage.clear()
    journal(tmp_path).write(STARTED)
    full_storage.add("full")
    states: list[Any] = []

    def free_at_last(supervisor: Supervisor) -> None:
        states.append(supervisor.state())
        if len(states) == 3:
            full_storage.clear()

    pool = begin(cluster, tmp_path, free_at_last, attempt=1)
    assert {(phase, placed) for phase, _, placed, _ in states} == {("waiting", ())}
    assert "No space left on device" in states[0][1]
    assert (the_end(tmp_path), len(pool.generations)) == (COMPLETED, 1)
    [failure] = recorded(tmp_path, "failure")  # of the group that an earlier process ran
    assert (failure.is_storage, "the supervisor's process is gone" in failure.message) == (
        False,
        True,
    )
