"""What happens in the same instant as something else, or while the database cannot be written, is
neither lost nor doubled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from accordion_service.domain.jobs.statuses import Status
from accordion_service.scheduler.loop import Scheduler
from accordion_service.scheduler.pending_logs import MAX_PENDING_BYTES
from accordion_service.store.ingest.record_ingest import JobReport
from accordion_service.store.ingest.report_writes import ReportWrites
from accordion_workers.records.contract import Cursor, Drained, EndRecord
from tests.api.world import World

LONG = {"training": {"epochs": 40}}


def lines(world: World, job_id: str) -> list[str]:
    """All kept lines of rank 0."""
    chunks = world.history.logs(job_id)
    return [line["text"] for chunk in chunks for line in chunk.lines if line["rank"] == 0]


def expected(epochs: int) -> list[str]:
    return ["training from epoch 0, step 0", *(f"epoch {epoch} ended" for epoch in range(epochs))]


def between(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[Drained], Any]) -> None:
    """Let something happen after every drain, before what was drained is stored."""
    drain = world.runtime.drain

    def drain_and_act(job_id: str, confirmed: Cursor) -> Drained:
        drained = drain(job_id, confirmed)
        act(drained)
        return drained

    monkeypatch.setattr(world.runtime, "drain", drain_and_act)


def has_end(drained: Drained) -> bool:
    return any(isinstance(record.payload, EndRecord) for record in drained.records)


def test_an_override_submitted_as_the_job_ends_expires_and_no_record_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    made: list[str] = []
    between(
        world,
        monkeypatch,
        lambda drained: has_end(drained) and not made and made.append(world.override(job_id)),
    )
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert world.override_row(job_id, made[0]).state == "EXPIRED"
    assert lines(world, job_id) == expected(4)
    assert [event.type for event in world.events(job_id)].count("end") == 1


def test_a_database_that_cannot_be_written_for_a_while_costs_no_line_and_no_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, refused = ReportWrites.ingest, [True, True, False, True]

    def ingest_sometimes(*given: Any) -> bool:
        if refused and refused.pop():
            raise OperationalError("INSERT", {}, Exception("database or disk is full"))
        return ingest(*given)

    monkeypatch.setattr(ReportWrites, "ingest", ingest_sometimes)
    job_id = world.submit()
    world.finish(job_id)
    assert (lines(world, job_id), world.epochs(job_id)) == (expected(4), [0, 1, 2, 3])


def test_a_report_that_cannot_be_stored_does_not_keep_those_of_other_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of many jobs are stored in one transaction."""
    one = {"min": 1, "max": 1}
    jobs = [world.submit(workers=one, **LONG) for _ in range(3)]
    for job_id in jobs:
        world.train(job_id)
    ingest, sizes = ReportWrites.ingest, []

    def refuse_one(
        writes: ReportWrites, token: int, reports: Sequence[JobReport]
    ) -> frozenset[str]:
        sizes.append(len(reports))
        if jobs[1] in {job.id for job, _ in reports}:
            raise ValueError("a report that this version cannot read")
        return ingest(writes, token, reports)

    with monkeypatch.context() as patch:
        patch.setattr(ReportWrites, "ingest", refuse_one)
        before = {job_id: len(world.epochs(job_id)) for job_id in jobs}
        world.turn(4)
    assert max(sizes) == 3
    grown = {job_id: len(world.epochs(job_id)) - before[job_id] for job_id in jobs}
    assert grown[jobs[0]] >= 3
    assert grown[jobs[2]] >= 3
    for job_id in jobs:
        assert world.finish(job_id).status == Status.SUCCEEDED
        assert (lines(world, job_id), world.epochs(job_id)) == (expected(40), list(range(40)))


