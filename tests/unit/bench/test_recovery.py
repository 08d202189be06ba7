"""What the recovery bench reads from the log of steps."""

from __future__ import annotations

import pytest

from tests.bench.recovery import TARGETS, row_of
from tests.bench.recovery_task import Recovery, Step, recovery_after

FAULT = 10.0


def steps(pid: int, first: int, times: list[float], *, world_size: int = 2) -> list[Step]:
    return [
        Step(time=time, rank=0, pid=pid, step=first + number, world_size=world_size)
        for number, time in enumerate(times)
    ]


def test_a_new_process_has_recovered_when_it_begins_its_second_step():
    found = recovery_after([*steps(1, 100, [9.0, 9.5]), *steps(2, 99, [14.0, 14.5])], FAULT)
    assert found == Recovery(seconds=4.5, stood_still_s=5.0, rolled_back=2, world_size=2)


def test_a_process_that_stays_has_recovered_at_its_second_step_in_another_world():
    found = recovery_after([*steps(1, 100, [9.0, 11.0]), *steps(1, 101, [12.0, 12.5], world_size=1)], FAULT)
    assert found == Recovery(seconds=2.5, stood_still_s=1.5, rolled_back=0, world_size=1)


def test_steps_of_the_old_workers_after_the_fault_are_no_recovery():
    assert recovery_after(steps(1, 100, [9.0, 10.5, 11.0]), FAULT) is None


def test_the_first_step_of_a_new_process_is_not_complete_before_the_next():
    assert recovery_after([*steps(1, 100, [9.0]), *steps(2, 100, [14.0])], FAULT) is None


@pytest.mark.parametrize(("peer_s", "met"), [(2.7, True), (2.5, False)])
def test_a_row_is_met_by_the_ratio_of_the_seconds_in_a_round(peer_s, met):
    target = next(target for target in TARGETS if target.row == "worker-killed")
    times = {"ours": 2.0, "ray-train": peer_s}
    found = {
        name: Recovery(seconds=seconds, stood_still_s=seconds, rolled_back=0, world_size=2)
        for name, seconds in times.items()
    }
    assert row_of(target, [found])["met"] is met


def test_a_row_without_our_figure_is_not_met():
    target = next(target for target in TARGETS if target.row == "node-drained")
    assert row_of(target, [{}])["met"] is False
