"""When the division of a batch follows the measured speed of the workers."""

from __future__ import annotations

import pytest

from workers.training.balancing import Division, OwnWork


def test_a_division_is_even_until_it_follows_measured_speeds():
    division = Division(world_size=2)
    assert division.counts(12) == (6, 6)
    assert division.follow((0.1, 0.2), 12)
    assert (division.counts(12), division.counts(3)) == ((8, 4), (2, 1))


@pytest.mark.parametrize(("slow_s", "follows"), [(1.21, False), (1.23, True)])
def test_a_gain_of_less_than_a_tenth_changes_nothing(slow_s, follows):
    """Half of 200 micro-batches takes the slower worker 121 s, and a balanced part 110 s."""
    division = Division(world_size=2)
    assert division.follow((1.0, slow_s), 200) == follows
    assert (division.counts(200) == (100, 100)) != follows


def test_a_worker_that_recovers_gets_its_part_back():
    division = Division(world_size=2)
    assert division.follow((1.0, 3.0), 4)
    assert not division.follow((1.0, 2.9), 4)
    assert division.follow((1.0, 1.0), 4)
    assert division.counts(4) == (2, 2)


def test_too_few_micro_batches_to_divide_otherwise_stay_even():
    assert not Division(world_size=2).follow((1.0, 1.6), 4)


def test_own_work_is_counted_from_the_last_comparison():
    seconds = {"load": 2.0, "compute": 8.0, "communicate": 50.0}
    work = OwnWork()
    work.start_comparison(seconds)
    work.pieces += 4
    seconds["load"] += 1.0
    seconds["compute"] += 3.0
    assert work.since_comparison(seconds) == (4.0, 4)
    work.start_comparison(seconds)
    assert work.since_comparison(seconds) == (0.0, 0)
