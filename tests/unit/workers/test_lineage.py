"""Which checkpoints lie on the surviving line of a job's worker groups."""

from __future__ import annotations

from pathlib import Path

from accordion_workers.checkpoint.checkpoint_files import checkpoint_name
from accordion_workers.checkpoint.lineage import Lineage
from accordion_workers.hub.journal import Journal, claim_generation, read_records
from accordion_workers.records.contract import (
    CheckpointRecord,
    EpochRecord,
    Payload,
    Position,
    Record,
)
from tests.unit.workers.world import STARTED


def name(generation: int, epoch: int) -> str:
    return checkpoint_name(generation, Position(epoch=epoch))


def started(epoch: int, resumed_from: str | None = None) -> Payload:
    return STARTED.model_copy(
        update={"epoch": epoch, "step": 4 * epoch, "resumed_from": resumed_from}
    )


def trained(epoch: int) -> EpochRecord:
    none = {"lr": 0.1, "global_batch": 4, "samples": 16, "seconds_by_phase": {}, "bytes": {}}
    content = {
        "epoch": epoch,
        "step": 4,
        "world_size": 1,
        "loss": None,
        "regime_by_layer": {},
        "level_by_layer": {},
    }
    return EpochRecord.model_validate({**none, **content})


def lineage(*payloads: tuple[int, Payload]) -> Lineage:
    """Lineage of records by generation."""
    return Lineage.of_records(
        Record(attempt=1, generation=generation, seq=seq, time=0.0, payload=payload)
        for seq, (generation, payload) in enumerate(payloads)
    )


def test_a_checkpoint_that_came_after_the_next_group_had_started_is_not_on_the_line():
    line = lineage((1, started(0)), (2, started(0)))
    assert line.survivors([name(1, 1), name(2, 1)]) == [name(2, 1)]


def test_the_line_runs_back_through_the_checkpoints_that_groups_resumed_from():
    line = lineage((1, started(0)), (2, started(2, name(1, 2))), (3, started(3, name(2, 3))))
    names = [name(generation, epoch) for generation in (1, 2, 3) for epoch in (1, 2, 3, 4)]
    newest = [name(3, epoch) for epoch in (4, 3, 2, 1)]
    assert line.survivors(names) == [
        *newest,
        *(name(2, epoch) for epoch in (3, 2, 1)),
        name(1, 2),
        name(1, 1),
    ]


def test_a_group_that_started_later_comes_first_though_its_generation_is_lower():
    """A job whose records were lost counts its generations anew."""
    line = lineage((1, started(3, name(7, 3))))
    assert line.survivors([name(7, 4), name(7, 3), name(1, 4)]) == [name(1, 4), name(7, 3)]


def test_where_nothing_is_recorded_every_checkpoint_may_be_resumed_from():
    assert lineage().survivors([name(1, 1), name(2, 1)]) == [name(2, 1), name(1, 1)]
    assert lineage().missing_epochs(3) == []


def test_epochs_that_are_trained_again_are_missing_until_they_are_done():
    before = lineage((1, started(0)), (1, trained(0)), (1, trained(1)), (2, started(1, name(1, 1))))
    assert before.missing_epochs(2) == [1]
    assert before.missing_epochs(1) == []


def test_the_saved_step_is_that_of_the_newest_checkpoint_on_the_line():
    saved = CheckpointRecord(name=name(1, 2), epoch=2, step=8, size_bytes=1, seconds=0.0)
    assert lineage((1, started(0)), (1, saved)).saved_step == 8
    assert lineage((1, started(0)), (1, saved), (2, started(1, name(1, 1)))).saved_step == 4


def test_the_line_runs_through_attempts_and_past_generations_that_no_group_used(tmp_path: Path):
    groups = [(1, 1, started(0)), (1, 3, started(2, name(1, 2))), (2, 7, started(3, name(3, 3)))]
    for attempt, generation, payload in groups:
        while claim_generation(tmp_path) < generation:
            continue
        Journal(tmp_path, attempt=attempt, generation=generation, clock=lambda: 0.0).write(payload)
    claim_generation(tmp_path)
    line = Lineage.of_records(read_records(tmp_path))
    names = [name(generation, epoch) for generation in (1, 3, 7) for epoch in (2, 3, 4)]
    assert line.survivors(names) == [
        *(name(7, epoch) for epoch in (4, 3, 2)),
        name(3, 3),
        name(3, 2),
        name(1, 2),
    ]
