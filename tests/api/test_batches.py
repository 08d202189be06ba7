"""Actions on all jobs with some labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accordion_service.api import batches
from accordion_service.domain.access import Role
from accordion_service.domain.jobs.statuses import Status
from accordion_service.store.reads.job_list import JobFilter
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.steering import CheckJob, JobLifecycle
from tests.api.team import ADMIN, JOBS, Team
from tests.api.world import DIGITS, World

ACTIONS = "/api/v1/job-actions"
SWEEP = {"labels": {"sweep": "lr"}, "training": {"epochs": 400}}


def act(client: TestClient, action: str, **more: Any) -> Any:
    body = {"action": action, "labels": {"sweep": "lr"}, **more}
    return client.post(ACTIONS, json=body).json()


def states(found: Any) -> list[tuple[str, str, str | None]]:
    return [(item["id"], item["status"], item["error"]) for item in found["items"]]


def test_all_jobs_with_a_label_are_paused_resumed_and_cancelled(
    client: TestClient, world: World
) -> None:
    running, other = world.submit(**SWEEP), world.submit(training={"epochs": 400})
    world.train(running)
    world.train(other)
    queued = world.submit(**SWEEP, workers={"min": 4, "max": 4})
    assert states(act(client, "pause")) == [
        (queued, Status.PAUSED, None),
        (running, Status.PAUSING, None),
    ]
    world.reach(running, Status.PAUSED)
    assert act(client, "pause")["items"] == [], "repeating has no effect"
    assert len(act(client, "resume")["items"]) == 2
    assert [status for _, status, _ in states(act(client, "cancel"))] == [Status.CANCELLED] * 2
    assert world.job(other).status == Status.RUNNING


def test_a_dry_run_lists_the_jobs_and_changes_nothing(client: TestClient, world: World) -> None:
    job_id = world.submit(**SWEEP)
    found = act(client, "cancel", dry_run=True)
    assert (states(found), found["more"]) == ([(job_id, Status.QUEUED, None)], False)
    assert world.job(job_id).version == 0


def test_jobs_need_all_labels(client: TestClient, world: World) -> None:
    both = world.submit(labels={"sweep": "lr", "seed": "1"})
    world.submit(**SWEEP)
    found = act(client, "cancel", labels={"sweep": "lr", "seed": "1"})
    assert [item["id"] for item in found["items"]] == [both]


def test_a_batch_without_labels_is_refused(client: TestClient) -> None:
    answer = client.post(ACTIONS, json={"action": "cancel", "labels": {}})
    assert (answer.status_code, "/labels" in answer.json()["detail"]) == (422, True)


def test_a_batch_leaves_out_the_jobs_that_the_caller_may_not_change(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    spec = {**DIGITS, "labels": {"sweep": "lr"}}
    hers = team.call(ada, "POST", JOBS, json=spec).json()["id"]
    his = team.call(bob, "POST", JOBS, json=spec).json()["id"]
    body = {"action": "pause", "labels": {"sweep": "lr"}}
    assert states(team.call(bob, "POST", ACTIONS, json=body).json()) == [(his, "PAUSED", None)]
    scopes = ["read", "read:all", "submit"]
    oscar = team.user("oscar", Role.OPERATOR, scopes=scopes)
    assert team.call(oscar, "POST", ACTIONS, json=body).json()["items"] == []
    admin = team.call(ADMIN, "POST", ACTIONS, json={**body, "owner": "ada"}).json()
    assert states(admin) == [(hers, "PAUSED", None)]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_batch_names_only_jobs_that_the_caller_may_see(team: Team, dry_run: bool) -> None:
    ada = team.user("ada")
    team.call(ada, "POST", JOBS, json={**DIGITS, "labels": {"sweep": "lr"}})
    oscar = team.user("oscar", Role.OPERATOR, scopes=["read", "submit", "write:all"])
    body = {"action": "cancel", "labels": {"sweep": "lr"}, "dry_run": dry_run}
    assert team.call(oscar, "POST", ACTIONS, json=body).json()["items"] == []
    found = team.call(ADMIN, "POST", ACTIONS, json={**body, "dry_run": True}).json()
    assert [item["status"] for item in found["items"]] == [Status.QUEUED]


def test_a_batch_needs_the_scope_read(team: Team) -> None:
    token = team.user("ada", scopes=["submit"])
    body = {"action": "cancel", "labels": {"sweep": "lr"}}
    refused = team.call(token, "POST", ACTIONS, json=body)
    assert refused.status_code == 403
    assert "needs the scope 'read'" in refused.json()["detail"]


def change_after_list(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Make a change after the next list of jobs is read, before anything is done with them."""
    read = JobReads.find

    def read_and_change(jobs: JobReads, wanted: JobFilter) -> list[JobRow]:
        rows = read(jobs, wanted)
        monkeypatch.setattr(JobReads, "find", read)
        change()
        return rows

    monkeypatch.setattr(JobReads, "find", read_and_change)


