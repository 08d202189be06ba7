"""`accordion down` beside a job that trains, and the next `accordion up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.real_up import WAIT_S, accordion, processes_of, start, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

SLOW = {
    "name": "pull",
    "task": {"name": "digits-mlp", "options": {"hidden": 32, "min_step_s": 0.3}},
    "training": {"epochs": 2},
    "workers": {"min": 2, "max": 2},
}
"""A job whose epochs take many seconds."""


def test_a_job_saves_before_down_ends_it_and_continues_there(home: Path) -> None:
    first = start(home)
    job_id = first.client.submit(SLOW).id
    wait_for(lambda: (now := first.client.job(job_id).progress) and now.step >= 3)
    told, err = accordion(home, "down").communicate(timeout=WAIT_S)
    first.process.communicate(timeout=WAIT_S)
    assert told.startswith("pull: paused; its state is saved; its newest checkpoint has "), err
    assert processes_of(home) == []
    second = start(home)
    client = second.client
    wait_for(lambda: client.job(job_id).status == "SUCCEEDED", lambda: client.job(job_id))
    before, after = client.attempts(job_id).items
    assert (before.reason, before.message) == ("SERVICE_STOPPED", "paused; its state is saved")
    assert before.ended_at < after.created_at
    saved = int(told.partition("checkpoint has ")[2].split()[0])
    assert 3 <= saved < client.job(job_id).progress.steps
    second.stop()
