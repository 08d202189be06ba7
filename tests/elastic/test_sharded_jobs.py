"""Jobs on real Ray whose workers hold a model together by twos: they lose and gain whole
replicas.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion_workers.records.contract import DesiredState, ResizeRecord, Size
from tests.distributed.code_jobs import packed
from tests.elastic.conftest import Start, find_failures, kill
from tests.elastic.faults import EPOCHS, EVERY_STEPS, HOLD_FROM, Watched

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.elastic, pytest.mark.timeout(900)]
AFTER = 30
SCRIPT = f"""
import sys
import torch
from torch.distributed.fsdp import fully_shard
from accordion_workers import session
from tests.elastic.watched import WatchedDigits

task = WatchedDigits(
    {{"hidden": 32, "folder": sys.argv[1], "pace_s": 0.04, "hold_from": {HOLD_FROM}}}
)
session.init_process_group()
data = task.train_data()
batches = session.batches(len(data))
torch.manual_seed(0)
model = task.model()
for part in (model.hidden, model):
    fully_shard(part, mesh=session.mesh["shard"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
followed = session.attach(model, optimizer)
for epoch in session.epochs({EPOCHS}):
    for indices in batches:
        inputs, targets = data.batch(torch.tensor(indices))
        optimizer.zero_grad()
        session.backward(task.loss(model(inputs), targets, step=followed.steps))
        session.step()
"""


@pytest.fixture(params=["script", "task"])
def sharded(start: Start, tmp_path: Path, request: pytest.FixtureRequest) -> Watched:
    """A job of three replicas of two workers, that shard the model in a script or of a task."""
    folder = tmp_path / "steps"
    folder.mkdir()
    if request.param == "script":
        code, sha256 = packed(tmp_path, {"train.py": SCRIPT})
        task = {"name": "script", "options": {"file": "train.py", "args": str(folder)}}
    else:
        code, sha256 = None, None
        options = {"hidden": 32, "folder": str(folder), "pace_s": 0.04, "hold_from": HOLD_FROM}
        task = {"name": "tests.elastic.watched:WatchedDigits", "options": options}
    spec = {
        "task": task,
        "code": sha256,
        "workers": {"min": 2, "max": 6},
        "parallelism": {"shard": 2},
        "training": {"epochs": EPOCHS, "micro_batch": 4},
        "compression": {"method": "none"},
        "checkpoint": {"every_steps": EVERY_STEPS},
    }
    return Watched(start(spec, workers=6, code=code), folder)


def test_a_lost_worker_costs_its_replica_and_the_others_go_on(sharded: Watched) -> None:
    sharded.reach(AFTER)
    sharded.fault()
    kill("ray::Worker")
    sharded.wait_for_sizes(4, 6)
    sharded.survived("worker kill -9, 3 replicas of 2")
    # On a busy machine a survivor may be too late for the next group, which costs its replica too.
    assert sharded.sizes() in ([6, 4, 6], [6, 2, 4, 6])
    *_, resize = sharded.life.all(ResizeRecord)
    assert (resize.cause, resize.old, resize.new) == ("joined", 4, 6)


def test_people_resize_a_sharded_job_and_no_step_is_lost(sharded: Watched) -> None:
    sharded.reach(AFTER)
    sharded.life.order(DesiredState(version=1, size=Size(min=2, target=2)))
    sharded.wait_for_sizes(2)
    sharded.reach(sharded.step() + EVERY_STEPS)
    sharded.fault()
    sharded.life.order(DesiredState(version=2, size=Size(min=2, target=5)))
    sharded.wait_for_sizes(2, 4)
    assert sharded.survived("resize by people, 3 replicas to 1 to 2").rolled_back == 0
    assert sharded.sizes() == [6, 2, 4]
    assert find_failures(sharded) == []


@pytest.mark.parametrize("sharded", ["script"], indirect=True)
def test_a_cancelled_sharded_job_has_saved_where_it_was(sharded: Watched) -> None:
    sharded.reach(AFTER)
    sharded.life.order(DesiredState(version=1, stop="cancel"))
    end = sharded.life.end()
    assert end.status == "CANCELLED"
    assert "its state was saved" in end.message
