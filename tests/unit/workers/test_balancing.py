"""When the division of a batch follows the measured speed of the workers."""

from __future__ import annotations

import pytest

from accordion_workers.training.balancing import SETTLING_STEPS, Division, OwnWork


def test_a_division_is_even_until_it_follows_measured_speeds():
    division = Division(world_size=2)
    assert division.counts(12) == (6, 6)
    assert division.follow_((0.1, 0.2), 12)
    assert (division.counts(12), division.counts(3)) == ((8, 4), (2, 1))


@pytest.mark.parametrize(("slow_s", "follows"), [(1.21, False), (1.23, True)])
def test_a_gain_of_less_than_a_tenth_changes_nothing(slow_s, follows):
    """Half of 200 micro-batches takes the slower worker 121 s, and a balanced part 110 s."""
    division = Division(world_size=2)
    assert division.follow_((1.0, slow_s), 200) == follows
    assert (division.counts(200) == (100, 100)) != follows


def test_a_worker_that_recovers_gets_its_part_back():
    division = Division(world_size=2)
    assert division.follow_((1.0, 3.0), 4)
    assert not division.follow_((1.0, 2.9), 4)
    assert division.follow_((1.0, 1.0), 4)
    assert division.counts(4) == (2, 2)


def test_too_few_micro_batches_to_divide_otherwise_stay_even():
    assert not Division(world_size=2).follow_((1.0, 1.6), 4)


def test_own_work_is_counted_by_samples_from_the_last_comparison():
    seconds = {"load": 2.0, "compute": 8.0, "communicate": 50.0}
    work = OwnWork()
    for _ in range(SETTLING_STEPS):
        seconds["compute"] += 100.0
        work.end_step(64, seconds)
    assert work.measured(seconds) == (0.0, 0)
    seconds["load"] += 1.0
    seconds["compute"] += 3.0
    work.end_step(52, seconds)
    assert work.measured(seconds) == (4.0, 52)
    work.start(seconds)
    assert work.measured(seconds) == (0.0, 0)
