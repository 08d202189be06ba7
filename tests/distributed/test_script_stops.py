"""How a script of people's own leaves and resumes: nothing that it does between two calls of the
session is lost, and no stop counts as the end of its job.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.common.errors import LossNotFinite, TaskRaised
from accordion_workers.records.contract import DesiredState
from tests.distributed.code_jobs import run_own_script
from tests.distributed.loop_jobs import RecordingLink
from tests.distributed.test_own_code import SCRIPT, order_of

AVERAGED = (
    SCRIPT.replace("seen=seen)", "scheduler=scheduler, average=average)")
    .replace(
        "session.attach(",
        "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\n"
        "average = torch.optim.swa_utils.AveragedModel(model.module)\n"
        "session.attach(",
    )
    .replace(
        "session.step()",
        "session.step()\n        scheduler.step()\n        average.update_parameters(model.module)",
    )
    .replace(
        'print("end",', 'print("end", scheduler.last_epoch, float(average.module.weight.sum()),'
    )
)
"""A script with a scheduler and an average of the parameters that follow each step, in PyTorch's
own order.
"""
LOADER = (
    "torch.utils.data.DataLoader(range(100), batch_sampler=batches, num_workers=1,"
    " multiprocessing_context='fork')"
)
STEPS = "session.state.session.steps"


def stop_in(step: int, signal: str = "SAVE_STOP") -> str:
    return (
        "from accordion.compress.step_signals import Signal\n"
        f"        if {STEPS} == {step}: session.state.session.request(Signal.{signal})"
    )


def end_of(run_group: Any, folder: Path, source: str, generation: int = 1, **changes: Any) -> Any:
    """Outcome of a group of two, and what the script printed at its end."""
    order = order_of(folder, {"train.py": source}, **changes)
    result = run_group(2, run_own_script, order, None, generation)[0]
    return result.outcome, result.said.partition("end ")[2]


@pytest.fixture(scope="module")
def undisturbed(run_group: Any, tmp_path_factory: Any) -> Any:
    """How a script ends that nothing stops; each is run once."""
    return cache(lambda source: end_of(run_group, tmp_path_factory.mktemp("whole"), source))


@pytest.mark.parametrize(
    "loader",
    ["batches", LOADER],
    ids=["batches", "loader"],
)
@pytest.mark.parametrize(("signal", "step"), [("SAVE_STOP", 5), ("RESIZE", 5), ("SAVE_STOP", 3)])
def test_a_stopped_script_keeps_what_follows_its_steps(
    run_group: Any, undisturbed: Any, tmp_path: Any, signal: str, step: int, loader: str
) -> None:
    text = AVERAGED.replace("in batches", f"in {loader}")
    whole = text.replace("BODY", "pass")
    first = end_of(run_group, tmp_path, text.replace("BODY", stop_in(step, signal)))
    assert first == ({"SAVE_STOP": "stopped", "RESIZE": "resized"}[signal], "")
    assert end_of(run_group, tmp_path, whole, 2) == undisturbed(whole)


def test_a_script_that_died_keeps_what_followed_its_last_saved_step(
    run_group: Any, undisturbed: Any, tmp_path: Any
) -> None:
    whole = AVERAGED.replace("BODY", "pass")
    death, saving = f"if {STEPS} == 6: raise KeyError('a death')", {"every_steps": 1}
    with pytest.raises(TaskRaised, match="a death"):
        end_of(run_group, tmp_path, AVERAGED.replace("BODY", death), checkpoint=saving)
    assert end_of(run_group, tmp_path, whole, 2, checkpoint=saving) == undisturbed(whole)


TRAINED = SCRIPT.replace("BODY", stop_in(5))
LOOP = TRAINED[TRAINED.index("for epoch in") : TRAINED.index('print("end"')]
OURS = "session.backward(loss)\n        session.step()"


def catch(handler: str) -> str:
    """The script with its loop in a `try` whose handler catches everything."""
    body = "".join(f"    {line}\n" for line in LOOP.splitlines())
    return TRAINED.replace(LOOP, f"try:\n{body}except BaseException:\n    {handler}\n")


@pytest.mark.parametrize(
    "source",
    [
        catch("pass"),
        catch("sys.exit(1)"),
        catch("raise RuntimeError('interrupted')"),
        catch("session.end_epoch(); session.close()"),
        TRAINED.replace(
            OURS, "try: session.backward(loss); session.step()\n        except BaseException: pass"
        ).replace("in batches:", "in (r for r in list(batches)):"),
    ],
    ids=["goes on", "exits", "raises", "calls the session", "in the loop"],
)
def test_a_script_that_catches_everything_still_leaves_at_a_stop(
    run_group: Any, undisturbed: Any, tmp_path: Any, source: str
) -> None:
    assert end_of(run_group, tmp_path, source)[0] == "stopped"
    whole = SCRIPT.replace("BODY", "pass")
    assert end_of(run_group, tmp_path, whole, 2) == undisturbed(whole)


def test_a_script_that_catches_a_stop_at_its_start_does_not_train(
    run_group: Any, tmp_path: Any
) -> None:
    attach = "session.attach(model, optimizer, seen=seen)"
    source = SCRIPT.replace("BODY", "pass").replace(
        attach, f"try: {attach}\nexcept BaseException: pass"
    )
    # The checkpoints of a job that has saved three steps are missing, and it is to be paused.
    order = order_of(tmp_path, {"train.py": source}).model_copy(update={"saved_step": 3})
    link = RecordingLink(orders=DesiredState(version=1, stop="pause"))
    result = run_group(2, run_own_script, order, link)[0]
    assert (result.outcome, result.said) == ("stopped", "")


def test_a_failure_of_the_session_that_a_script_catches_still_ends_its_job(
    run_group: Any, tmp_path: Any
) -> None:
    source = catch("pass").replace(
        "session.backward(loss)", "session.backward(loss * float('nan'))"
    )
    with pytest.raises(LossNotFinite):
        end_of(run_group, tmp_path, source.replace("SAVE_STOP", "CHECKPOINT"))


def test_batches_that_a_thread_reads_ahead_do_not_save_at_its_moments(
    run_group: Any, tmp_path: Any
) -> None:
    text = SCRIPT.replace("in batches:", "in read_ahead():").replace(
        "session.init",
        "import queue, threading\n"
        "def read_ahead():\n"
        "    rows = queue.Queue(1)\n"
        "    read = lambda: [rows.put(one) for one in [*batches, None]]\n"
        "    threading.Thread(target=read, daemon=True).start()\n"
        "    return iter(rows.get, None)\n"
        "session.init",
    )
    saving = {"every_steps": 1}
    assert end_of(run_group, tmp_path, text.replace("BODY", stop_in(5)), checkpoint=saving)[0] == (
        "stopped"
    )


RANDOM = (
    SCRIPT.replace("import collections", "import random, collections")
    .replace("nn.Linear(8, 8))", "nn.Sequential(nn.Linear(8, 8), nn.Dropout()))")
    .replace("in batches", "in torch.utils.data.DataLoader(range(100), batch_sampler=batches)")
    .replace("torch.manual_seed(0)", "[one(0) for one in SEEDS]")
)
"""A script that drops outputs, and draws from numpy's and Python's generators in each step."""
DRAWS = "loss = loss * (1 + random.random() + numpy.random.random())"


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_stopped_script_draws_the_numbers_of_an_undisturbed_one(
    run_group: Any, undisturbed: Any, tmp_path: Any, step: int
) -> None:
    text = RANDOM.replace("SEEDS", "(torch.manual_seed, random.seed, numpy.random.seed)")
    whole = text.replace("BODY", DRAWS)
    end_of(run_group, tmp_path, text.replace("BODY", f"{DRAWS}\n        {stop_in(step)}"))
    assert end_of(run_group, tmp_path, whole, 2) == undisturbed(whole)


def test_a_scheduler_whose_rates_are_of_numpy_is_resumed(
    run_group: Any, undisturbed: Any, tmp_path: Any
) -> None:
    rates = "LambdaLR(optimizer, lambda step: numpy.float64(0.9) ** step)"
    text = AVERAGED.replace("ExponentialLR(optimizer, 0.9)", rates)
    whole = text.replace("BODY", "pass")
    end_of(run_group, tmp_path, text.replace("BODY", stop_in(5)))
    assert end_of(run_group, tmp_path, whole, 2) == undisturbed(whole)
