"""Secrets of users, and the environment variables that jobs get from them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine, event

from accordion_service.api.app import create_app
from accordion_service.domain.access import FULL_ACCESS
from accordion_service.domain.jobs.loggers import LoggerState
from accordion_service.domain.jobs.statuses import Status
from accordion_service.loggers.process import LoggerProcess
from accordion_service.settings.secret_box import SecretBox
from accordion_service.settings.settings import load_settings
from accordion_service.store.writes.jobs import JobSubmission
from accordion_service.store.writes.logger_queue import LoggerQueue
from accordion_service.store.writes.secrets import MAX_SECRETS, SecretStore
from tests.api.conftest import LOCAL, refused_early
from tests.api.team import ADMIN, JOBS, PLAN, Team
from tests.api.world import DIGITS, World

SECRETS = "/api/v1/secrets"
VALUE = "hf_nobody-may-see-this"
TOKEN = {"env": {"HF_HOME": "/mnt/hf", "HF_TOKEN": {"secret": "hf-token"}}}
LOGGERS = [{"kind": "tensorboard"}, {"kind": "wandb", "project": "p", "api_key": {"secret": "wb"}}]
FORCE = {"force": "true"}
PATHS = (SECRETS, JOBS, "/api/v1/audit", "/metrics", "/api/v1/queue", "/cluster")


def put(client: TestClient, value: str = VALUE, name: str = "hf-token") -> Any:
    return client.put(f"{SECRETS}/{name}", json={"value": value})


def launched_env(world: World, job_id: str) -> dict[str, str]:
    return world.runtime.jobs[job_id].launch.env


def files_below(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_workers_get_the_value_and_nobody_else_sees_it(
    client: TestClient, world: World, tmp_path: Path
) -> None:
    assert put(client).json()["name"] == "hf-token"
    job_id = client.post(JOBS, json={**DIGITS, **TOKEN}).json()["id"]
    world.train(job_id)
    assert launched_env(world, job_id) == {"HF_HOME": "/mnt/hf", "HF_TOKEN": VALUE}
    shown = client.get(f"{JOBS}/{job_id}").json()["spec"]["env"]
    assert shown == TOKEN["env"]
    page = client.get(f"/jobs/{job_id}").text
    answers = [client.get(path).text for path in PATHS]
    assert "hf-token" in page + "".join(answers)
    assert VALUE not in page + "".join(answers)
    assert VALUE.encode() not in files_below(tmp_path), "neither the database nor a file has it"
    assert world.settings.home_secrets_key.stat().st_mode & 0o077 == 0


def test_a_repeated_submission_needs_its_secret_no_more(client: TestClient, world: World) -> None:
    put(client)
    key = {"Idempotency-Key": "once"}
    spec = {**DIGITS, **TOKEN}
    job_id = client.post(JOBS, json=spec, headers=key).json()["id"]
    clone_key, path = {"Idempotency-Key": "again"}, f"{JOBS}/{job_id}/clone"
    clone_id = client.post(path, json={}, headers=clone_key).json()["id"]
    for one in (job_id, clone_id):
        world.train(one)
    assert client.delete(f"{SECRETS}/hf-token", params=FORCE).status_code == 200
    for answer, made in (
        (client.post(JOBS, json=spec, headers=key), job_id),
        (client.post(path, json={}, headers=clone_key), clone_id),
    ):
        assert (answer.status_code, answer.json().get("id")) == (200, made), answer.text
    assert client.post(JOBS, json=spec).status_code == 422
    changed = client.post(JOBS, json={**spec, "priority": 1}, headers=key)
    assert changed.json()["errors"][0]["pointer"] == "header/idempotency-key"


def test_secrets_are_listed_replaced_and_removed(client: TestClient, world: World) -> None:
    put(client, name="b")
    put(client, name="a")
    world.clock.now += 60
    new = put(client, "another value", name="b").json()
    listed = client.get(SECRETS).json()["items"]
    assert [one["name"] for one in listed] == ["a", "b"]
    assert listed[1] == new
    assert listed[0]["set_at"] < listed[1]["set_at"]
    assert client.delete(f"{SECRETS}/a").json() == listed[0]
    gone = client.delete(f"{SECRETS}/a")
    assert (gone.status_code, gone.json()["detail"]) == (
        404,
        "user 'admin' has no secret 'a'; 'accordion secret list' (GET /api/v1/secrets) lists yours",
    )


def test_an_attempt_gets_the_value_at_its_start(client: TestClient, world: World) -> None:
    put(client, "value of the first attempt")
    job_id = client.post(JOBS, json={**DIGITS, **TOKEN, "training": {"epochs": 400}}).json()["id"]
    world.train(job_id)
    put(client, "value of the second attempt")
    world.pause(job_id)
    world.turn_until(lambda: world.job(job_id).status == Status.PAUSED)
    world.resume(job_id)
    world.train(job_id)
    assert launched_env(world, job_id)["HF_TOKEN"] == "value of the second attempt"


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        (JOBS, {**DIGITS, **TOKEN}, "/env/HF_TOKEN/secret"),
        (f"{JOBS}?dry_run=true", {**DIGITS, **TOKEN}, "/env/HF_TOKEN/secret"),
        (
            "/api/v1/plans",
            {**PLAN, "spec": {**PLAN["spec"], **TOKEN}},
            "/spec/env/HF_TOKEN/secret",
        ),
    ],
)
def test_a_spec_with_an_unknown_secret_is_refused(
    client: TestClient, path: str, body: dict[str, Any], pointer: str
) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["pointer"].endswith(pointer)
    assert error["detail"] == (
        "user 'admin' has no secret 'hf-token'; set it with 'accordion secret set hf-token'"
        " (PUT /api/v1/secrets/hf-token)"
    )


def test_secrets_belong_to_their_user(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    assert team.call(ada, "PUT", f"{SECRETS}/hf-token", json={"value": VALUE}).status_code == 200
    for other in (bob, ADMIN):
        assert team.call(other, "GET", SECRETS).json()["items"] == []
        assert team.call(other, "DELETE", f"{SECRETS}/hf-token").status_code == 404
        assert team.call(other, "POST", JOBS, json={**DIGITS, **TOKEN}).status_code == 422
    job = team.call(ada, "POST", JOBS, json={**DIGITS, **TOKEN})
    assert job.status_code == 201
    clone = team.call(ADMIN, "POST", f"{JOBS}/{job.json()['id']}/clone", json={})
    assert clone.status_code == 422, "a clone has the secrets of its own owner"
    assert "user 'admin' has no secret" in clone.text
    [entry] = team.audit(action="secret.set")
    assert (entry["user"], entry["subject"]) == ("ada", "hf-token")
    assert VALUE not in json.dumps(team.audit())


def test_a_job_whose_secret_was_removed_fails_and_is_retried(
    client: TestClient, world: World
) -> None:
    put(client)
    job_id = client.post(JOBS, json={**DIGITS, **TOKEN}).json()["id"]
    client.delete(f"{SECRETS}/hf-token", params=FORCE)
    world.turn_until(lambda: world.job(job_id).status == Status.FAILED)
    assert world.job(job_id).message == (
        "user 'admin' has no secret 'hf-token'; set it with 'accordion secret set hf-token'"
        " (PUT /api/v1/secrets/hf-token), then retry the job"
    )
    put(client)
    assert client.post(f"{JOBS}/{job_id}/retry").status_code == 202
    world.train(job_id)
    assert launched_env(world, job_id)["HF_TOKEN"] == VALUE


@pytest.mark.parametrize(
    ("name", "part"), [("hf-token", TOKEN), ("wb", {"loggers": LOGGERS})], ids=["env", "loggers"]
)
def test_a_secret_that_an_unfinished_job_uses_is_removed_only_by_force(
    team: Team, name: str, part: dict[str, Any]
) -> None:
    ada = team.user("ada")
    team.call(ada, "PUT", f"{SECRETS}/{name}", json={"value": VALUE})
    job_id = team.call(ada, "POST", JOBS, json={**DIGITS, **part, "name": "train"}).json()["id"]
    refused = team.call(ada, "DELETE", f"{SECRETS}/{name}")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        f"1 unfinished job uses the secret {name!r}: train ({job_id}); wait until it has ended,"
        f" or cancel it. 'accordion secret remove {name} --force' (DELETE"
        f" /api/v1/secrets/{name}?force=true) removes it now, and what needs it then fails",
    )
    assert team.audit(action="secret.removed") == []
    removed = team.call(ada, "DELETE", f"{SECRETS}/{name}", params=FORCE)
    assert removed.status_code == 200
    [entry] = team.audit(action="secret.removed")
    assert (entry["subject"], entry["before"]) == (
        name,
        {"num_jobs": 1, "jobs": [job_id]},
    )


@pytest.fixture
def _no_logger_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing serves loggers."""
    monkeypatch.setattr(LoggerProcess, "start_if_due", lambda _: None)


