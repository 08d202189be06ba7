"""Webhooks: what a receiver gets, when, and how often."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from standardwebhooks.webhooks import WebhookVerificationError

from accordion_service.api.app import create_app
from accordion_service.domain.webhooks.retries import MAX_ATTEMPTS, RETRY_DELAYS_S, SECRET_OVERLAP_S
from accordion_service.scheduler.retention import DEAD_RETENTION_S, DELIVERED_RETENTION_S
from accordion_service.store.tables.models import WebhookSecretRow
from accordion_service.store.writes import webhook_messages
from accordion_service.store.writes.delivery_queue import CLAIM_S, DeliveryQueue
from accordion_service.store.writes.webhooks import MAX_PREVIOUS_SECRETS, MAX_WEBHOOKS
from tests.api.conftest import LOCAL, refused_early
from tests.api.team import JOBS, wait_for
from tests.api.webhook_receiver import LOOPBACK, Receiver, run_receiver, verify
from tests.api.world import World

HOOKS = "/api/v1/webhooks"
VALUE = "hf_nobody-may-see-this"


@dataclass
class Hooked:
    """A service, a client of its api, and a receiver."""

    world: World
    client: TestClient
    receiver: Receiver
    secrets: dict[str, str] = field(default_factory=dict)

    def add(self, name: str = "hook", **body: Any) -> dict[str, Any]:
        made = self.client.post(HOOKS, json={"name": name, "url": self.receiver.url, **body})
        assert made.status_code == 201, made.text
        self.secrets[name] = made.json()["secret"]
        found = made.json()
        assert isinstance(found, dict)
        return found

    def deliveries(self, name: str = "hook", **params: Any) -> list[dict[str, Any]]:
        found = self.client.get(f"{HOOKS}/{name}/deliveries", params=params).json()["items"]
        assert isinstance(found, list)
        return found

    def only(self, name: str = "hook") -> dict[str, Any]:
        [found] = self.deliveries(name)
        assert isinstance(found, dict)
        return found

    def turn_until(self, condition: Callable[[], bool]) -> None:
        """Let the scheduler work beside its threads; pytest's time limit ends it."""
        while not condition():
            self.world.turn()

    def attempt(self, number: int, name: str = "hook") -> dict[str, Any]:
        """Turn until the outcome of so many attempts is stored; return the delivery."""
        self.turn_until(
            lambda: (
                (found := self.only(name))["attempts"] == number
                and (found["message"] != "" or found["state"] == "DELIVERED")
            )
        )
        return self.only(name)


@pytest.fixture
def hooked(tmp_path: Path, database_url: str) -> Iterator[Hooked]:
    world = World(tmp_path, database_url=database_url, webhook_networks=LOOPBACK)
    app = create_app(world.settings, world.clock)
    with run_receiver() as receiver, TestClient(app, base_url=LOCAL) as client:
        yield Hooked(world, client, receiver)
        receiver.free.set()
        world.scheduler.release()
    app.state.accordion.database.close()
    world.close()


def test_the_end_of_a_job_is_sent_with_a_signature(hooked: Hooked) -> None:
    added = hooked.add()
    job_id = hooked.world.submit(name="mine", labels={"team": "vision"})
    job = hooked.world.finish(job_id)
    hooked.turn_until(lambda: hooked.only()["state"] == "DELIVERED")
    [request] = hooked.receiver.received
    body = verify(added["secret"], request)
    assert body == {
        "type": "job.status",
        "timestamp": body["timestamp"],
        "data": {
            "job_id": job_id,
            "name": "mine",
            "owner": "admin",
            "labels": {"team": "vision"},
            "status": "SUCCEEDED",
            "previous_status": "RUNNING",
            "reason": job.reason,
            "message": job.message,
            "event": hooked.world.events(job_id, "status")[-1].seq,
            "by": None,
            "url": f"{LOCAL}/jobs/{job_id}",
        },
    }
    assert request.headers["content-type"] == "application/json"
    shown = hooked.only()
    assert (shown["id"], shown["attempts"], shown["response_status"]) == (request.id, 1, 204)


