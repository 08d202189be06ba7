"""`accordion cancel`, `pause` and `resume` of all jobs with some labels."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import typer

from accordion_client import Client
from accordion_client.commands.batches import JobBatch, act_on_batch, read_batch
from accordion_client.sdk.errors import ClientError, Refused
from accordion_service.schemas import batches as batch_schemas
from tests.unit.service.conftest import LONG, Accordion


def submit(accordion: Accordion, spec: Path, label: str) -> str:
    found = accordion("submit", spec, *LONG, "--set", f"labels.sweep={label}", "--json").json()
    job_id: str = found["id"]
    return job_id


def test_jobs_with_a_label_are_cancelled_together(accordion: Accordion, spec: Path) -> None:
    jobs = {submit(accordion, spec, "a"), submit(accordion, spec, "a")}
    other = submit(accordion, spec, "b")
    listed = accordion("cancel", "--label", "sweep:a", "--dry-run", "--json").json()["items"]
    assert {job["id"] for job in listed} == jobs
    planned = accordion("cancel", "--label", "sweep:a", "--dry-run").out.splitlines()
    assert all(line.startswith("would cancel ") for line in planned)
    said = accordion("cancel", "--label", "sweep:a")
    assert (said.code, len(said.out.splitlines())) == (0, 2)
    again = accordion("cancel", "--label", "sweep:a")
    assert (again.code, again.out) == (0, "")
    assert "no job to cancel is left among those with the label sweep:a\n" in again.err
    mistyped = accordion("cancel", "--label", "sweeep:a")
    assert (mistyped.code, mistyped.err) == (0, "accordion: no job has the label sweeep:a\n")
    assert accordion("show", other, "--json").json()["job"]["desired"] == "RUN"
    accordion("cancel", other)


def test_several_jobs_are_paused_resumed_and_cancelled_by_name(
    accordion: Accordion, spec: Path
) -> None:
    jobs = [submit(accordion, spec, "named") for _ in range(2)]
    for command in ("pause", "resume", "cancel"):
        said = accordion(command, *jobs, jobs[0])
        assert said.code == 0
        assert [line.partition(")")[0].rpartition("(")[2] for line in said.out.splitlines()] == jobs


def test_a_job_that_cannot_be_resumed_is_named_and_keeps_no_other_from_it(
    accordion: Accordion, spec: Path
) -> None:
    ended, paused = (submit(accordion, spec, "mixed") for _ in range(2))
    accordion("cancel", ended)
    accordion("pause", paused)
    said = accordion("resume", ended, paused)
    assert said.code == 1
    assert f"({ended}): " in said.err
    assert f"({paused}) is " in said.out
    accordion("cancel", paused)


def test_nothing_is_cancelled_if_one_name_is_mistyped(accordion: Accordion, spec: Path) -> None:
    job_id = submit(accordion, spec, "typo")
    said = accordion("cancel", job_id, "no-such-job")
    assert (said.code, said.out) == (2, "")
    assert "there is no job 'no-such-job'" in said.err
    assert accordion("show", job_id, "--json").json()["job"]["desired"] == "RUN"
    accordion("cancel", job_id)


def cancel_all(accordion: Accordion, chosen: tuple[str, str], count: int) -> None:
    accordion("cancel", *chosen)
    ended = ("list", *chosen, "--status", "cancelled", "--json")
    while len(accordion(*ended).json()["items"]) < count:  # pytest's time limit ends it
        time.sleep(0.05)


def test_jobs_with_a_label_are_changed_resized_retried_and_deleted(
    accordion: Accordion, spec: Path
) -> None:
    jobs = {submit(accordion, spec, "c"), submit(accordion, spec, "c")}
    chosen = ("--label", "sweep:c")
    assert accordion("change", "--with-label", "sweep:c", "--priority", "7").code == 0
    assert accordion("resize", *chosen, "1", "1").code == 0
    listed = accordion("list", *chosen, "--priority", "7", "--task", "digits-mlp", "--json").json()
    assert {job["id"] for job in listed["items"]} == jobs
    assert {job["max_workers"] for job in listed["items"]} == {1}
    cancel_all(accordion, chosen, len(jobs))
    assert len(accordion("retry", *chosen).out.splitlines()) == 2
    cancel_all(accordion, chosen, len(jobs))
    asked = accordion("delete", *chosen)
    assert (asked.code, "2 jobs" in asked.err) == (2, True)
    assert "confirm with --yes" in " ".join(asked.err.replace("│", " ").split())
    assert accordion("delete", *chosen, "--yes").out.count("is deleted") == 2
    assert accordion("list", *chosen, "--all", "--json").json()["items"] == []


def test_a_list_shows_times_as_its_filters_take_them(
    accordion: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(accordion, spec, "times")
    monkeypatch.setenv("TZ", "XYZ-05:45")
    time.tzset()
    try:
        chosen = ("list", "--label", "sweep:times")
        columns = accordion(*chosen).out.splitlines()
        shown = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", columns[1])
        assert shown is not None
        begin = datetime.fromisoformat(shown[0])
        bounds = ("--created-after", begin, "--created-before", begin + timedelta(minutes=1))
        found = accordion(*chosen, *bounds, "--json").json()["items"]
        assert [job["id"] for job in found] == [job_id]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_empty_filter_of_a_client_is_no_list_of_all_jobs(accordion: Accordion) -> None:
    with Client(os.environ["ACCORDION_URL"]) as client, pytest.raises(Refused, match="owner"):
        client.jobs(owner="")


def test_a_batch_is_for_the_jobs_of_one_owner(accordion: Accordion, spec: Path) -> None:
    job_id = submit(accordion, spec, "owned")
    said = accordion("cancel", "--label", "sweep:owned", "--owner", "ada")
    assert (said.code, said.out) == (0, "")
    assert said.err == "accordion: no job of ada has the label sweep:owned\n"
    said = accordion("cancel", "--label", "sweep:owned", "--owner", "admin")
    assert f"({job_id}) is " in said.out


@dataclass
class Answers:
    """A service whose batches have these answers, which it gives one by one."""

    pages: list[list[dict[str, Any]]]
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        if not self.pages:
            return httpx2.Response(500, json={})
        items, left = self.pages.pop(0), bool(self.pages)
        cursor = f"c{len(self.bodies)}" if left and not body["ids"] else None
        return httpx2.Response(200, json={"items": items, "more": left, "next_cursor": cursor})

    def client(self) -> Client:
        return Client("http://service", transport=httpx2.MockTransport(self))


def item(name: str, owner: str, error: str | None = None) -> dict[str, Any]:
    about = {"status": "CANCELLED", "owner": owner, "error": error}
    return {"id": f"id-of-{name}", "name": name, **about}


def test_a_batch_goes_on_until_no_job_is_left_and_names_several_owners(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = Answers([[item("a", "ada")], [item("b", "bob", "no"), item("c", "ada")]])
    with answers.client() as client, pytest.raises(typer.Exit):
        act_on_batch(client, "cancel", JobBatch(labels={"a": "b"}), dry_run=False, json=False)
    assert [body["cursor"] for body in answers.bodies] == [None, "c1"]
    assert capsys.readouterr().out.splitlines() == [
        "a (id-of-a) is CANCELLED",
        "b (id-of-b, of bob) is CANCELLED: no",
        "c (id-of-c, of ada) is CANCELLED",
    ]


def test_a_confirmed_batch_is_for_the_confirmed_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch_schemas, "MAX_JOBS", 2)
    ids = ("1", "2", "3")
    answers = Answers([[item("a", "ada")], [item("b", "bob")]])
    with answers.client() as client:
        act_on_batch(
            client, "delete", JobBatch(labels={"a": "b"}, ids=ids), dry_run=False, json=True
        )
    assert [body["ids"] for body in answers.bodies] == [["1", "2"], ["3"]]
    assert [job["name"] for job in json.loads(capsys.readouterr().out)["items"]] == ["a", "b"]


def test_a_batch_whose_confirmed_jobs_are_none_deletes_none(
    accordion: Accordion, spec: Path
) -> None:
    job_id = submit(accordion, spec, "ended-later")
    with Client(os.environ["ACCORDION_URL"]) as client:
        batch = JobBatch(labels={"sweep": "ended-later"})
        planned = [
            job for view in read_batch(client, "delete", batch, dry_run=True) for job in view.items
        ]
        assert planned == []
        cancel_all(accordion, ("--label", "sweep:ended-later"), 1)
        act_on_batch(client, "delete", replace(batch, ids=[]), dry_run=False, json=False)
        assert client.job(job_id).status == "CANCELLED"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_batch_prints_what_was_done_before_a_request_failed(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    answers = Answers([[item("a", "ada")], [item("b", "ada")]])
    batch = JobBatch(labels={"a": "b"}, ids=[str(number) for number in range(500)])
    with answers.client() as client, pytest.raises(ClientError):
        act_on_batch(client, "delete", batch, dry_run=False, json=as_json)
    printed = capsys.readouterr().out
    assert ("id-of-a" in printed, "id-of-b" in printed) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (("resize", "a-job", "1"), "MIN and MAX are 'a-job 1'"),
        (("resize", "a-job", "0", "1"), "at least 1, as in 'accordion resize JOB 1 4'"),
        (("resize", "a-job", "1", "9" * 5000), "give two whole numbers, at least 1, as in"),
        (("resize", "1", "2"), "give either JOB or --label"),
        (("change", "--with-label", "a:b", "--name", "n"), "--name is for one job"),
        (("change", "--priority", "1"), "give either JOB or --with-label"),
        (("list", "--owner", ""), "--owner is empty; leave it out to list all jobs"),
        (("list", "--id", ""), "--id is empty"),
        (("list", "--reason", ""), "--reason is empty"),
        (("list", "--cloned-from", ""), "--cloned-from is empty"),
        (("list", "--created-after", ""), "--created-after is ''"),
        (("list", "--ended-after", "noon"), "--ended-after is 'noon'"),
    ],
)
def test_arguments_that_say_nothing_are_refused(
    accordion: Accordion, arguments: tuple[str, ...], detail: str
) -> None:
    said = accordion(*arguments)
    assert said.code == 2
    assert detail in " ".join(said.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        ([], "give either JOB or --label"),
        (["a-job", "--label", "a:b"], "give either JOB or --label"),
        (["a-job", "--dry-run"], "--dry-run is for --label"),
        (["a-job", "--owner", "ada"], "--owner is for --label"),
        (["--label", "a:b", "--owner", ""], "--owner is empty; leave it out"),
        (["--label", "a"], "--label 'a' is not of the form key:value"),
        (["--label", "a:b", "--label", "a:c"], "--label a is given twice"),
    ],
)
@pytest.mark.parametrize("command", ["cancel", "pause", "resume"])
def test_what_names_no_job_is_refused(
    accordion: Accordion, command: str, options: list[str], detail: str
) -> None:
    said = accordion(command, *options)
    assert said.code == 2
    assert detail in " ".join(said.err.replace("│", " ").split())
