"""Scripts with faults of their own: what the ranks come back with names the fault, the rank and the
line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.controller.failure_causes import find_cause
from accordion_workers.records.contract import FailureRecord
from tests.distributed.code_jobs import how_it_ended
from tests.distributed.test_own_code import order_of, raised_by, script


def failure(run_group: Any, folder: Path, body: str) -> FailureRecord:
    """Failure of two workers whose script runs `body` in every step."""
    return failure_of(run_group, folder, script(body))


def failure_of(run_group: Any, folder: Path, sources: dict[str, str]) -> FailureRecord:
    """Failure of two workers that run the script."""
    ends = run_group(2, how_it_ended, order_of(folder, sources))
    errors = {rank: error for rank, (error, _) in enumerate(ends) if error is not None}
    return find_cause(errors, {rank: progress for rank, (_, progress) in enumerate(ends)})


def faulty_script(place: str, fault: str) -> dict[str, str]:
    """A script that runs `fault` at the place."""
    function = f"""
class Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()
    @staticmethod
    def backward(ctx, grad):
        {fault}
"""
    source = script("loss = Faulty.apply(loss)" if place == "in backward" else "pass")["train.py"]
    line, before = {
        "before attach": ("session.attach(", f"{fault}\n"),
        "in the loop": ("        session.step()", f"        {fault}\n"),
        "in backward": ("session.init_process_group(", function),
    }[place]
    return {"train.py": source.replace(line, before + line)}


ON_RANK_1 = "if session.rank == 1 and session.state.session.steps == 2: "


@pytest.mark.parametrize("leave", ["break", "sys.exit()"])
def test_a_rank_that_leaves_its_loop_early_is_named_with_the_one_that_waits(
    run_group, tmp_path, leave: str
) -> None:
    found = failure(run_group, tmp_path, ON_RANK_1 + leave)
    assert found.cause == "job"
    assert (
        "rank 1 left its loop after step 1 (epoch 0), and rank 0 waits for it in step 2"
        in found.message
    )


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("sys.exit(4)", "sys.exit(4)"),
        ("raise ValueError('no')", "ValueError: no (train.py:"),
    ],
)
def test_a_fault_of_one_rank_is_told_with_its_step(
    run_group, tmp_path, fault: str, told: str
) -> None:
    found = failure(run_group, tmp_path, ON_RANK_1 + fault)
    assert (found.cause, found.rank) == ("job", 1), found
    assert told in found.message
    assert "in step 2" in found.message


MISSING = "open('vocab.txt')"


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("before attach", MISSING),
        ("in the loop", MISSING),
        ("in backward", MISSING),
        ("in the loop", "raise PermissionError(13, 'Permission denied', '/root/x')"),
        ("in the loop", "raise OSError('gtp2 is no local folder and no known model')"),
        ("in backward", "raise __import__('ray').exceptions.ActorDiedError()"),
    ],
)
def test_what_user_code_cannot_open_is_the_jobs_own_failure(
    run_group, tmp_path, place: str, fault: str
) -> None:
    found = failure_of(run_group, tmp_path, faulty_script(place, fault))
    assert (found.cause, found.is_storage, found.rank) == ("job", False, 0), found
    assert re.search(r"Error: .*\(train\.py:\d+\)", found.message)


def test_a_rank_that_destroys_the_process_group_is_told_with_the_line(run_group, tmp_path) -> None:
    found = failure(run_group, tmp_path, ON_RANK_1 + "torch.distributed.destroy_process_group()")
    assert (found.cause, found.rank) == ("job", 1), found
    # training notices at its next call that needs the group.
    told = r"in step \d \(epoch 0\): the process group was destroyed at train\.py:\d+"
    assert re.search(told, found.message)


def test_an_error_of_several_lines_is_told_in_one(run_group, tmp_path):
    lines = "raise ValueError('both must match, but found:\\n- a: 1\\n\\n- b: ' + 400 * 'x')"
    error = raised_by(run_group, order_of(tmp_path, {"train.py": lines}))
    told = "ValueError: both must match, but found: - a: 1 - b: xx"
    assert error.error.startswith(told)
    assert error.error.endswith("xx... (train.py:1)")
    assert "\n" not in error.error