def test_messages_are_signed_with_a_replaced_secret_for_a_day(hooked: Hooked) -> None:
    old = hooked.add()["secret"]
    rotated = hooked.client.post(f"{HOOKS}/hook/secret").raise_for_status().json()
    assert rotated["previous_secret_until"] is not None
    hooked.client.post(f"{HOOKS}/hook/test")
    hooked.turn_until(lambda: len(hooked.receiver.received) == 1)
    for secret in (old, rotated["secret"]):
        assert verify(secret, hooked.receiver.received[0])["type"] == "webhook.test"
    hooked.world.clock.now += SECRET_OVERLAP_S
    hooked.client.post(f"{HOOKS}/hook/test")
    hooked.turn_until(lambda: len(hooked.receiver.received) == 2)
    assert verify(rotated["secret"], hooked.receiver.received[1])["type"] == "webhook.test"
    with pytest.raises(WebhookVerificationError):
        verify(old, hooked.receiver.received[1])
    [shown] = hooked.client.get(HOOKS).json()["items"]
    assert shown["previous_secret_until"] is None


def test_a_secret_of_another_key_is_not_kept_when_it_is_replaced(hooked: Hooked) -> None:
    hooked.add()
    hooked.client.post(f"{HOOKS}/hook/secret").raise_for_status()
    hooked.world.settings.home_secrets_key.write_text("another key that is long enough for it")
    hooked.client.post(f"{HOOKS}/hook/test")
    assert "If that key is lost, give the webhook another secret" in hooked.attempt(1)["message"]
    rotated = hooked.client.post(f"{HOOKS}/hook/secret").raise_for_status().json()
    assert rotated["previous_secret_until"] is None
    again = hooked.client.post(f"{HOOKS}/hook/secret").raise_for_status().json()
    assert again["previous_secret_until"] is not None


def test_a_replaced_secret_is_deleted_once_it_has_ended(hooked: Hooked) -> None:
    def count_secrets() -> int:
        with hooked.world.database.read() as session:
            return session.scalar(select(func.count()).select_from(WebhookSecretRow)) or 0

    hooked.add()
    hooked.client.post(f"{HOOKS}/hook/secret").raise_for_status()
    hooked.world.turn()
    assert count_secrets() == 1
    hooked.world.clock.now += SECRET_OVERLAP_S + 2 * 3600
    hooked.turn_until(lambda: count_secrets() == 0)


def test_a_secret_is_not_replaced_if_too_many_are_still_valid(hooked: Hooked) -> None:
    hooked.add()
    answers = [hooked.client.post(f"{HOOKS}/hook/secret") for _ in range(MAX_PREVIOUS_SECRETS + 1)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 409]
    assert "3 replaced secrets that are still valid, the limit is 3" in answers[-1].text
    hooked.world.clock.now += SECRET_OVERLAP_S
    assert hooked.client.post(f"{HOOKS}/hook/secret").status_code == 200


def test_a_changed_request_has_no_valid_signature(hooked: Hooked) -> None:
    added = hooked.add()
    hooked.client.post(f"{HOOKS}/hook/test")
    hooked.turn_until(lambda: bool(hooked.receiver.received))
    [request] = hooked.receiver.received
    assert verify(added["secret"], request)["type"] == "webhook.test"
    request.body = request.body.replace(b"hook", b"h00k")
    with pytest.raises(WebhookVerificationError):
        verify(added["secret"], request)


@pytest.mark.parametrize(
    ("wanted", "statuses"),
    [
        ({}, ["SUCCEEDED"]),
        ({"statuses": ["QUEUED", "RUNNING"]}, ["QUEUED", "RUNNING"]),
        ({"statuses": ["FAILED"]}, []),
        ({"label": "team:vision"}, ["SUCCEEDED"]),
        ({"label": "team:audio"}, []),
        ({"all_jobs": True, "label": "team:vision"}, ["SUCCEEDED"]),
    ],
)
def test_a_webhook_sends_what_it_was_added_for(
    hooked: Hooked, wanted: dict[str, Any], statuses: list[str]
) -> None:
    hooked.add(**wanted)
    hooked.world.finish(hooked.world.submit(labels={"team": "vision"}))
    assert [one["status"] for one in reversed(hooked.deliveries())] == statuses


def test_messages_have_neither_variables_nor_secrets(hooked: Hooked) -> None:
    hooked.client.put("/api/v1/secrets/token", json={"value": VALUE})
    hooked.add(statuses=["QUEUED"])
    hooked.world.submit(env={"A": "open-value", "B": {"secret": "token"}})
    hooked.turn_until(lambda: bool(hooked.receiver.received))
    [request] = hooked.receiver.received
    assert request.data["previous_status"] is None
    assert request.data.keys().isdisjoint({"env", "spec"})
    assert b"open-value" not in request.body
    assert VALUE.encode() not in request.body


