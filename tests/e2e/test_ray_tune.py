"""The sweep of deploy/examples by Ray Tune, over jobs of a service."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import tune

from accordion_client import Client
from tests.api.conftest import serve_live
from tests.programs import run_program

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parents[2] / "deploy/examples/sweep_with_ray_tune.py"
EPOCHS, TRIALS = 6, 4


def test_trials_are_jobs(tmp_path: Path) -> None:
    own = {"ACCORDION_HOME": str(tmp_path / "client"), "HOME": str(tmp_path)}
    command = [sys.executable, SCRIPT, "--epochs", str(EPOCHS), "--trials", str(TRIALS)]
    for service in serve_live(tmp_path / "service"):
        environment = {**os.environ, **own, "ACCORDION_URL": service.url}
        for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            environment.pop(name, None)
        ended = run_program(command, env=environment, timeout=500)
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert "'rank':" in ended.stdout
        with Client(service.url) as client:
            jobs = client.jobs(label="sweep:tune").items
        assert len(jobs) == TRIALS
        assert {job.status for job in jobs} <= {"SUCCEEDED", "CANCELLED"}


def test_the_job_of_a_stopped_trial_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []

    def report(metrics: dict[str, float]) -> None:
        reports.append(metrics)
        if len(reports) == 2:
            raise SystemExit  # as Tune ends the function of a stopped trial

    monkeypatch.setattr(tune, "report", report)
    monkeypatch.setattr(tune, "get_context", lambda: SimpleNamespace(get_trial_id=lambda: "one"))
    train = runpy.run_path(str(SCRIPT))["train"]
    for service in serve_live(tmp_path):
        monkeypatch.setenv("ACCORDION_URL", service.url)
        with pytest.raises(SystemExit):
            train({"lr": 0.1, "rank": 2}, epochs=100_000)
        with Client(service.url) as client:
            [job] = client.jobs(label="sweep:tune").items
            assert list(client.events(job.id))
            assert client.job(job.id).status == "CANCELLED"
    assert [metrics["epoch"] for metrics in reports] == [1, 2]
