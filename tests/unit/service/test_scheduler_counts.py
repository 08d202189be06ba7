"""Counts of the scheduler: what is stored, and when it counts as stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.store.scheduler_counts import (
    BUCKETS,
    DATABASE_ERRORS,
    ERRORS,
    SUM,
    TURN_SECONDS,
    SchedulerCounts,
    add_counts,
    bucket_labels,
)

COUNTS = st.dictionaries(
    st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9).map(float))
)


@given(COUNTS, COUNTS)
def test_a_difference_and_a_sum_cancel(counts, others):
    changed = add_counts(add_counts(counts, others), others, sign=-1.0)
    assert changed == add_counts(counts, add_counts(others, others, sign=-1.0))


@given(st.lists(st.floats(0, 1e4)))
def test_each_duration_is_in_the_first_bucket_that_holds_it(durations):
    counts = SchedulerCounts()
    for duration in durations:
        counts.observe_turn(duration)
    counted = counts.list_unstored().get(TURN_SECONDS, {})
    for limit in BUCKETS[TURN_SECONDS]:
        labels = bucket_labels(TURN_SECONDS)[: BUCKETS[TURN_SECONDS].index(limit) + 1]
        assert sum(counted.get(label, 0) for label in labels) == sum(
            duration <= limit for duration in durations
        )
    assert sum(count for label, count in counted.items() if label != SUM) == len(durations)


def test_what_is_counted_while_counts_are_stored_is_stored_the_next_time():
    counts = SchedulerCounts()
    counts.count_error("turn")
    stored = counts.list_unstored()
    counts.count_error("turn")
    counts.mark_stored(stored)
    assert counts.list_unstored()[ERRORS] == {"turn": 1}


def test_counts_that_could_not_be_stored_are_not_lost():
    counts = SchedulerCounts()
    counts.count_error("job")
    counts.list_unstored()
    assert counts.list_unstored()[ERRORS] == {"job": 1}


def test_errors_of_the_database_are_stored_once():
    errors = {"full": 2.0}
    counts = SchedulerCounts(lambda: errors)
    counts.mark_stored(counts.list_unstored())
    errors["full"] = 3.0
    assert counts.list_unstored()[DATABASE_ERRORS] == {"full": 1}
