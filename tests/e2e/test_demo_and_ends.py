"""`accordion demo`, and the end of `accordion up`: real processes, real Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.real_up import TEN_SECONDS, WAIT_S, accordion, processes_of, start, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_stopped_or_killed_up_leaves_nothing_running_and_the_next_one_goes_on(home: Path) -> None:
    first = start(home)
    job = first.client.submit(TEN_SECONDS)
    wait_for(lambda: first.client.checkpoints(job.id).items)
    first.process.terminate()
    first.process.communicate(timeout=WAIT_S)
    assert first.process.returncode == 0
    assert processes_of(home) == []
    assert not (home / "up.json").exists()

    second = start(home)
    wait_for(lambda: second.client.job(job.id).status in ("SUCCEEDED", "FAILED"))
    assert second.client.job(job.id).status == "SUCCEEDED"
    assert second.client.attempts(job.id).items[-1].number == 2

    other = second.client.submit(TEN_SECONDS)
    wait_for(lambda: second.client.job(other.id).status == "RUNNING")
    second.process.kill()
    second.process.communicate(timeout=WAIT_S)
    wait_for(lambda: not processes_of(home))


def test_the_demo_succeeds_writes_its_figures_and_leaves_nothing_running(
    home: Path, tmp_path: Path
) -> None:
    demo = accordion(home, "demo", "--json", str(tmp_path / "figures.json"))
    out, err = demo.communicate(timeout=2 * WAIT_S)
    assert (demo.returncode, err) == (0, "")
    assert all(
        word in out
        for word in (
            "epoch  19 of 0-19",
            "critical low",
            "stable high",
            "saved",
            "accuracy",
            "uncompressed",
            "fp16",
        )
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["accuracy"] >= 0.95
    assert figures["engine"] == "ray-train"
    assert 0 < figures["seconds"]["ready"] < figures["seconds"]["total"]
    assert 0 < figures["bytes"]["wire"] < figures["bytes"]["dense_wire"] / 2
    assert processes_of(home) == []
