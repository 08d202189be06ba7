"""Whatever happens to a job in whatever order, its rows stay true: a property over random lives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion_service.domain.jobs.status_table import ENDED, HELD, is_transition_allowed
from accordion_service.domain.jobs.statuses import Status
from accordion_service.domain.overrides.states import LIVE
from accordion_service.errors import Conflict
from tests.api.world import World
from tests.conftest import NewDatabase
from tests.history_laws import came_in_last_epoch, find_repeated_epochs

HAPPENINGS = (
    "repeat",
    "turn",
    "turn",
    "kill",
    "lose",
    "break",
    "forget",
    "outage",
    "back",
    "mute",
    "unmute",
    "override",
    "hand back",
    "resize",
    "pause",
    "resume",
    "node goes",
    "node drains",
    "nodes come back",
    "a more important job",
)
ENDINGS = ("let it run", "cancel")
EPOCHS = 6


def happen(world: World, job_id: str, what: str) -> None:
    """One thing happens; what is impossible just now does not."""
    runtime = world.runtime
    fake = runtime.jobs.get(job_id)
    there = fake is not None and fake.alive
    trains = there and fake is not None and fake.phase == "running"
    deeds: dict[str, Callable[[], object]] = {
        "turn": world.turn,
        "kill": world.kill_scheduler,
        "lose": lambda: there and runtime.lose(job_id),
        "break": lambda: trains and runtime.break_group(job_id),
        "forget": lambda: there and runtime.forget(job_id),
        "outage": lambda: setattr(runtime, "down", True),
        "back": lambda: setattr(runtime, "down", False),
        "repeat": lambda: setattr(runtime, "repeats", not runtime.repeats),
        "mute": lambda: setattr(runtime, "mute", {1}),
        "unmute": lambda: setattr(runtime, "mute", set()),
        "override": lambda: command(world, job_id, what),
        "hand back": lambda: command(world, job_id, what),
        "resize": lambda: command(world, job_id, what),
        "pause": lambda: command(world, job_id, what),
        "resume": lambda: command(world, job_id, what),
        "node goes": lambda: runtime.dead.add(1),
        "node drains": lambda: runtime.draining.add(1),
        "nodes come back": lambda: (runtime.dead.clear(), runtime.draining.clear()),
        "a more important job": lambda: world.submit(
            priority=90, workers={"min": 2, "max": 2}, training={"epochs": 1}
        ),
    }
    deeds[what]()


def command(world: World, job_id: str, what: str) -> None:
    """Send a request of a user, which may be refused as too late."""
    overrides = world.overrides.list_all(job_id)
    try:
        if what == "override":
            world.override(
                job_id, layers=[["*"], ["fc1*"]][len(overrides) % 2], level=len(overrides) % 2
            )
        elif what == "resize":
            world.resize(job_id, *[(1, 1), (1, 4), (2, 3)][world.job(job_id).etag_version % 3])
        elif what == "pause":
            world.pause(job_id)
        elif what == "resume":
            world.resume(job_id)
        elif overrides:
            world.cancel_override(job_id, overrides[-1].id)
    except Conflict:
        pass


def statuses(world: World, job_id: str) -> list[Status]:
    """The states in the order in which they were told."""
    told = [Status(event.data["status"]) for event in world.events(job_id, "status")]
    return [told[0], *(new for old, new in pairwise(told) if old is not new)]


def check_rows(world: World, job_id: str) -> None:
    """What is true at any time."""
    job, events = world.job(job_id), world.events(job_id)
    assert [event.seq for event in events] == list(range(1, job.event_seq + 1))
    assert all(is_transition_allowed(old, new) for old, new in pairwise(statuses(world, job_id)))
    assert (Status(job.status) in ENDED) == (events[-1].type == "end")
    assert not find_repeated_epochs(events)
    assert (job.workers == 0) == (Status(job.status) in HELD | ENDED)
    assert job.workers <= sum(world.runtime.cpus)


def check_end(world: World, job_id: str, *, cancelled_at: float | None) -> None:
    """Check that a cancelled job stopped, unless only its last epoch was left, and that any other
    one trained all its epochs.
    """
    if world.job(job_id).status == Status.CANCELLED:
        assert cancelled_at is not None
        return
    assert world.job(job_id).status == Status.SUCCEEDED
    assert world.epochs(job_id) == list(range(EPOCHS))
    if cancelled_at is not None:
        assert came_in_last_epoch(cancelled_at, world.history.epochs(job_id))


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    happenings=st.lists(st.sampled_from(HAPPENINGS), max_size=25), ending=st.sampled_from(ENDINGS)
)
def test_rows_stay_true_whatever_happens(
    new_database: NewDatabase, happenings: list[str], ending: str
) -> None:
    with tempfile.TemporaryDirectory() as home, new_database() as url:
        world = World(
            Path(home), database_url=url, max_lost_attempts=100, preempt_for_priority=True
        )
        world.runtime.cpus = [2.0, 2.0]
        job_id = world.submit(training={"epochs": EPOCHS})
        for what in happenings:
            happen(world, job_id, what)
            check_rows(world, job_id)
        cancelled_at = None
        if ending == "cancel" and not world.has_ended(job_id):
            cancelled_at = world.clock.now
            world.cancel(job_id)
        elif not world.has_ended(job_id):
            world.resume(job_id)
        world.runtime.down = False
        world.turn_until(lambda: world.has_ended(job_id), limit=2000)
        check_rows(world, job_id)
        check_end(world, job_id, cancelled_at=cancelled_at)
        assert all(row.state not in LIVE for row in world.overrides.list_all(job_id))
        world.close()
