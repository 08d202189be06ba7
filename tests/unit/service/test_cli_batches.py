"""`accordion cancel`, `pause` and `resume` of all jobs with some labels."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (("resize", "a-job", "1"), "MIN and MAX are 'a-job 1'"),
        (("resize", "a-job", "0", "1"), "give two whole numbers"),
        (("resize", "1", "2"), "give either JOB or --label"),
        (("change", "--with-label", "a:b", "--name", "n"), "--name is for one job"),
        (("change", "--priority", "1"), "give either JOB or --with-label"),
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
