"""Local steps in Accelerate, Transformers and Lightning, each in its own pair of gloo processes
under torchrun.
"""

from __future__ import annotations

import importlib
from datetime import timedelta

import pytest

from accordion.base.errors import HookError
from tests.distributed.framework_programs import run_framework
from tests.distributed.local_framework_runs import LENGTH, START

TIMEOUT_S = 300
"""Ends runs that hang: one framework's take 20 to 100 s on two busy cores."""
STEPS = 16
MINUTE = timedelta(minutes=1)

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


@pytest.fixture(scope="module", params=["accelerate", "transformers", "lightning"])
def runs(request, tmp_path_factory):
    """What the runs of one framework gave."""
    folder = tmp_path_factory.mktemp(request.param)
    found = run_framework("local_framework_runs.py", request.param, folder, timeout_s=TIMEOUT_S)
    return {"framework": request.param, **found}


def has_common_parameters(ends: list[int]) -> list[bool]:
    """Return before which steps no round is running, if rounds end early after some."""
    common, local = [], 0
    for step in range(1, STEPS + 1):
        common.append(not local)
        local = local + 1 if step > START else 0
        if local == LENGTH or step in ends:
            local = 0
    return common


def test_workers_in_a_framework_differ_within_a_round_only(runs):
    assert runs["equal before step"] == has_common_parameters(runs["ends"])
    assert runs["equal at the end"] == [True]


def test_a_framework_evaluates_and_saves_the_common_parameters(runs):
    assert runs["equal in evaluations"]
    assert all(runs["equal in evaluations"])
    assert runs["saved as trained on"] is True


def test_a_framework_trains_as_a_plain_loop_on_the_same_batches(runs):
    assert runs["as in a plain loop"] is True  # bit for bit, on both ranks
    ours, plain = runs["gradient bytes"]
    assert ours == plain > 0


def test_a_run_of_a_framework_resumed_from_within_a_round_equals_a_whole_one(runs):
    assert runs["as resumed"] is True
    assert runs["steps"] == [STEPS, STEPS]


def test_an_evaluation_with_accelerate_within_a_round_is_told_to_end_it(runs):
    expected = runs["framework"] == "accelerate"  # the others announce their evaluations
    assert ("call session.finish_round() on all workers" in runs["told"]) is expected


@pytest.mark.parametrize("within", [{"every_n_train_steps": 5}, {"train_time_interval": MINUTE}])
def test_lightning_saves_no_weights_of_one_worker(within):
    module = importlib.import_module("accordion.integrations.lightning")
    kind = importlib.import_module("pytorch_lightning.callbacks").ModelCheckpoint
    callbacks = [kind(save_weights_only=True), kind(**within)]
    module.check_checkpoints(callbacks)
    with pytest.raises(HookError, match="saves within an epoch"):
        module.check_checkpoints([*callbacks, kind(save_weights_only=True, **within)])