def set_column(world: World, job_id: str, **columns: Any) -> None:
    with world.database.write() as session:
        job = session.get_one(JobRow, job_id)
        for name, value in columns.items():
            setattr(job, name, value)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"labels": {"sweep": "kept"}}, "no longer has the label sweep:lr"),
        ({"owner": "bob"}, "no longer belongs to admin"),
        ({"archived": True}, "was archived meanwhile"),
    ],
)
def test_a_job_that_changes_after_it_was_listed_is_left_as_it_is(
    client: TestClient,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    error: str,
) -> None:
    job_id = client.post(JOBS, json={**DIGITS, "labels": {"sweep": "lr"}}).json()["id"]
    world.cancel(job_id)
    change_after_list(monkeypatch, lambda: set_column(world, job_id, **changed))
    (item,) = act(client, "change", owner="admin", change={"priority": 1})["items"]
    assert error in item["error"]
    assert world.job(job_id).priority == 50


def test_a_job_that_lost_its_label_after_it_was_listed_is_not_deleted(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit(**SWEEP)
    world.cancel(job_id)
    change_after_list(monkeypatch, lambda: set_column(world, job_id, labels={"keep": "yes"}))
    assert [error is None for *_, error in states(act(client, "delete"))] == [False]
    assert world.job(job_id).labels == {"keep": "yes"}


def test_a_batch_archives_a_job_that_was_archived_after_it_was_listed(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit(**SWEEP)
    world.cancel(job_id)
    change_after_list(monkeypatch, lambda: set_column(world, job_id, archived=True))
    assert states(act(client, "archive")) == [(job_id, Status.CANCELLED, None)]


def test_a_batch_with_ids_is_for_these_jobs_alone(client: TestClient, world: World) -> None:
    listed, unlabelled = world.submit(**SWEEP), world.submit()
    later = world.submit(**SWEEP)
    found = act(client, "cancel", ids=[listed, unlabelled])
    assert [job_id for job_id, *_ in states(found)] == [listed]
    assert world.job(later).status == Status.QUEUED


def act_on_all(client: TestClient, action: str, **more: Any) -> list[Any]:
    """Follow the cursors of a batch; return its answers."""
    answers = [act(client, action, **more)]
    while answers[-1]["more"]:
        answers.append(act(client, action, cursor=answers[-1]["next_cursor"], **more))
    return answers


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_batch_goes_on_after_jobs_that_refuse_it(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    monkeypatch.setattr(batches, "MAX_JOBS", 2)
    free = world.submit(**SWEEP)
    small = [
        world.submit(
            **SWEEP | {"training": {"global_batch": 16, "micro_batch": 16}}, workers={"max": 1}
        )
        for _ in range(3)
    ]
    answers = act_on_all(client, "resize", resize={"min": 2, "max": 2}, dry_run=dry_run)
    found = [states(answer) for answer in answers]
    assert [[job_id for job_id, *_ in items] for items in found] == [small[:0:-1], [small[0], free]]
    assert [answer["next_cursor"] is None for answer in answers] == [False, True]
    assert world.job(free).min_workers == (1 if dry_run else 2)


@pytest.mark.parametrize(
    ("labels", "priority", "num_changed"),
    [
        ({}, 7, 2),
        ({"team": "vision"}, None, 2),
        ({"team": None}, None, 1),
        ({"team": "audio", "sweep": "lr"}, None, 3),
        ({"team": "vision"}, 7, 3),
        ({"sweep": "lr"}, None, 0),
    ],
)
def test_a_change_is_for_the_jobs_that_differ(
    client: TestClient,
    world: World,
    labels: dict[str, str | None],
    priority: int | None,
    num_changed: int,
) -> None:
    world.submit(labels={"sweep": "lr", "team": "vision"})
    world.submit(**SWEEP, priority=7)
    world.submit(**SWEEP)
    change = {"labels": labels, "priority": priority}
    given = {"change": {name: value for name, value in change.items() if value}}
    planned = act(client, "change", **given, dry_run=True)["items"]
    done = act(client, "change", **given)["items"]
    assert (len(planned), len(done)) == (num_changed, num_changed)
    assert act(client, "change", **given)["items"] == []


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (OperationalError, "the database does not respond; try again in a moment"),
        (ProgrammingError, "the service failed; see its log for request "),
        (PoolTimeout, "the database does not respond; try again in a moment"),
    ],
)
def test_a_batch_names_what_it_did_before_the_database_failed(
    client: TestClient,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    error: type[SQLAlchemyError],
    detail: str,
) -> None:
    first, second, third = (world.submit(**SWEEP) for _ in range(3))
    cancel = JobLifecycle.cancel

    def fail_once(lifecycle: JobLifecycle, job_id: str, check: CheckJob, **more: Any) -> JobRow:
        if job_id == second:
            raise error("UPDATE", {}, Exception("canceling statement: lock timeout"))
        return cancel(lifecycle, job_id, check, **more)

    monkeypatch.setattr(JobLifecycle, "cancel", fail_once)
    found = act(client, "cancel")
    assert found["items"][1]["error"].startswith(detail)
    assert [(job_id, status) for job_id, status, _ in states(found)] == [
        (third, Status.CANCELLED),
        (second, Status.QUEUED),
    ]
    assert found["more"]
    rest = act(client, "cancel", cursor=found["next_cursor"])
    assert states(rest) == [(first, Status.CANCELLED, None)]


def test_a_batch_ends_when_its_time_is_up(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.submit(**SWEEP) for _ in range(3)]
    monkeypatch.setattr(batches, "MAX_BATCH_S", 0.0)
    answers = act_on_all(client, "cancel")
    assert [[job_id for job_id, *_ in states(answer)] for answer in answers] == [
        [job_id] for job_id in reversed(jobs)
    ]


def test_a_cursor_of_nothing_is_refused(client: TestClient) -> None:
    body = {"action": "cancel", "labels": {"sweep": "lr"}, "cursor": "none"}
    answer = client.post(ACTIONS, json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/cursor")


def test_all_jobs_with_a_label_are_changed_resized_retried_and_deleted(
    client: TestClient, world: World
) -> None:
    wide = {"min": 1, "max": 2}
    jobs = [world.submit(**SWEEP, workers={"min": 2, "max": 2}) for _ in range(2)]
    other = world.submit(training={"epochs": 400})
    change = {"priority": 20, "labels": {"team": "vision"}}
    assert len(act(client, "change", change=change)["items"]) == 2
    assert act(client, "change", change=change)["items"] == [], "repeating has no effect"
    assert len(act(client, "resize", resize=wide)["items"]) == 2
    assert act(client, "resize", resize=wide)["items"] == []
    row = world.job(jobs[0])
    assert (row.priority, row.labels["team"], row.min_workers) == (20, "vision", 1)
    act(client, "cancel")
    assert [status for _, status, _ in states(act(client, "retry"))] == [Status.QUEUED] * 2
    act(client, "cancel")
    assert client.post(f"{JOBS}/{jobs[0]}/archive").status_code == 200
    assert {job_id for job_id, *_ in states(act(client, "delete"))} == set(jobs)
    assert [world.jobs.get(job_id) for job_id in jobs] == [None, None]
    assert world.job(other).priority == 50
    actions = [row["action"] for row in client.get("/api/v1/audit").json()["items"]]
    assert [
        actions.count(f"job.{one}") for one in ("changed", "resized", "retried", "deleted")
    ] == [
        2,
        2,
        2,
        2,
    ]


def test_a_job_that_refuses_a_new_size_does_not_stop_the_others(
    client: TestClient, world: World
) -> None:
    small = world.submit(
        **SWEEP | {"training": {"global_batch": 16, "micro_batch": 16}}, workers={"max": 1}
    )
    large = world.submit(**SWEEP)
    found = {
        item["id"]: item["error"]
        for item in act(client, "resize", resize={"min": 2, "max": 2})["items"]
    }
    assert found[large] is None
    assert "micro" in found[small]


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("change", {}),
        ("change", {"change": {}}),
        ("resize", {}),
        ("cancel", {"change": {"priority": 1}}),
        ("resize", {"resize": {"min": 1, "max": 2}, "change": {"priority": 1}}),
    ],
)
def test_an_action_needs_its_own_values_and_no_others(
    client: TestClient, action: str, given: dict[str, Any]
) -> None:
    body = {"action": action, "labels": {"sweep": "lr"}, **given}
    assert client.post(ACTIONS, json=body).status_code == 422
