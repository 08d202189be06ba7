"""Counts of the scheduler: what is stored, and when it counts as stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.writes.leases import Lease
from accordion_service.store.writes.scheduler_counts import (
    BUCKETS,
    DATABASE_ERRORS,
    ERRORS,
    SUM,
    TURN_SECONDS,
    Counts,
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


def unstored(counts: SchedulerCounts) -> Counts:
    return counts.subtract_stored(counts.list_all())


@given(st.lists(st.floats(0, 1e4)))
def test_each_duration_is_in_the_first_bucket_that_holds_it(durations):
    counts = SchedulerCounts()
    for duration in durations:
        counts.observe_turn(duration)
    counted = counts.list_all().get(TURN_SECONDS, {})
    for limit in BUCKETS[TURN_SECONDS]:
        labels = bucket_labels(TURN_SECONDS)[: BUCKETS[TURN_SECONDS].index(limit) + 1]
        assert sum(counted.get(label, 0) for label in labels) == sum(
            duration <= limit for duration in durations
        )
    assert sum(count for label, count in counted.items() if label != SUM) == len(durations)


@given(st.lists(st.floats(0, 1e4)))
def test_sums_that_are_stored_piece_by_piece_never_shrink(durations):
    counts, stored = SchedulerCounts(), 0.0
    for duration in durations:
        counts.observe_turn(duration)
        for _ in range(2):
            added = unstored(counts)[TURN_SECONDS][SUM]
            assert added >= 0
            stored += added
            counts.mark_stored(counts.list_all())
    assert stored == pytest.approx(sum(durations))


def test_what_is_counted_while_counts_are_stored_is_stored_the_next_time():
    counts = SchedulerCounts()
    counts.count_error("turn")
    stored = counts.list_all()
    counts.count_error("turn")
    counts.mark_stored(stored)
    assert unstored(counts)[ERRORS] == {"turn": 1}


def test_errors_of_the_database_are_stored_once():
    errors = {"full": 2.0}
    counts = SchedulerCounts(lambda: errors)
    counts.mark_stored(counts.list_all())
    errors["full"] = 3.0
    assert unstored(counts)[DATABASE_ERRORS] == {"full": 1}


def test_a_renewal_that_fails_stores_its_counts_the_next_time(database_url):
    database, now = Database(database_url), [0.0]
    lease = Lease(database, owner="me", clock=lambda: now[0], lease_s=3.0)
    lease.counts.count_error("job")
    with database.connect_writer() as connection:
        connection.execute(text("ALTER TABLE leases RENAME TO hidden"))
    with pytest.raises(DBAPIError):
        lease.hold()
    with database.connect_writer() as connection:
        connection.execute(text("ALTER TABLE hidden RENAME TO leases"))
    for _ in range(2):
        now[0] += 2.0
        lease.hold()
    row = ClusterReads(database).scheduler_lease()
    assert row is not None
    assert (row.counts[ERRORS], row.counts[DATABASE_ERRORS]["no_tables"]) == ({"job": 1}, 1)
    database.close()