def test_a_failed_attempt_is_repeated_with_the_same_id_and_body(hooked: Hooked) -> None:
    added = hooked.add()
    hooked.receiver.answers.extend([500, 302])
    hooked.client.post(f"{HOOKS}/hook/test")
    for number, reason in ((1, "responded with 500"), (2, "redirects are not followed")):
        failed = hooked.attempt(number)
        assert (failed["state"], reason in failed["message"]) == ("PENDING", True), failed
        hooked.world.clock.now += RETRY_DELAYS_S[number - 1] - 2
    hooked.attempt(3)
    first, second, third = hooked.receiver.received
    for request in (first, second, third):
        assert verify(added["secret"], request)["type"] == "webhook.test"
    assert (first.id, first.body) == (second.id, second.body) == (third.id, third.body)
    times = [int(one.headers["webhook-timestamp"]) for one in (first, second, third)]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait >= delay - 1 for wait, delay in zip(waits, RETRY_DELAYS_S, strict=False))
    assert {one.path for one in hooked.receiver.received} == {"/hook"}


def test_a_message_that_is_never_taken_is_given_up_and_can_be_sent_again(hooked: Hooked) -> None:
    hooked.add()
    hooked.receiver.lasting = 503
    hooked.client.post(f"{HOOKS}/hook/test")
    for number in range(1, MAX_ATTEMPTS + 1):
        dead = hooked.attempt(number)
        hooked.world.clock.now += max(RETRY_DELAYS_S) * 2
    assert (dead["state"], dead["next_attempt_at"], dead["response_status"]) == ("DEAD", None, 503)
    assert hooked.client.get(HOOKS).json()["items"][0]["dead"] == 1
    hooked.world.turn(8)
    assert len(hooked.receiver.received) == MAX_ATTEMPTS
    hooked.receiver.lasting = 200
    again = hooked.client.post(f"{HOOKS}/hook/deliveries/{dead['id']}/send")
    assert (again.status_code, again.json()["state"]) == (202, "PENDING")
    hooked.turn_until(lambda: hooked.only()["state"] == "DELIVERED")
    assert len({one.id for one in hooked.receiver.received}) == 1
    assert hooked.only()["message"] == ""


def test_a_receiver_that_hangs_delays_no_other(hooked: Hooked) -> None:
    hooked.add("slow")
    hooked.receiver.free.clear()
    with run_receiver() as other:
        hooked.add("quick", url=other.url)
        hooked.client.post(f"{HOOKS}/slow/test")
        hooked.turn_until(lambda: bool(hooked.receiver.received))
        hooked.world.finish(hooked.world.submit())
        hooked.turn_until(lambda: bool(other.received))
        assert len(hooked.receiver.received) == 1, "its second message waits for the first"
        assert hooked.deliveries("slow", state="DELIVERED") == []
    hooked.receiver.free.set()
    hooked.turn_until(lambda: len(hooked.deliveries("slow", state="DELIVERED")) == 2)


def test_a_receiver_that_is_gone_disables_its_webhook(hooked: Hooked) -> None:
    hooked.add()
    hooked.receiver.answers.append(410)
    hooked.client.post(f"{HOOKS}/hook/test")
    hooked.attempt(1)
    [shown] = hooked.client.get(HOOKS).json()["items"]
    assert shown["disabled_reason"].startswith("its receiver responded with 410 (Gone) at ")
    assert (hooked.only()["state"], shown["dead"]) == ("DEAD", 1)
    hooked.world.finish(hooked.world.submit())
    assert len(hooked.deliveries()) == 1, "nothing is queued for it"
    for path in ("test", f"deliveries/{hooked.only()['id']}/send"):
        refused = hooked.client.post(f"{HOOKS}/hook/{path}")
        assert refused.status_code == 409
        assert "remove it and add it again" in refused.json()["detail"]


def test_a_message_survives_the_scheduler_that_was_sending_it(hooked: Hooked) -> None:
    hooked.add()
    hooked.client.post(f"{HOOKS}/hook/test")
    queue = DeliveryQueue(hooked.world.database, hooked.world.clock)
    [due] = queue.list_due()
    claimed = queue.claim(due.id)
    assert claimed is not None
    hooked.world.kill_scheduler()
    assert queue.list_due() == [], "it may still be sent by the one that claimed it"
    hooked.world.clock.now += CLAIM_S
    hooked.turn_until(lambda: hooked.only()["state"] == "DELIVERED")
    [request] = hooked.receiver.received
    assert (request.id, hooked.only()["attempts"]) == (claimed.id, 2)


