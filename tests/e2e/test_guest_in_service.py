"""The example of a guest run beside a real `accordion up`: seen, overridden, and ended by its own
script.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accordion_client import Refused
from accordion_service.schemas.overrides import OverrideRequest
from tests.e2e.killed_guest import EPOCHS as KILLED_EPOCHS
from tests.e2e.killed_guest import STEPS_PER_EPOCH
from tests.e2e.real_up import WAIT_S, Up, accordion, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "deploy" / "jobs" / "ray-train-guest" / "train_compressed.py"
EPOCHS = 20


@pytest.fixture
def script(up: Up, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The example, started by hand on the cluster of `up`."""
    arguments = ["--name", "mine", "--epochs", str(EPOCHS), "--storage", str(tmp_path)]
    lines, _ = accordion(up.home, "env").communicate(timeout=WAIT_S)
    command = f"{lines}\nexec {shlex.join([sys.executable, str(EXAMPLE), *arguments])}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log)
    yield process
    process.terminate()
    process.wait(WAIT_S)


def test_guest_is_seen_overridden_and_ended_by_its_own_script(
    up: Up, script, tmp_path: Path
) -> None:
    def guests() -> list[str]:
        assert script.poll() in (None, 0), (tmp_path / "log").read_text()[-4000:]
        return [job.id for job in up.client.all_jobs() if job.kind == "guest"]

    [job_id] = wait_and_get(guests)
    wait_for(lambda: up.client.epochs(job_id).total)
    job = up.client.job(job_id)
    assert (job.name, job.status, job.world_size, job.workers, job.progress.epochs) == (
        "mine",
        "RUNNING",
        2,
        0,
        None,
    )
    assert job.ray_run.train_run == "mine"
    with pytest.raises(Refused, match="is a guest run and cannot be cancelled here"):
        up.client.cancel(job_id)
    made = up.client.override(job_id, OverrideRequest(level={"method": "none"}))
    wait_for(lambda: up.client.overrides(job_id).items[0].state not in ("PENDING", "DELIVERED"))
    [override] = up.client.overrides(job_id).items
    assert (override.id, override.state, override.acks) == (made.id, "APPLIED", 2)
    wait_for(lambda: up.client.job(job_id).status not in ("RUNNING", "RECOVERING"))
    assert (up.client.job(job_id).status, script.wait(WAIT_S)) == ("SUCCEEDED", 0)
    epochs = list(up.client.all_epochs(job_id))
    assert [epoch.epoch for epoch in epochs] == list(range(EPOCHS))
    assert epochs[0].bytes.payload < epochs[0].bytes.dense / 4
    assert epochs[-1].metrics["accuracy"] > 0.85
    # What workers print reaches the terminal of the script: rank 0 says so when the run registers.
    assert "watch it with: accordion watch" in (tmp_path / "log").read_text()


@pytest.fixture
def killed(up: Up, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A guest run of which the test kills a worker."""
    lines, _ = accordion(up.home, "env").communicate(timeout=WAIT_S)
    module = [sys.executable, "-m", "tests.e2e.killed_guest", str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        command = ["bash", "-c", f"{lines}\nexec {shlex.join(module)}"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield process
    process.terminate()
    process.wait(WAIT_S)


@pytest.mark.parametrize("rank", [0, 1])
def test_all_steps_that_a_killed_worker_costs_a_guest_are_counted(
    up: Up, killed, tmp_path: Path, rank: int
) -> None:
    def lines() -> list[str]:
        return (tmp_path / "steps-0").read_text().splitlines()

    def told() -> int:
        progress = up.client.job(job_id).progress
        return progress.step if progress else 0

    others = {job.id for job in up.client.all_jobs()}
    [job_id] = wait_and_get(lambda: {job.id for job in up.client.all_jobs()} - others)
    wait_for(lambda: told() >= 2 * STEPS_PER_EPOCH + 15)
    told_before = told()
    os.kill(int((tmp_path / f"pid-{rank}").read_text()), signal.SIGKILL)
    assert killed.wait(WAIT_S) == 0, (tmp_path / "log").read_text()[-4000:]
    _, _, again = "\n".join(lines()).rpartition("begin")
    resumed_at = int(again.split()[0])
    done = max(int(line.split()[1]) for line in lines()[: lines().index(f"begin {resumed_at}")])
    wait_for(lambda: up.client.job(job_id).status == "SUCCEEDED")
    counted = up.client.job(job_id).tally.steps_rolled_back
    # A killed rank 0 has reported its last steps to nobody, however late its reports are.
    least = done if rank else told_before
    assert least - resumed_at <= counted <= done - resumed_at
    assert up.client.epochs(job_id).total == KILLED_EPOCHS


def wait_and_get(find):
    """Wait until there is something to find, and return it."""
    wait_for(find)
    return find()