def test_output_beyond_the_limit_keeps_the_newest_megabyte_and_counts_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    said = [f"{n:08190}" for n in range(200)]
    with monkeypatch.context() as patch:
        patch.setattr(ReportWrites, "ingest", lambda *_: frozenset())
        for start in range(0, len(said), 8):
            for text in said[start : start + 8]:
                world.say(job_id, text)
            world.turn()
    world.turn()
    [chunk] = [chunk for chunk in world.history.logs(job_id) if chunk.dropped]
    texts = [line["text"] for line in chunk.lines if line["text"] in said]
    assert texts == said[-len(texts) :]
    assert len(said) - len(texts) <= chunk.dropped
    assert 0.9 * MAX_PENDING_BYTES < len(json.dumps(chunk.lines)) < 1.1 * MAX_PENDING_BYTES


def test_why_an_attempt_did_not_begin_in_time_is_in_its_output(world: World) -> None:
    world.runtime.stuck.add(job_id := world.submit())
    world.reach(job_id, Status.STARTING)
    world.say(job_id, "no module named missing")
    world.clock.now += world.settings.start_timeout_s
    world.turn()
    assert lines(world, job_id) == ["no module named missing"]


def test_what_a_job_said_before_it_was_stopped_by_force_is_in_its_output(world: World) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    world.cancel(job_id)
    world.turn()
    world.say(job_id, "still saving")
    world.clock.now += world.settings.cancel_grace_s
    assert world.finish(job_id).status == Status.CANCELLED
    assert lines(world, job_id)[-1] == "still saving"


@pytest.mark.parametrize(
    "ask", [None, World.pause, World.cancel], ids=["trains", "pauses", "is cancelled"]
)
def test_what_the_cluster_still_holds_of_a_job_that_is_out_of_sight_is_in_its_output(
    world: World, monkeypatch: pytest.MonkeyPatch, ask: Callable[[World, str], None] | None
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    world.runtime.stuck.add(job_id)
    if ask is not None:
        ask(world, job_id)
    monkeypatch.setattr(world.runtime, "supervisors", list)
    world.say(job_id, "my machine goes")
    world.turn_until(lambda: job_id in world.runtime.removed)
    assert lines(world, job_id)[-1] == "my machine goes"


def test_output_of_an_attempt_that_could_not_be_stored_comes_before_that_of_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id)
    with monkeypatch.context() as patch:
        patch.setattr(ReportWrites, "ingest", lambda *_: frozenset())
        world.turn(2)
    world.runtime.lose(job_id)
    assert world.finish(job_id).attempt == 2
    assert [line for line in lines(world, job_id) if line.startswith("epoch")] == expected(40)[1:]


def test_a_pause_in_the_instant_of_the_end_does_not_keep_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = world.submit()
    between(world, monkeypatch, lambda drained: has_end(drained) and world.pause(job_id))
    assert world.finish(job_id).status == Status.SUCCEEDED
    assert lines(world, job_id) == expected(4)


def test_a_job_resized_while_pausing_and_paused_resumes_with_the_new_numbers(
    world: World,
) -> None:
    job_id = world.submit(**LONG)
    world.train(job_id, workers=2)
    world.pause(job_id)
    world.resize(job_id, 1, 3)
    world.reach(job_id, Status.PAUSED)
    world.resize(job_id, 1, 1)
    world.resume(job_id)
    world.train(job_id, workers=1)
    assert world.finish(job_id).attempt == 2
    assert world.epochs(job_id) == list(range(40))


def test_two_alternating_schedulers_start_each_attempt_and_store_each_line_once(
    world: World,
) -> None:
    job_id = world.submit()
    both: list[Scheduler] = [world.scheduler, world.new_scheduler()]
    while not world.has_ended(job_id):
        # The one that looked loses its lease each time, without knowing it.
        world.clock.now += world.settings.lease_s
        both.reverse()
        both[0].run_once()
    assert world.runtime.started == [(job_id, 1)]
    assert (lines(world, job_id), world.epochs(job_id)) == (expected(4), [0, 1, 2, 3])