SENDER = """
import sys, time
from accordion_service.settings.settings import load_settings
from accordion_service.store.engine.database import Database
from accordion_service.scheduler.webhooks import WebhookDelivery

home, url, networks, now = sys.argv[1:]
settings = load_settings(home=home, database_url=url, webhook_networks=networks)
clock = lambda: float(now)
delivery = WebhookDelivery(Database(url), settings, clock=clock, monotonic=time.monotonic)
while True:
    delivery.start_if_due()
    time.sleep(0.01)
"""


def test_a_message_survives_a_process_that_is_killed_while_it_sends(hooked: Hooked) -> None:
    hooked.add()
    hooked.receiver.free.clear()
    hooked.client.post(f"{HOOKS}/hook/test")
    settings, now = hooked.world.settings, str(hooked.world.clock.now)
    arguments = [str(settings.home), settings.database, LOOPBACK, now]
    sender = subprocess.Popen([sys.executable, "-c", SENDER, *arguments])
    try:
        wait_for(lambda: bool(hooked.receiver.received))
    finally:
        sender.kill()
        sender.wait()
    hooked.receiver.free.set()
    hooked.world.turn()
    assert hooked.only()["state"] == "PENDING"
    hooked.world.clock.now += CLAIM_S
    hooked.turn_until(lambda: hooked.only()["state"] == "DELIVERED")
    first, second = hooked.receiver.received
    assert (first.id, first.body) == (second.id, second.body)


def test_a_scheduler_with_another_key_says_so_and_tries_again(hooked: Hooked) -> None:
    hooked.add()
    file = hooked.world.settings.home_secrets_key
    right = file.read_text()
    file.write_text("another key that is long enough for it")
    hooked.client.post(f"{HOOKS}/hook/test")
    message = hooked.attempt(1)["message"]
    assert "encrypted with another key than the scheduler has" in message
    assert "after a restore, the file secrets.key of the old home" in message
    file.unlink()
    hooked.world.clock.now += 2 * RETRY_DELAYS_S[0]
    assert "ACCORDION_SECRETS_KEY_FILE" in hooked.attempt(2)["message"]
    hooked.world.clock.now += 2 * RETRY_DELAYS_S[1]
    file.write_text(right)
    assert hooked.attempt(3)["state"] == "DELIVERED"


def test_the_secret_is_shown_once_and_stored_encrypted(hooked: Hooked, tmp_path: Path) -> None:
    secret = hooked.add()["secret"]
    assert secret.startswith("whsec_")
    paths = (HOOKS, f"{HOOKS}/hook/deliveries", "/api/v1/audit")
    shown = "".join(hooked.client.get(path).text for path in paths)
    shown += hooked.client.delete(f"{HOOKS}/hook").text
    assert secret not in shown
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert not any(secret.encode() in text for text in files)
    assert hooked.add()["secret"] != secret


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({"url": "http://10.1.2.3/x"}, "/url", "10.1.2.3, which is not a public one"),
        ({"url": "https://[::1]/x"}, "/url", "::1, which is not a public one"),
        ({"url": "https://169.254.169.254/"}, "/url", "which is not a public one"),
        ({"url": "http://8.8.8.8/x"}, "/url", "over http, without encryption"),
        ({"url": "https://me:pw@8.8.8.8/x"}, "/url", "user name or a password"),
        ({"url": "ftp://8.8.8.8/x"}, "/url", "not one of https"),
        ({"url": f"https://8.8.8.8/{'x' * 2000}"}, "/url", "2000"),
        ({"url": "https://8.8.8.8/", "statuses": []}, "/statuses", "at least 1"),
        ({"url": "https://8.8.8.8/", "statuses": ["DONE"]}, "/statuses/0", "'QUEUED'"),
        ({"url": "https://8.8.8.8/", "label": "team"}, "/label", "is not a label; give it as"),
        ({"url": "https://8.8.8.8/", "name": "A"}, "/name", "is not the name of a webhook"),
    ],
)
@refused_early
def test_a_wrong_webhook_is_refused(
    hooked: Hooked, body: dict[str, Any], pointer: str, detail: str
) -> None:
    refused = hooked.client.post(HOOKS, json=body)
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["pointer"] == pointer
    assert detail in error["detail"]
    assert "pw" not in error["detail"]


def test_a_webhook_is_named_after_its_host_and_each_name_is_taken_once(hooked: Hooked) -> None:
    first = hooked.client.post(HOOKS, json={"url": hooked.receiver.url})
    assert first.json()["name"] == "127.0.0.1"
    taken = hooked.client.post(HOOKS, json={"url": hooked.receiver.url})
    assert taken.status_code == 409
    assert "has a webhook '127.0.0.1' already; give another name (--name)" in taken.text


