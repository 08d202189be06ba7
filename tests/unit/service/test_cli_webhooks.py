"""`accordion webhook`, against a service that delivers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from accordion_client import Client
from tests.api.conftest import Live, serve_live
from tests.api.team import wait_for
from tests.api.webhook_receiver import LOOPBACK, Receiver, run_receiver
from tests.unit.service.conftest import Accordion


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("service"), webhook_networks=LOOPBACK)


@pytest.fixture
def receiver(service: Live) -> Iterator[Receiver]:
    """A receiver; no webhook outlives a test."""
    with run_receiver() as receiver:
        yield receiver
        receiver.free.set()
        with Client(service.url) as client:
            for webhook in client.webhooks().items:
                client.remove_webhook(webhook.name)


def only_delivery(accordion: Accordion, *options: str) -> dict[str, Any]:
    [found] = accordion("webhook", "deliveries", "ci", *options, "--json").json()["items"]
    assert isinstance(found, dict)
    return found


def test_a_job_is_submitted_and_its_receiver_verifies_the_end(
    accordion: Accordion, receiver: Receiver, spec: Path
) -> None:
    added = accordion("webhook", "add", receiver.url, "--name", "ci", "--on", "succeeded")
    assert added.code == 0, added.err
    assert added.err == (
        "added webhook ci for SUCCEEDED of your jobs; next: accordion webhook test ci\n"
    )
    job = accordion("submit", spec, "--json").json()
    wait_for(lambda: bool(receiver.received))
    [request] = receiver.received
    body = Webhook(added.out.strip()).verify(request.body, request.headers)
    assert (body["data"]["job_id"], body["data"]["status"]) == (job["id"], "SUCCEEDED")
    assert body["data"]["url"].endswith(f"/jobs/{job['id']}")


def test_a_test_message_is_sent_listed_and_sent_again(
    accordion: Accordion, receiver: Receiver
) -> None:
    receiver.answers.append(500)
    accordion("webhook", "add", receiver.url, "--name", "ci")
    said = accordion("webhook", "test", "ci").out
    wait_for(lambda: only_delivery(accordion)["message"] != "")
    failed = only_delivery(accordion, "--state", "pending")
    assert said.startswith(f"message {failed['id']} is sent within seconds; 'accordion webhook")
    shown = accordion("webhook", "deliveries", "ci").out
    assert "the receiver responded with 500" in shown
    again = accordion("webhook", "send-again", "ci", failed["id"], "--json").json()
    assert (again["id"], again["attempts"]) == (failed["id"], 0)
    wait_for(lambda: only_delivery(accordion)["state"] == "DELIVERED")
    assert [one.id for one in receiver.received] == [failed["id"]] * 2


def test_webhooks_are_listed_and_removed(accordion: Accordion, receiver: Receiver) -> None:
    options = ("--name", "all", "--all-jobs", "--label", "team:vision", "--json")
    secret = accordion("webhook", "add", receiver.url, *options).json()["secret"]
    listed = accordion("webhook", "list").out
    assert "SUCCEEDED, FAILED, CANCELLED of all jobs with the label team:vision" in listed
    [shown] = accordion("webhook", "list", "--json").json()["items"]
    assert (shown["name"], shown["all_jobs"], shown["pending"]) == ("all", True, 0)
    assert secret not in listed + json.dumps(shown)
    rotated = accordion("webhook", "rotate-secret", "all")
    assert "webhook all has a new secret; the old one is valid until 2" in rotated.err
    assert rotated.out.startswith("whsec_")
    assert rotated.out.strip() != secret
    assert accordion("webhook", "remove", "all").out == "removed webhook all\n"
    assert accordion("webhook", "list", "--json").json() == {"items": []}


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        (["add", "https://10.0.0.1/x"], "url: 10.0.0.1 has the address 10.0.0.1, which is not"),
        (["add", "https://8.8.8.8/x", "--on", "done"], "statuses.0: "),
        (["remove", "none"], "user 'admin' has no webhook 'none'"),
        (["rotate-secret", "none"], "user 'admin' has no webhook 'none'"),
        (["test", "none"], "user 'admin' has no webhook 'none'"),
        (["deliveries", "none"], "user 'admin' has no webhook 'none'"),
        (["send-again", "none", "x"], "user 'admin' has no webhook 'none'"),
    ],
)
def test_a_wrong_webhook_is_refused(accordion: Accordion, options: list[str], detail: str) -> None:
    said = accordion("webhook", *options)
    assert said.code == 2
    assert detail in " ".join(said.err.replace("│", " ").split())
