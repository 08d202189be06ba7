"""`accordion queue` and `quota`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_client import Client
from accordion_service.domain.jobs.status_table import UNFINISHED
from tests.api.conftest import Live
from tests.unit.service.conftest import LONG, Accordion


@pytest.fixture(autouse=True)
def _without_quotas_and_jobs(service: Live) -> Iterator[None]:
    """No quota and no waiting job outlives a test: one would be ahead of those of the next."""
    yield
    with Client(service.url) as client:
        for quota in client.quotas().items:
            client.remove_quota(user=quota.user, label=quota.label)
        for job in client.jobs(status=list(UNFINISHED)).items:
            client.cancel(job.id)
        while client.jobs(status=list(UNFINISHED)).items:
            pass  # pytest's time limit ends it


def test_a_quota_is_set_listed_and_removed(accordion: Accordion) -> None:
    said = accordion("quota", "set", "--label", "team:vision", "--gpus", "1.5", "--jobs", "2")
    assert said.out == "label team:vision: at most 2 jobs and 1.5 GPUs\n"
    accordion("quota", "set", "--user", "*", "--workers", "8")
    lines = accordion("quota", "list").out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["any", "other", "user", "8", "each"],
        ["label", "team:vision", "0", "of", "2", "0", "of", "1.5"],
    ]
    removed = accordion("quota", "remove", "--user", "*")
    assert removed.out == "removed the quota of any other user: at most 8 workers\n"
    [left] = accordion("quota", "list", "--json").json()["items"]
    assert left["label"] == "team:vision"


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        (["set", "--jobs", "1"], "give either --user NAME or --label KEY:VALUE"),
        (["set", "--user", "admin"], "give at least one of --jobs, --workers and --gpus"),
        (["set", "--user", "nobody", "--jobs", "1"], "there is no user 'nobody'"),
        (["remove"], "give either --user NAME or --label KEY:VALUE"),
        (["remove", "--user", "admin"], "user admin has no quota"),
    ],
)
def test_a_wrong_quota_is_refused(accordion: Accordion, options: list[str], detail: str) -> None:
    said = accordion("quota", *options)
    assert said.code == 2
    assert detail in " ".join(said.err.replace("│", " ").split())


def test_the_queue_shows_why_jobs_wait_and_what_would_help(
    accordion: Accordion, spec: Path
) -> None:
    accordion("quota", "set", "--label", "team:slow", "--jobs", "0")
    job = accordion("submit", spec, *LONG, "--set", "labels.team=slow", "--json").json()
    waiting = ["WAITING_FOR_QUOTA"]
    while [one["reason"] for one in queue_of(accordion, job["id"])] != waiting:
        pass  # pytest's time limit ends it
    [line] = [text for text in accordion("queue").out.splitlines() if job["name"] in text]
    assert "more than the quota of label team:slow (0 jobs) allows" in line
    assert "a higher quota of label team:slow" in line
    shown = accordion("show", job["id"]).out
    assert "priority   50, labels team:slow\n" in shown
    assert "would help a higher quota of label team:slow\n" in shown
    told = accordion("why", job["id"]).out
    assert "would help a higher quota of label team:slow\n" in told
    accordion("cancel", job["id"])


def test_a_job_shows_its_time_limits(accordion: Accordion, spec: Path) -> None:
    limits = ("limits.total_seconds=86400", "limits.training_seconds=7200")
    options = [text for limit in limits for text in ("--set", limit)]
    job = accordion("submit", spec, *LONG, *options, "--json").json()
    lines = accordion("show", job["id"]).out.splitlines()
    found = [line.removeprefix("limit      ") for line in lines if line.startswith("limit ")]
    assert found[0] == "2 h 00 min of training"
    assert found[1].startswith("24 h 00 min in all, until 20")
    accordion("cancel", job["id"])


def test_the_queue_names_the_jobs_that_another_one_waits_for(
    accordion: Accordion, spec: Path
) -> None:
    accordion("quota", "set", "--label", "team:one", "--jobs", "1")
    options = (*LONG, "--set", "labels.team=one", "--json")
    first = accordion("submit", spec, *options, "--set", "name=the-first").json()
    second = accordion("submit", spec, *options).json()
    while not any(entry["waits_for"] for entry in queue_of(accordion, second["id"])):
        pass  # pytest's time limit ends it
    while queue_of(accordion, first["id"]):
        pass  # until it has left the queue, it is the first in it
    [line] = [text for text in accordion("queue").out.splitlines() if second["name"] in text]
    assert line.split()[0] == "1"
    assert " the-first " in line
    for command in ("show", "why"):
        assert "waits for  the-first\n" in accordion(command, second["id"]).out
    for job in (second, first):
        accordion("cancel", job["id"])


def test_the_queue_names_the_job_ahead_in_the_reason_as_well(
    accordion: Accordion, spec: Path
) -> None:
    jobs = []
    for name, workers in (("the-largest", 3), ("the-second", 2), ("the-third", 2)):
        size = (f"workers.min={workers}", f"workers.max={workers}", f"name={name}")
        options = [text for change in size for text in ("--set", change)]
        jobs.append(accordion("submit", spec, *LONG, *options, "--json").json()["id"])
    while not any(jobs[1] in str(entry["message"]) for entry in queue_of(accordion, jobs[2])):
        pass  # pytest's time limit ends it
    said = accordion("queue").out
    assert "waits behind job the-second," in read_column(said, "WHY IT WAITS", "WAITS FOR")
    told = accordion("why", jobs[2]).out
    assert "it is QUEUED: waits behind job the-second, which is ahead of it in the queue" in told
    assert not any(job_id in said for job_id in jobs)
    for job_id in jobs[::-1]:
        accordion("cancel", job_id)


def test_the_use_of_the_quota_of_any_other_user_is_listed_by_user(
    accordion: Accordion, spec: Path
) -> None:
    accordion("quota", "set", "--user", "*", "--workers", "8")
    job = accordion("submit", spec, *LONG, "--json").json()
    while len(lines := accordion("quota", "list").out.splitlines()) < 3:
        pass  # pytest's time limit ends it
    assert lines[2].split()[:2] == ["user", "admin"]
    assert lines[2].rstrip().endswith("of 8")
    accordion("cancel", job["id"])


def test_the_queue_and_a_job_say_what_nodes_were_requested(
    accordion: Accordion, spec: Path, service: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.runtime, "has_autoscaler", True)
    group = ("--set", "workers.min=2", "--set", "workers.max=2", "--set", "workers.cpus=4")
    job = accordion("submit", spec, *group, "--json").json()
    while not any(entry["requested_at"] for entry in queue_of(accordion, job["id"])):
        pass  # pytest's time limit ends it
    why = read_column(accordion("queue").out, "WHY IT WAITS", "WAITS FOR")
    assert "; nodes for 2 workers" in why
    shown = accordion("show", job["id"]).out
    assert "new nodes  nodes for 2 workers of 4 CPU each were requested " in shown
    accordion("cancel", job["id"])


def read_column(table: str, name: str, following: str) -> str:
    """Return the text of a column whose cells may be wrapped."""
    header, *lines = table.splitlines()
    start, end = header.index(name), header.index(following)
    return " ".join(line[start:end].strip() for line in lines)


def queue_of(accordion: Accordion, job_id: str) -> list[dict[str, object]]:
    items = accordion("queue", "--json").json()["items"]
    return [entry for entry in items if entry["id"] == job_id]
