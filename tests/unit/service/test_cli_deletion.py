"""`accordion delete` and `retry`."""

from __future__ import annotations

from pathlib import Path

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
