"""Whether a job may continue from a round that its workers remember; and what such a start counts
as.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from ray.exceptions import ActorDiedError

from accordion_workers.checkpoint.checkpoint_files import checkpoint_name
from accordion_workers.checkpoint.lineage import Lineage
from accordion_workers.common.errors import TaskRaised
from accordion_workers.controller.failure_policy import FailureCounts
from accordion_workers.records.contract import (
    CheckpointRecord,
    FailureRecord,
    Payload,
    Position,
    Record,
    Started,
)
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from accordion_workers.training.round_memory import may_continue
from tests.unit.workers.attempt_world import World
from tests.unit.workers.test_lineage import trained
from tests.unit.workers.world import STARTED

LOST = FailureRecord(cause="infrastructure", rank=1, message="gone", process_died=True)


def name(generation: int, samples: int, epoch: int = 0) -> str:
    return checkpoint_name(generation, Position(epoch=epoch, samples=samples))


def started(
    resumed_from: str | None = None, *, step: int = 0, from_memory: bool = False
) -> Started:
    update = {"resumed_from": resumed_from, "step": step, "from_memory": from_memory}
    return STARTED.model_copy(update=update)


def lineage(*payloads: tuple[int, Payload]) -> Lineage:
    """Lineage of records by generation."""
    return Lineage.of_records(
        Record(attempt=1, generation=generation, seq=seq, time=0.0, payload=payload)
        for seq, (generation, payload) in enumerate(payloads)
    )


FIRST = lineage((1, started()))
SECOND = lineage((1, started()), (3, started(name(1, 64))))
"""The second group went on from sample 64, so what the first one did after that is void."""


@pytest.mark.parametrize(
    ("line", "remembered", "newest_checkpoint"),
    [
        (FIRST, name(1, 64), None),
        (FIRST, name(1, 64), name(1, 32)),
        (FIRST, name(1, 64), name(1, 64)),
        (SECOND, name(3, 96), name(1, 64)),
        (SECOND, name(1, 64), name(1, 32)),
    ],
)
def test_a_round_that_is_newer_than_all_checkpoints_is_continued(
    line: Lineage, remembered: str, newest_checkpoint: str | None
) -> None:
    assert may_continue((remembered, 0), line, newest_checkpoint)


@pytest.mark.parametrize(
    ("line", "remembered", "newest_checkpoint"),
    [
        (FIRST, name(1, 64), name(1, 96)),
        (SECOND, name(1, 96), None),
        (SECOND, name(1, 96), name(1, 64)),
        (SECOND, name(2, 96), None),
        (SECOND, name(1, 64), name(3, 80)),
        (SECOND, name(4, 96), name(1, 64)),
    ],
)
def test_a_round_that_the_job_has_passed_or_given_up_is_not_continued(
    line: Lineage, remembered: str, newest_checkpoint: str | None
) -> None:
    assert not may_continue((remembered, 0), line, newest_checkpoint)


def test_a_round_after_an_epoch_whose_record_was_lost_is_not_continued() -> None:
    after = (name(1, 0, epoch=1), 1)
    assert not may_continue(after, FIRST, None)
    assert may_continue(after, lineage((1, started()), (1, trained(0))), None)


def test_a_checkpoint_before_a_remembered_round_stays_on_the_line() -> None:
    line = lineage((1, started()), (2, started(name(1, 64), step=4, from_memory=True)))
    names = [name(1, 32), name(1, 96), name(2, 128)]
    assert line.survivors(names) == [name(2, 128), name(1, 32)]


def test_a_start_from_memory_saves_no_step() -> None:
    saved = CheckpointRecord(name=name(1, 32), epoch=0, step=2, size_bytes=1, seconds=0.0)
    again = started(name(1, 64), step=4, from_memory=True)
    assert lineage((1, started()), (2, again)).saved_step == 0
    assert lineage((1, started()), (1, saved), (2, again)).saved_step == 2


def test_groups_that_get_further_by_rounds_make_progress() -> None:
    further = [started(name(n, 64 * n), step=4 * n, from_memory=True) for n in (1, 2, 3)]
    lost = [payload for one in further for payload in (LOST, one)]
    assert FailureCounts.restore([*lost, LOST]).deaths == 1
    assert FailureCounts.restore([LOST, further[0], LOST, further[0], LOST]).deaths == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ActorDiedError(), "continues from the newest round of its survivors"),
        (TaskRaised(3, 0, "ValueError: no"), "no checkpoint yet; the job restarts"),
    ],
)
def test_only_a_job_with_survivors_is_said_to_continue_from_a_round(world, error, told) -> None:
    here: World = world(least=2)
    launch = here.attempt.launch
    spec = launch.spec.model_copy(update={"local_steps": LocalStepsSpec(low=4)})
    here.attempt = replace(here.attempt, launch=launch.model_copy(update={"spec": spec}))
    here.run(lambda pool: pool.come_back({1: error}))
    assert any(told in message for message in here.host.said)