@pytest.mark.usefixtures("_no_logger_process")
@pytest.mark.parametrize("state", [LoggerState.DONE, LoggerState.GIVEN_UP])
def test_a_secret_is_kept_until_the_loggers_of_an_ended_job_are_done(
    client: TestClient, world: World, state: LoggerState
) -> None:
    put(client)
    put(client, name="wb")
    spec = {**DIGITS, **TOKEN, "loggers": LOGGERS, "name": "train"}
    job_id = client.post(JOBS, json=spec).json()["id"]
    world.finish(job_id)
    refused = client.delete(f"{SECRETS}/wb")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        f"1 ended job has loggers that still need the secret 'wb': train ({job_id}); wait until"
        " they have sent everything. 'accordion secret remove wb --force' (DELETE"
        " /api/v1/secrets/wb?force=true) removes it now, and what needs it then fails",
    )
    queue = LoggerQueue(world.database, world.clock)
    turn = queue.claim((job_id, 1))
    assert turn is not None
    queue.record_failure(turn, "", state=state, next_s=None)
    assert client.delete(f"{SECRETS}/wb").is_success, "the other logger has no secret"
    assert client.delete(f"{SECRETS}/hf-token").is_success, "no logger has this one"


@pytest.mark.usefixtures("_no_logger_process")
def test_unfinished_jobs_and_loggers_that_need_a_secret_are_told_together(
    client: TestClient, world: World
) -> None:
    put(client, name="wb")
    spec = {**DIGITS, "loggers": [*LOGGERS, LOGGERS[1]]}
    ended = client.post(JOBS, json={**spec, "name": "old"}).json()["id"]
    world.finish(ended)
    unfinished = client.post(JOBS, json={**spec, "name": "new"}).json()["id"]
    detail = client.delete(f"{SECRETS}/wb").json()["detail"]
    assert detail.startswith(
        f"1 unfinished job uses the secret 'wb': new ({unfinished}); wait until it has ended, or"
        f" cancel it. 1 ended job has loggers that still need the secret 'wb': old ({ended}); wait"
    )
    client.delete(f"{SECRETS}/wb", params=FORCE)
    [entry] = client.get("/api/v1/audit", params={"action": "secret.removed"}).json()["items"]
    assert entry["before"] == {"num_jobs": 2, "jobs": [unfinished, ended]}


