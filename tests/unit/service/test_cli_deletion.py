"""`accordion delete` and `retry`, and logs whose beginning was removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.conftest import serve_live
from tests.unit.service.conftest import LONG, Accordion


def cancelled(accordion: Accordion, spec: Path) -> str:
    """A job that has ended."""
    job_id: str = accordion("submit", spec, *LONG, "--json").json()["id"]
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


def test_a_cancelled_job_is_retried(accordion: Accordion, spec: Path) -> None:
    job_id = cancelled(accordion, spec)
    said = accordion("retry", job_id)
    assert said.code == 0
    assert said.out.endswith(f"({job_id}) is QUEUED: retried; waits for the scheduler\n")
    accordion("cancel", job_id)


def test_logs_tell_that_older_output_was_removed(
    alone: Accordion, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in serve_live(tmp_path / "small", max_log_bytes=2000):
        monkeypatch.setenv("ACCORDION_URL", service.url)
        many = ("--set", "training.epochs=60")
        made = alone("submit", spec, *many, "--follow", "--json").out.splitlines()[0]
        job_id = json.loads(made)["id"]
        for arguments in ((), ("--follow",)):
            first, *_, last = alone("logs", job_id, *arguments).out.splitlines()
            assert "MB of older output were removed" in first
            assert last == "[rank 0] epoch 59 ended"
