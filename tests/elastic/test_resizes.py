"""Worker groups on real Ray that change their size, after a fault and by an order."""

from __future__ import annotations

import pytest

from accordion_workers.records.contract import DesiredState, ResizeRecord, Size
from tests.elastic.conftest import Watch, find_failures, kill
from tests.elastic.faults import EVERY_STEPS

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30


@pytest.mark.parametrize("engine", [{}, {"engine": "actors"}], ids=["default", "actors"])
def test_a_survivor_goes_on_alone_and_the_lost_one_is_replaced(
    watch: Watch, engine: dict[str, str]
) -> None:
    watched = watch(workers={"min": 1, **engine})
    watched.reach(AFTER)
    watched.fault()
    kill("ray::Worker")
    watched.wait_for_sizes(1, 2)
    on = " on plain actors" if engine else ""
    watched.survived(f"worker kill -9, survivors go on (min 1){on}")
    assert watched.sizes() == [2, 1, 2]
    [resize] = watched.life.all(ResizeRecord)
    assert (resize.cause, resize.old, resize.new) == ("joined", 1, 2)


def test_people_resize_a_job_and_no_step_is_lost(watch: Watch) -> None:
    watched = watch(workers={"min": 1, "max": 3})
    watched.reach(AFTER)
    watched.life.order(DesiredState(version=1, size=Size(min=1, target=1)))
    watched.wait_for_sizes(1)
    watched.reach(watched.step() + EVERY_STEPS)
    watched.fault()
    watched.life.order(DesiredState(version=2, size=Size(min=1, target=3)))
    watched.wait_for_sizes(1, 3)
    assert watched.survived("resize by people, 3 to 1 to 3").rolled_back == 0
    # who is ready does not wait long for one that is not, so three may come in two steps.
    assert watched.sizes() in ([3, 1, 3], [3, 1, 2, 3])
    assert find_failures(watched) == []
