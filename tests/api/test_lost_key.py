"""Secrets that the key of the service does not decrypt: it was lost, or another one is used."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from accordion_service.domain.access import FULL_ACCESS, Role
from accordion_service.domain.jobs.statuses import Reason, Status
from accordion_service.job_inputs.environment import JobEnv
from accordion_service.store.tables.models import JobRow
from accordion_service.store.writes.webhooks import RequestedWebhook, WebhookStore
from tests.api.team import ADMIN, JOBS, Team
from tests.api.world import DIGITS, World

SECRETS, QUEUE, HOOKS = "/api/v1/secrets", "/api/v1/queue", "/api/v1/webhooks"
VALUE, OTHER_KEY = "hf_nobody-may-see-this", "another key that is long enough for it"
TOKEN = {"env": {"HF_TOKEN": {"secret": "hf-token"}}}
LONG = {"training": {"epochs": 400}}
PAIR = {"min": 2, "max": 2}
FORCE = {"force": "true"}
lost_keys = pytest.mark.parametrize("key", [None, OTHER_KEY], ids=["no key", "another key"])


def put(client: TestClient, name: str = "hf-token", **more: Any) -> Any:
    return client.put(f"{SECRETS}/{name}", json={"value": VALUE}, **more)


def submit(client: TestClient, **changes: Any) -> str:
    made = client.post(JOBS, json={**DIGITS, **LONG, **TOKEN, **changes})
    assert made.status_code == 201, made.text
    job_id: str = made.json()["id"]
    return job_id


def replace_key(world: World, key: str | None) -> str:
    """Remove the key of the service, or put another one in its place; return it as it was."""
    file = world.settings.home_secrets_key
    right = file.read_text()
    file.unlink()
    if key is not None:
        file.write_text(key)
    return right


def wait_for_secret(world: World, job_id: str) -> JobRow:
    """Turn until the job waits for a secret."""
    world.turn_until(lambda: world.job(job_id).reason == Reason.WAITING_FOR_SECRET)
    return world.job(job_id)


@pytest.fixture
def stuck(client: TestClient, world: World) -> str:
    """A job that is ahead of all and fills the cluster, and whose secret cannot be decrypted."""
    put(client)
    job_id = submit(client, priority=100, workers={"min": 4, "max": 4})
    replace_key(world, OTHER_KEY)
    return job_id


@lost_keys
def test_a_job_whose_secret_cannot_be_decrypted_is_not_started(
    client: TestClient, world: World, key: str | None
) -> None:
    put(client)
    job_id = submit(client)
    replace_key(world, key)
    job = wait_for_secret(world, job_id)
    world.turn(20)
    assert (job.status, job.workers, job.attempt) == (Status.QUEUED, 0, 0)
    assert world.job(job_id).version == job.version, "nothing changes while it waits"
    assert world.runtime.started == []


def test_a_job_says_which_secret_cannot_be_decrypted_and_what_to_do(
    client: TestClient, world: World, stuck: str
) -> None:
    message = wait_for_secret(world, stuck).message
    assert message == (
        "the secret 'hf-token' of user 'admin' cannot be decrypted (encrypted with another key than"
        " the scheduler has now); set it again with 'accordion secret set hf-token', or give the"
        " scheduler the key of the api (ACCORDION_SECRETS_KEY_FILE) or, after a restore, the file"
        " secrets.key of the old home directory"
    )
    why = client.get(f"{JOBS}/{stuck}/why").json()["sentence"]
    assert why == f"The job does not train, it is QUEUED: {message}"


def test_a_job_names_all_secrets_that_cannot_be_decrypted(client: TestClient, world: World) -> None:
    for name in ("b", "a"):
        put(client, name)
    env = {"ONE": {"secret": "b"}, "TWO": {"secret": "a"}, "SAME": {"secret": "a"}}
    job_id = submit(client, env=env)
    replace_key(world, None)
    message = wait_for_secret(world, job_id).message
    file = world.settings.home_secrets_key
    assert message.startswith(
        "the secrets 'a', 'b' of user 'admin' cannot be decrypted (the scheduler has no key,"
        f" {file} does not exist); set them again with 'accordion secret set NAME', or give the"
    )


def test_a_job_that_lacks_the_key_says_what_an_admin_must_do_first(
    client: TestClient, world: World
) -> None:
    put(client)
    job_id = submit(client)
    replace_key(world, None)
    first = (
        ". While other secrets need the missing key, an admin must first put it back, or make a new"
        " one with 'accordion secret set NAME --force'"
    )
    message = wait_for_secret(world, job_id).message
    assert message.endswith(f"the file secrets.key of the old home directory{first}")
    refused = client.post(JOBS, json={**DIGITS, **TOKEN}).json()
    assert refused["errors"][0]["detail"].endswith(f"(PUT /api/v1/secrets/hf-token){first}")


def test_a_job_starts_once_its_secret_is_set_again(
    client: TestClient, world: World, stuck: str
) -> None:
    wait_for_secret(world, stuck)
    assert put(client).status_code == 200
    world.train(stuck)
    assert world.runtime.jobs[stuck].launch.env == {"HF_TOKEN": VALUE}


@lost_keys
def test_a_job_starts_once_the_key_is_back(
    client: TestClient, world: World, key: str | None
) -> None:
    put(client)
    job_id = submit(client)
    right = replace_key(world, key)
    wait_for_secret(world, job_id)
    world.settings.home_secrets_key.write_text(right)
    world.train(job_id)
    assert world.runtime.jobs[job_id].launch.env == {"HF_TOKEN": VALUE}


def test_other_jobs_start_and_grow_past_one_that_waits_for_its_secret(
    client: TestClient, world: World, stuck: str
) -> None:
    wait_for_secret(world, stuck)
    job_id = world.submit(**LONG, workers={"min": 1, "max": 4})
    world.train(job_id, workers=4)
    world.resize(job_id, 1, 2)
    world.turn_until(lambda: world.job(job_id).world_size == 2)
    world.resize(job_id, 1, 4)
    world.turn_until(lambda: world.job(job_id).world_size == 4)
    assert world.job(stuck).reason == Reason.WAITING_FOR_SECRET


def test_a_running_job_gives_no_worker_to_one_that_waits_for_its_secret(
    client: TestClient, world: World
) -> None:
    put(client)
    running = world.submit(**LONG, workers={"min": 1, "max": 4})
    world.train(running, workers=4)
    replace_key(world, OTHER_KEY)
    important = world.submit(**LONG, **TOKEN, priority=100, workers=PAIR)
    wait_for_secret(world, important)
    world.turn(20)
    assert (world.job(running).workers, world.job(running).world_size) == (4, 4)


def test_the_queue_says_what_would_help_a_job_that_waits_for_its_secret(
    client: TestClient, world: World, stuck: str
) -> None:
    wait_for_secret(world, stuck)
    large = world.submit(**LONG, workers={"min": 3, "max": 3})
    world.train(large)
    behind = world.submit(**LONG, workers=PAIR)
    world.turn_until(lambda: world.job(behind).reason == Reason.WAITING_FOR_ROOM)
    entries = {entry["id"]: entry for entry in client.get(QUEUE).json()["items"]}
    entry = entries[stuck]
    assert (entry["reason"], entry["waits_for"]) == ("WAITING_FOR_SECRET", [])
    assert entry["message"].startswith("the secret 'hf-token' of user 'admin' cannot be decrypted")
    assert entry["remedies"] == [
        "its owner setting the secret again (once an admin has made a new key, if other secrets"
        " need one that is gone)",
        "the key with which the secret was encrypted",
    ]
    assert entries[behind]["waits_for"] == [large]


def test_a_dry_run_counts_no_job_that_waits_for_its_secret(
    client: TestClient, world: World, stuck: str
) -> None:
    wait_for_secret(world, stuck)
    found = client.post(JOBS, params={"dry_run": "true"}, json=DIGITS).json()
    assert found["would_wait"] is False, found


def test_no_node_is_requested_for_a_job_that_waits_for_its_secret(
    client: TestClient, world: World
) -> None:
    world.runtime.has_autoscaler = True
    put(client)
    job_id = submit(client, workers={"min": 1, "max": 1, "cpus": 8})
    right = replace_key(world, OTHER_KEY)
    world.turn(20)
    assert world.job(job_id).reason == Reason.WAITING_FOR_SECRET
    assert not any(world.runtime.capacity_requests)
    world.settings.home_secrets_key.write_text(right)
    world.turn_until(lambda: any(world.runtime.capacity_requests))


def test_the_queue_hides_the_secrets_of_others(team: Team, world: World) -> None:
    ada, bob = team.user("ada"), team.user("bob")
    assert team.call(ada, "PUT", f"{SECRETS}/hf-token", json={"value": VALUE}).is_success
    assert team.call(ada, "POST", JOBS, json={**DIGITS, **TOKEN}).is_success
    replace_key(world, OTHER_KEY)
    world.turn(2)
    [hidden] = team.call(bob, "GET", QUEUE).json()["items"]
    assert (hidden["reason"], hidden["message"], hidden["remedies"]) == (
        "WAITING_FOR_SECRET",
        "waits for a secret of its owner",
        [],
    )
    [shown] = team.call(ada, "GET", QUEUE).json()["items"]
    assert "'hf-token' of user 'ada'" in shown["message"]


def test_an_attempt_whose_secret_cannot_be_decrypted_any_more_returns_to_the_queue(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    # The key is lost between the look at the queue and the start, as if a backup was restored in
    # which the job was starting.
    with monkeypatch.context() as patch:
        patch.setattr(JobEnv, "find_unreadable", lambda *_: {})
        world.turn_until(lambda: bool(world.history.attempts(stuck)))
    job = world.job(stuck)
    assert (job.status, job.reason, job.workers) == (Status.QUEUED, Reason.WAITING_FOR_SECRET, 0)
    [attempt] = world.history.attempts(stuck)
    assert (attempt.reason, attempt.ended_at) == (Reason.WAITING_FOR_SECRET, world.clock.now)
    assert (job.lost_attempts, world.runtime.started) == (0, [])
    world.turn(20)
    assert world.job(stuck).version == job.version, "the same reason is not stored again"


@lost_keys
def test_a_submission_with_a_secret_that_cannot_be_decrypted_is_refused(
    client: TestClient, world: World, key: str | None
) -> None:
    put(client)
    replace_key(world, key)
    for path in (JOBS, f"{JOBS}?dry_run=true"):
        refused = client.post(path, json={**DIGITS, **TOKEN})
        assert refused.status_code == 422
        [error] = refused.json()["errors"]
        assert error["pointer"].endswith("/env/HF_TOKEN/secret")
        assert "the secret 'hf-token' of user 'admin' cannot be decrypted (" in error["detail"]
        assert "set it again with 'accordion secret set hf-token' (PUT" in error["detail"]
    assert world.settings.home_secrets_key.exists() == (key is not None), "no key is made"


def test_a_new_key_is_not_made_while_other_secrets_need_the_lost_one(
    client: TestClient, world: World
) -> None:
    for name in ("hf-token", "wb", "s3"):
        put(client, name)
    replace_key(world, None)
    refused = put(client)
    file = world.settings.home_secrets_key
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        f"the key of the service is gone ({file} does not exist), and 2 other secrets of jobs and"
        " webhooks can be decrypted with it only; put it back there, in ACCORDION_SECRETS_KEY_FILE"
        " or in ACCORDION_SECRETS_KEY. If it is lost, an admin makes a new one with 'accordion"
        " secret set NAME --force' (PUT /api/v1/secrets/NAME?force=true), and the others must be"
        " set again",
    )
    assert not file.exists()


def test_a_new_key_is_made_if_an_admin_gives_the_other_secrets_up(
    client: TestClient, world: World
) -> None:
    put(client)
    put(client, "wb")
    replace_key(world, None)
    assert put(client, params=FORCE).json()["readable"] is True
    listed = client.get(SECRETS).json()["items"]
    assert {one["name"]: one["readable"] for one in listed} == {"hf-token": True, "wb": False}
    assert put(client, "wb").json()["readable"] is True, "with the new key, each is set as ever"


def test_a_new_key_needs_no_force_if_nothing_else_needs_the_lost_one(
    client: TestClient, world: World
) -> None:
    put(client)
    replace_key(world, None)
    assert put(client).json()["readable"] is True


def test_only_an_admin_gives_up_secrets_of_a_lost_key(team: Team, world: World) -> None:
    ada, path = team.user("ada", Role.OPERATOR), f"{SECRETS}/hf-token"
    body = {"json": {"value": VALUE}}
    for token in (ada, ADMIN):
        assert team.call(token, "PUT", path, **body).is_success
    assert team.call(ada, "PUT", path, params=FORCE, **body).is_success, "the key is there"
    replace_key(world, None)
    refused = team.call(ada, "PUT", path, params=FORCE, **body)
    assert refused.status_code == 403
    assert "needs the scope 'admin'" in refused.json()["detail"]
    assert not world.settings.home_secrets_key.exists()
    assert team.call(ADMIN, "PUT", path, params=FORCE, **body).is_success
    notes = [(entry["user"], entry["after"]) for entry in team.audit(action="secret.set")]
    made = {"new_key": True}
    assert notes == [("admin", made), ("ada", None), ("admin", None), ("ada", made)]


def add_webhook(world: World, name: str) -> None:
    wanted = RequestedWebhook(
        name=name,
        url="https://example.com/",
        statuses=[Status.FAILED],
        label=None,
        all_jobs=False,
        service_url="http://127.0.0.1/",
        encrypted="of a lost key",
    )
    WebhookStore(world.database, world.clock).add_webhook(FULL_ACCESS, wanted)


def test_a_webhook_gets_no_secret_of_a_new_key_while_others_need_the_lost_one(
    client: TestClient, world: World
) -> None:
    add_webhook(world, "ci")
    rotated = client.post(f"{HOOKS}/ci/secret")
    assert rotated.status_code == 200, "no other secret needs the lost key"
    add_webhook(world, "cd")
    world.settings.home_secrets_key.unlink()
    for refused in (client.post(f"{HOOKS}/ci/secret"), put(client)):
        assert refused.status_code == 409
        assert "the key of the service is gone" in refused.json()["detail"]
    assert not world.settings.home_secrets_key.exists()


def test_an_unreadable_secret_is_listed_as_such_and_removed(
    client: TestClient, world: World
) -> None:
    put(client)
    assert [one["readable"] for one in client.get(SECRETS).json()["items"]] == [True]
    replace_key(world, "short")
    assert [one["readable"] for one in client.get(SECRETS).json()["items"]] == [False]
    assert client.delete(f"{SECRETS}/hf-token").json()["readable"] is False


def test_a_removed_secret_lets_the_job_that_waited_for_it_fail_with_the_cause(
    client: TestClient, world: World, stuck: str
) -> None:
    wait_for_secret(world, stuck)
    refused = client.delete(f"{SECRETS}/hf-token")
    assert refused.status_code == 409
    assert client.delete(f"{SECRETS}/hf-token", params=FORCE).status_code == 200
    world.turn_until(lambda: world.job(stuck).status == Status.FAILED)
    assert world.job(stuck).message.startswith("user 'admin' has no secret 'hf-token'; set it with")


def test_other_jobs_start_while_the_scheduler_may_not_look_for_the_key(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied", str(world.settings.home_secrets_key))

    put(client)
    job_id = submit(client)
    monkeypatch.setattr("accordion_service.job_inputs.environment.find_service_key", refuse)
    other = world.submit(**LONG, workers={"min": 1, "max": 1})
    world.train(other)
    message = wait_for_secret(world, job_id).message
    file = world.settings.home_secrets_key
    assert f"cannot be decrypted ({file} cannot be read: Permission denied); set it" in message
