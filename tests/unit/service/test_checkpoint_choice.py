"""Which checkpoints of a job are still on its storage, and which are read for its model."""

from __future__ import annotations

import pytest

from accordion_service.errors import Conflict
from accordion_service.job_inputs.checkpoints import KeptCheckpoints, choose_checkpoints, find_kept
from accordion_service.store.tables.models import CheckpointRow
from accordion_workers.records.contract import ObjectiveSpec

NO_MODEL = " and has saved no checkpoint, so there is no model of it; "


def saved(*places: tuple[int, int, float | None]) -> list[CheckpointRow]:
    """Checkpoints of these generations, steps and objectives, named by the first two."""
    return [
        CheckpointRow(name=f"g{generation}-s{step}", generation=generation, step=step, objective=at)
        for generation, step, at in places
    ]


def kept(*names: str, best: str | None = None) -> KeptCheckpoints:
    """The answer with these names, the newest one first."""
    every = {*names, best} if best else set(names)
    return KeptCheckpoints(names=frozenset(every), newest=names[0], best=best)


@pytest.mark.parametrize(
    ("mode", "best"), [("", None), ("min", "g1-s10"), ("max", "g1-s20")], ids=str
)
def test_the_newest_are_kept_and_the_best_by_the_objective(mode: str, best: str | None) -> None:
    rows = saved((1, 10, 0.1), (1, 20, 0.9), (1, 30, 0.9), (1, 35, None), (2, 40, 0.5))
    assert find_kept(rows, keep=2, mode=mode) == kept("g2-s40", "g1-s35", best=best)


def test_the_newest_may_be_the_best_as_well() -> None:
    rows = saved((1, 10, 0.5), (1, 20, 0.4))
    assert find_kept(rows, keep=1, mode="min") == kept("g1-s20", best="g1-s20")


def test_a_job_without_checkpoints_keeps_none() -> None:
    assert find_kept([], keep=2, mode="min") == KeptCheckpoints()


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("RUNNING", "has not saved a checkpoint yet; try again when it has"),
        ("FAILED", f"is FAILED{NO_MODEL}'accordion retry' or 'accordion clone' trains it again"),
        ("CANCELLED", f"is CANCELLED{NO_MODEL}'accordion retry' or 'accordion clone' trains it"),
        ("SUCCEEDED", f"is SUCCEEDED{NO_MODEL}'accordion clone' trains it again"),
    ],
)
def test_only_a_job_that_goes_on_may_have_a_model_later(status: str, advice: str) -> None:
    with pytest.raises(Conflict, match=f"^the job {advice}"):
        choose_checkpoints([], None, None, status=status)


@pytest.mark.parametrize(
    ("status", "advice"), [("PAUSED", "try again later"), ("CANCELLED", "leave out 'checkpoint'")]
)
def test_only_a_job_that_goes_on_may_have_a_best_model_later(status: str, advice: str) -> None:
    objective = ObjectiveSpec(metric="loss", mode="min")
    with pytest.raises(Conflict, match=f"at the end of an epoch; {advice}"):
        choose_checkpoints(saved((1, 10, None)), "best", objective, status=status)