def test_a_secret_is_removed_if_its_jobs_ended_or_are_those_of_others(team: Team) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    for user in (ada, bob):
        team.call(user, "PUT", f"{SECRETS}/hf-token", json={"value": VALUE})
        team.call(user, "PUT", f"{SECRETS}/other", json={"value": VALUE})
    ended = team.call(ada, "POST", JOBS, json={**DIGITS, **TOKEN}).json()["id"]
    team.call(ada, "POST", f"{JOBS}/{ended}/cancel")
    team.call(bob, "POST", JOBS, json={**DIGITS, **TOKEN})
    for user, name in ((ada, "hf-token"), (bob, "other")):
        assert team.call(user, "DELETE", f"{SECRETS}/{name}").status_code == 200
    assert [entry["before"] for entry in team.audit(action="secret.removed")] == [None, None]


def submit_seven(client: TestClient, world: World) -> list[str]:
    """Submit jobs that use a secret, one after the other; return their IDs."""
    put(client)
    jobs = []
    for number in range(7):
        world.clock.now += 1
        spec = {**DIGITS, **TOKEN, "name": f"job-{number}"}
        jobs.append(client.post(JOBS, json=spec).json()["id"])
    return jobs


def test_the_audit_log_names_the_oldest_jobs_whose_secret_was_removed(
    client: TestClient, world: World
) -> None:
    jobs = submit_seven(client, world)
    client.delete(f"{SECRETS}/hf-token", params=FORCE)
    [entry] = client.get("/api/v1/audit", params={"action": "secret.removed"}).json()["items"]
    assert entry["before"] == {"num_jobs": 7, "jobs": jobs[:5]}


def test_the_refusal_to_remove_a_secret_names_the_oldest_jobs(
    client: TestClient, world: World
) -> None:
    submit_seven(client, world)
    detail = client.delete(f"{SECRETS}/hf-token").json()["detail"]
    assert detail.startswith("7 unfinished jobs use the secret 'hf-token': job-0 (")
    assert " and 2 more; wait until they have ended, or cancel them. 'accordion" in detail
    assert "job-5" not in detail


