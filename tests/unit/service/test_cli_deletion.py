"""`accordion delete` and `retry`, and logs whose beginning was removed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from accordion_client import Client
from tests.api.conftest import serve_live
from tests.unit.service.conftest import LONG, Accordion


def cancelled(accordion: Accordion, spec: Path, *options: str) -> str:
    """A job that has ended."""
    job_id: str = accordion("submit", spec, *LONG, *options, "--json").json()["id"]
    accordion("cancel", job_id)
    while accordion("show", job_id, "--json").json()["job"]["status"] != "CANCELLED":
        pass  # pytest's time limit ends it
    return job_id


def test_an_ended_job_is_deleted_after_a_confirmation(accordion: Accordion, spec: Path) -> None:
    job_id = cancelled(accordion, spec)
    refused = accordion("delete", job_id)
    assert (refused.code, "confirm with --yes" in refused.err) == (2, True)
    said = accordion("delete", job_id, "--yes")
    assert (said.code, said.out.endswith(f"({job_id})\n")) == (0, True)
    gone = accordion("show", job_id)
    assert (gone.code, job_id in gone.err) == (2, True)


def test_a_job_that_has_not_ended_is_not_deleted(accordion: Accordion, spec: Path) -> None:
    job_id = accordion("submit", spec, *LONG, "--json").json()["id"]
    for options in ([], ["--yes"]):
        refused = accordion("delete", job_id, *options)
        assert (refused.code, "cancel it before you delete it" in refused.err) == (2, True)
    accordion("cancel", job_id)


def test_ended_jobs_are_archived_and_unarchived(accordion: Accordion, spec: Path) -> None:
    jobs = {cancelled(accordion, spec), cancelled(accordion, spec)}
    said = accordion("archive", *jobs)
    assert (said.code, [line.rpartition(") is ")[2] for line in said.out.splitlines()]) == (
        0,
        ["archived", "archived"],
    )

    def listed(*options: str) -> set[str]:
        items = accordion("list", "--limit", "200", *options, "--json").json()["items"]
        return {item["id"] for item in items} & jobs

    assert (listed(), listed("--archived"), listed("--all")) == (set(), jobs, jobs)
    one = sorted(jobs)[0]
    assert f"'accordion unarchive {one}' lists it again" in accordion("show", one).out
    assert accordion("unarchive", *jobs).out.count(") is not archived\n") == 2
    assert listed() == jobs


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_job_that_cannot_be_archived_is_named_and_keeps_no_other_from_it(
    accordion: Accordion, spec: Path, options: tuple[str, ...]
) -> None:
    going, ended = accordion("submit", spec, *LONG, "--json").json(), cancelled(accordion, spec)
    said = accordion("archive", going["id"], ended, *options)
    assert said.code == 1
    assert f"({going['id']}): " in said.err
    assert "cancel it, or wait until it has ended" in said.err
    assert accordion("show", ended, "--json").json()["job"]["archived"]
    if options:
        refused, archived = said.json()["items"]
        assert (refused["archived"], archived["archived"], archived["error"]) == (False, True, None)
        assert "cancel it" in refused["error"]
    else:
        assert (ended in said.out, going["id"] in said.out) == (True, False)
    accordion("cancel", going["id"])


def test_a_job_that_has_not_ended_is_not_archived(accordion: Accordion, spec: Path) -> None:
    job_id = accordion("submit", spec, *LONG, "--json").json()["id"]
    refused = accordion("archive", job_id)
    assert (refused.code, "cancel it, or wait until it has ended" in refused.err) == (2, True)
    accordion("cancel", job_id)


def test_a_batch_archives_the_ended_jobs_with_a_label(accordion: Accordion, spec: Path) -> None:
    job_id = cancelled(accordion, spec, "--set", "labels.sweep=archive")
    planned = accordion("archive", "--label", "sweep:archive", "--dry-run")
    assert (planned.code, planned.out.startswith("would archive ")) == (0, True)
    said = accordion("archive", "--label", "sweep:archive")
    assert (said.code, said.out.endswith(f"({job_id}) is archived\n")) == (0, True)
    again = accordion("archive", "--label", "sweep:archive")
    assert "no job to archive is left among those with the label sweep:archive\n" in again.err
    back = accordion("unarchive", "--label", "sweep:archive")
    assert back.out.endswith(f"({job_id}) is not archived\n")


def test_a_list_that_hides_only_archived_jobs_says_so(accordion: Accordion, spec: Path) -> None:
    job_id = cancelled(accordion, spec, "--set", "labels.sweep=hidden")
    accordion("archive", job_id)
    chosen = ("list", "--label", "sweep:hidden")
    assert accordion(*chosen).out == "no job matches; archived ones do: give --archived\n"
    nothing = "no job matches\n"
    assert accordion(*chosen, "--status", "RUNNING").out == nothing
    accordion("unarchive", job_id)
    assert accordion(*chosen, "--archived").out == nothing


def test_an_archived_job_is_found_by_name_only_if_no_other_has_it(
    accordion: Accordion, spec: Path
) -> None:
    name = ("--set", "name=once-and-again")
    old = cancelled(accordion, spec, *name)
    assert accordion("archive", "once-and-again").code == 0
    assert accordion("show", "once-and-again", "--json").json()["job"]["id"] == old
    new = cancelled(accordion, spec, *name)
    assert accordion("show", "once-and-again", "--json").json()["job"]["id"] == new
    assert old in accordion("unarchive", "once-and-again").out


def test_a_cancelled_job_is_retried(accordion: Accordion, spec: Path) -> None:
    job_id = cancelled(accordion, spec)
    said = accordion("retry", job_id)
    assert said.code == 0
    assert said.out.endswith(f"({job_id}) is QUEUED: retried; waits for the scheduler\n")
    accordion("cancel", job_id)


def test_logs_tell_that_older_output_was_removed(
    alone: Accordion, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in serve_live(tmp_path / "small", max_log_bytes=1000):
        monkeypatch.setenv("ACCORDION_URL", service.url)
        many = ("--set", "training.epochs=40")
        made = alone("submit", spec, *many, "--follow", "--json").out.splitlines()[0]
        job_id = json.loads(made)["id"]
        for arguments in ((), ("--follow",)):
            first, *_, last = alone("logs", job_id, *arguments).out.splitlines()
            assert re.fullmatch(r"\[accordion\] [\d.]+ k?B of older output were removed: .*", first)
            assert last == "[rank 0] epoch 39 ended"
        shown = alone("show", job_id).out
        assert re.search(r"output     the oldest [\d.]+ kB are no longer kept", shown)


def test_show_says_that_output_was_removed_by_retention(
    accordion: Accordion, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, find = cancelled(accordion, spec), Client.find
    assert "output  " not in accordion("show", job_id).out
    removed = {"log_bytes_removed": 1234, "history_removed_at": datetime(2026, 1, 31, tzinfo=UTC)}
    monkeypatch.setattr(
        Client, "find", lambda *given: find(*given).model_copy(update=removed), raising=True
    )
    assert re.search(
        r"output     the oldest 1.23 kB, perhaps with a traceback that the status names, were"
        r" removed by retention 2026-01-3",
        accordion("show", job_id).out,
    )