def test_a_user_has_a_limited_number_of_webhooks(hooked: Hooked) -> None:
    for number in range(MAX_WEBHOOKS):
        hooked.add(f"h{number}")
    body = {"name": "one-more", "url": hooked.receiver.url}
    full = hooked.client.post(HOOKS, json=body)
    assert full.status_code == 409
    assert f"has {MAX_WEBHOOKS} webhooks, the limit is {MAX_WEBHOOKS}" in full.json()["detail"]
    assert hooked.client.delete(f"{HOOKS}/h0").status_code == 200
    assert hooked.client.post(HOOKS, json=body).status_code == 201


def test_the_oldest_message_is_given_up_when_too_many_wait(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_messages, "MAX_PENDING", 2)
    hooked.add()
    ids = [hooked.client.post(f"{HOOKS}/hook/test").json()["id"] for _ in range(3)]
    states = {one["id"]: one["state"] for one in hooked.deliveries()}
    assert [states[one] for one in ids] == ["DEAD", "PENDING", "PENDING"]
    assert "given up for newer ones" in hooked.deliveries(state="DEAD")[0]["message"]


def test_deliveries_are_paged_newest_first(hooked: Hooked) -> None:
    hooked.add()
    ids = [hooked.client.post(f"{HOOKS}/hook/test").json()["id"] for _ in range(3)]
    page = hooked.client.get(f"{HOOKS}/hook/deliveries", params={"limit": 2}).json()
    assert [one["id"] for one in page["items"]] == [ids[2], ids[1]]
    rest = hooked.deliveries(cursor=page["next_cursor"])
    assert [one["id"] for one in rest] == [ids[0]]


@pytest.mark.parametrize(
    ("status", "kept_s"), [(200, DELIVERED_RETENTION_S), (410, DEAD_RETENTION_S)]
)
def test_old_deliveries_are_deleted(hooked: Hooked, status: int, kept_s: float) -> None:
    hooked.add()
    hooked.receiver.lasting = status
    hooked.client.post(f"{HOOKS}/hook/test")
    hooked.attempt(1)
    hooked.world.clock.now += kept_s - 3600
    hooked.world.turn()
    assert len(hooked.deliveries()) == 1
    hooked.world.clock.now += 7200
    hooked.world.turn()
    assert hooked.deliveries() == []


def test_a_deleted_job_takes_its_messages_along(hooked: Hooked) -> None:
    hooked.add()
    hooked.receiver.lasting = 500
    job_id = hooked.world.submit()
    hooked.world.finish(job_id)
    assert hooked.attempt(1)["job_id"] == job_id
    assert hooked.client.delete(f"{JOBS}/{job_id}").status_code == 200
    assert hooked.deliveries() == []


def test_a_removed_webhook_sends_nothing_more(hooked: Hooked) -> None:
    hooked.add("stays", label="a:b")
    hooked.add()
    hooked.client.post(f"{HOOKS}/hook/test")
    assert hooked.client.delete(f"{HOOKS}/hook").json()["name"] == "hook"
    hooked.client.post(f"{HOOKS}/stays/test")
    hooked.turn_until(lambda: hooked.only("stays")["state"] == "DELIVERED")
    assert [one.data["webhook"] for one in hooked.receiver.received] == ["stays"]
    gone = hooked.client.get(f"{HOOKS}/hook/deliveries")
    assert gone.status_code == 404
    assert "user 'admin' has no webhook 'hook'" in gone.json()["detail"]


def test_a_change_that_is_undone_queues_no_message(hooked: Hooked) -> None:
    hooked.add(statuses=["CANCELLED"])
    job_id = hooked.world.submit()
    with pytest.raises(ZeroDivisionError), hooked.world.database.write() as session:
        _cancel_and_fail(session, job_id)
    assert hooked.deliveries() == []
    hooked.world.cancel(job_id)
    assert json.dumps(hooked.only()["status"]) == '"CANCELLED"'


def _cancel_and_fail(session: Any, job_id: str) -> None:
    from accordion_service.domain.jobs.statuses import Reason, Status
    from accordion_service.store.tables.models import JobRow
    from accordion_service.store.writes.status_changes import change_status

    job = session.get_one(JobRow, job_id)
    reason = Reason.CANCELLED_BY_USER
    change_status(session, job, Status.CANCELLED, reason=reason, message="m", now=1.0)
    raise ZeroDivisionError