def test_a_secret_is_not_removed_if_a_job_that_uses_it_is_submitted_meanwhile(
    client: TestClient, world: World
) -> None:
    submitted: list[str] = []

    def submit(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        writes = statement == "BEGIN IMMEDIATE" or ("secrets" in statement and "FOR" in statement)
        if writes and not submitted:
            submitted.append("")
            submitted.append(world.submit(**TOKEN))

    put(client)
    event.listen(Engine, "before_cursor_execute", submit)
    try:
        refused = client.delete(f"{SECRETS}/hf-token")
    finally:
        event.remove(Engine, "before_cursor_execute", submit)
    assert refused.status_code == 409
    assert submitted[-1] in refused.json()["detail"]


@pytest.mark.parametrize("part", [TOKEN, {"loggers": LOGGERS}], ids=["env", "loggers"])
@pytest.mark.parametrize("clones", [False, True])
def test_a_job_whose_secret_is_removed_while_it_is_submitted_is_refused_as_before(
    client: TestClient,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    part: dict[str, Any],
    *,
    clones: bool,
) -> None:
    name = "hf-token" if part is TOKEN else "wb"
    job_id = client.post(JOBS, json=DIGITS).json()["id"]
    path, body = (f"{JOBS}/{job_id}/clone", {"spec": part}) if clones else (JOBS, DIGITS | part)
    without = client.post(path, json=body)
    put(client, name=name)
    submit = JobSubmission.submit

    def remove_and_submit(*given: Any, **more: Any) -> Any:
        SecretStore(world.database, world.clock).remove_secret(FULL_ACCESS, name)
        return submit(*given, **more)

    monkeypatch.setattr(JobSubmission, "submit", remove_and_submit)
    refused = client.post(path, json=body)
    assert (refused.status_code, refused.json()["errors"]) == (422, without.json()["errors"])
    assert len(client.get(JOBS).json()["items"]) == 1


def test_a_plan_is_measured_with_the_variables(client: TestClient, world: World) -> None:
    put(client)
    made = client.post("/api/v1/plans", json={**PLAN, "spec": {**PLAN["spec"], **TOKEN}})
    assert made.status_code == 202, made.text
    world.turn(2)
    [measured] = world.runtime.measured
    assert measured.env == {"HF_HOME": "/mnt/hf", "HF_TOKEN": VALUE}


def test_a_plan_that_is_measured_needs_its_secrets_no_more(
    client: TestClient, world: World
) -> None:
    put(client)
    plan = client.post("/api/v1/plans", json={**PLAN, "spec": {**PLAN["spec"], **TOKEN}}).json()
    world.turn_until(lambda: bool(world.runtime.measured))
    client.delete(f"{SECRETS}/hf-token")
    world.turn(2)
    measured = client.get(f"/api/v1/plans/{plan['id']}").json()
    assert measured["status"] == "SUCCEEDED", measured


@pytest.mark.parametrize(
    ("name", "body", "detail"),
    [
        ("hf-token", {}, "value"),
        ("hf-token", {"value": ""}, "at least 1 character"),
        ("hf-token", {"value": "x" * 32_001}, "at most 32000 characters"),
        ("hf-token", {"value": "seen\0"}, "NUL"),
        ("hf-token", {"value": ["seen"]}, "should be a valid string"),
        ("hf-token", {"value": "x", "note": "seen"}, "unknown key 'note'"),
        ("hf token", {"value": "x"}, "is not the name of a secret; use letters"),
        ("x" * 64, {"value": "x"}, "63"),
    ],
)
@refused_early
def test_a_wrong_secret_is_refused(
    client: TestClient, name: str, body: dict[str, Any], detail: str
) -> None:
    refused = client.put(f"{SECRETS}/{name}", json=body)
    assert refused.status_code == 422
    assert detail in refused.text
    assert "seen" not in refused.text


def test_a_user_has_a_limited_number_of_secrets(client: TestClient) -> None:
    for number in range(MAX_SECRETS):
        assert put(client, name=f"s{number}").status_code == 200
    full = put(client, name="one-more")
    assert full.status_code == 409
    assert "has 100 secrets, the limit is 100" in full.json()["detail"]
    assert put(client, "a new value", name="s0").status_code == 200


def test_secrets_that_are_set_at_once_stay_within_the_limit(client: TestClient) -> None:
    for number in range(MAX_SECRETS - 1):
        put(client, name=f"s{number}")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: put(client, name=f"t{number}"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
    assert len(client.get(SECRETS).json()["items"]) == MAX_SECRETS


def test_a_key_that_cannot_be_written_or_is_too_short_is_reported(
    tmp_path: Path, database_url: str
) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    settings = load_settings(home=tmp_path, database_url=database_url, secrets_key_file=key)
    app = create_app(settings)
    with TestClient(app, base_url=LOCAL) as client:
        answer = put(client)
    app.state.accordion.database.close()
    assert answer.status_code == 503
    assert f"ACCORDION_SECRETS_KEY_FILE is {key}, which has 5 characters" in answer.text


def test_a_key_in_a_variable_is_used(
    monkeypatch: pytest.MonkeyPatch, client: TestClient, world: World
) -> None:
    key = "a key of the operators, in a variable"
    monkeypatch.setenv("ACCORDION_SECRETS_KEY", key)
    assert load_settings().secrets_key() == key
    box = SecretBox(key)
    assert box.decrypt(box.encrypt("ä\n")) == "ä\n"
    assert box.encrypt("x") != box.encrypt("x"), "equal values cannot be told by what is stored"
