"""Windows of the detector with local steps: what they hold, and where they end."""

from __future__ import annotations

from typing import Any

import pytest

from accordion.base.local_steps import LocalSteps
from accordion.base.messages import Decision, Report
from accordion.config import DetectorConfig, Window
from tests.distributed.loop_jobs import spec
from tests.distributed.test_local_steps import RATE, WORKERS, Worker
from tests.distributed.test_simulation import simulate


def statistics(rank: int) -> Any:
    window = DetectorConfig(window=Window(steps=4))
    norms = []
    for local in (None, LocalSteps(low=2, high=2)):
        reports = []

        def decide(report: Report, proposal: Decision, kept: list[Report] = reports) -> Decision:
            kept.append(report)
            return proposal

        worker = Worker(rank, local, decider=decide, detector=window)
        worker.session.lr = RATE
        for step in range(4):
            worker.step(step)
        norms += [report.statistic_by_layer for report in reports]
    return norms


def test_the_statistic_of_a_round_is_its_change_by_step(run_group):
    plain, local = run_group(WORKERS, statistics)[0]
    for layer, norm in plain.items():
        assert local[layer] == pytest.approx(RATE * norm, rel=0.3)


def end_in_windows(rank: int) -> Any:
    window, reports = DetectorConfig(window=Window(steps=4)), []

    def decide(report: Report, proposal: Decision) -> Decision:
        reports.append((report.step, report.epoch_end, report.window_steps))
        return proposal

    worker = Worker(rank, LocalSteps(low=9, high=9), decider=decide, detector=window)
    switches = []
    for step in range(10):
        worker.step(step)
        if step in (2, 4):
            switches.append(worker.session.finish_round())
    worker.session.end_epoch(lr=RATE, next_lr=RATE)
    return reports, [switch is not None for switch in switches]


def test_a_window_that_ends_within_a_round_is_closed_when_the_round_ends_early(run_group):
    reports, switches = run_group(WORKERS, end_in_windows)[0]
    assert switches == [False, True]
    assert reports == [(5, False, 2), (10, False, 1), (10, True, 0)]


def test_windows_of_rounds_longer_than_an_epoch_end_with_the_epochs_and_are_reported(tmp_path):
    job = spec(
        training={"epochs": 3},
        compression={"method": "none"},
        local_steps={"low": 64},
        policy={"window": {"steps": 16}},
    )
    told = simulate(job, tmp_path, 2)
    decisions = [one.decision for one in told.posted if one.kind == "decision"]
    # An epoch has 23 steps.
    assert [one.step for one in decisions if one.cause == "window"] == [23, 46, 69]
    assert all(epoch.agreement is not None for epoch in told.epochs())
