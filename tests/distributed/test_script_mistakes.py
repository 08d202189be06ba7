"""Mistakes of a user's script by which it would train wrongly, or not at all, and succeed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.code_jobs import run_own_script
from tests.distributed.test_own_code import SCRIPT, order_of
from workers.errors import TaskRaised

OURS = "session.backward(loss)\n        session.step()"
WRAPPED = "DistributedDataParallel(nn.Linear(8, 8))"
TRAINED = SCRIPT.replace("BODY", "pass")


def change(old: str, new: str) -> str:
    """The script of a good job with a mistake in it."""
    assert TRAINED.count(old) == 1
    return TRAINED.replace(old, new)


MISTAKES = {
    "an ordinary backward": (
        change("session.backward(loss)", "loss.backward()"),
        "write session.backward(loss) in place of loss.backward()",
    ),
    "no backward": (change("session.backward(loss)", "pass"), "without session.backward()"),
    "two steps of one gradient": (
        change("session.step()", "session.step(); session.step()"),
        "in step 1 without session.backward()",
    ),
    "another step after ours": (
        change("session.step()", "session.step(); optimizer.step()"),
        "call only session.step()",
    ),
    "an ordinary step": (
        change("session.step()", "optimizer.step()"),
        "call only session.step()",
    ),
    "an ordinary loop": (
        change(OURS, "loss.backward()\n        optimizer.step()"),
        "call only session.step()",
    ),
    "a step of a scaler": (
        change(
            OURS,
            "scaler = torch.amp.GradScaler('cpu')\n"
            "        scaler.scale(loss).backward(); scaler.step(optimizer)",
        ),
        "call only session.step()",
    ),
    "no step": (change(OURS, "pass"), "the script has not called session.step()"),
    "no epoch": (TRAINED.partition("for epoch")[0], "the script has not called session.step()"),
    "a loader of its own": (
        change("in batches:", "in [[0, 1], [2, 3]]:"),
        "without a batch of session.batches()",
    ),
    "the batches of another call": (
        change("session.attach(", "session.batches(8)\nsession.attach("),
        "without a batch of session.batches()",
    ),
    "no end of an epoch": (
        change("session.epochs(99)", "range(3)"),
        "session.batches() has no samples left in epoch 0; call session.end_epoch()",
    ),
}
"""Scripts, each with a part of the message that ends it."""


@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "bare"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_the_script_with_what_to_write(
    run_group: Any, tmp_path: Any, name: str, wrapped: bool
) -> None:
    source, sentence = MISTAKES[name]
    source = source if wrapped else source.replace(WRAPPED, "nn.Linear(8, 8)")
    with pytest.raises(TaskRaised) as caught:
        run_group(1, run_own_script, order_of(tmp_path, {"train.py": source}))
    assert sentence in caught.value.error


def test_a_backward_that_two_workers_forget_is_told_with_its_line(
    run_group: Any, tmp_path: Any
) -> None:
    source, _ = MISTAKES["an ordinary backward"]
    with pytest.raises(TaskRaised) as caught:
        run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))
    line = source.splitlines().index("        session.step()") + 1
    assert (caught.value.step, caught.value.epoch) == (0, 0)
    assert caught.value.error.endswith(f"(train.py:{line})")


def test_a_step_that_is_missing_is_told_with_the_line_of_the_next_backward(
    run_group: Any, tmp_path: Any
) -> None:
    source = change("session.step()", "pass")
    with pytest.raises(TaskRaised) as caught:
        run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))
    line = source.splitlines().index("        session.backward(loss)") + 1
    assert "call session.step() after each backward()" in caught.value.error
    assert caught.value.error.endswith(f"(train.py:{line})")


def test_gradients_of_other_passes_may_be_added_to_those_of_a_step(
    run_group: Any, tmp_path: Any
) -> None:
    own = "with model.no_sync(): (0 * model(inputs[rows]).sum()).backward()"
    order = order_of(tmp_path, {"train.py": SCRIPT.replace("BODY", own)})
    assert run_group(2, run_own_script, order)[0].outcome == "completed"


def test_reading_all_batches_before_training_costs_none_of_them(
    run_group: Any, tmp_path: Any
) -> None:
    source = change("for epoch in", "assert len(list(batches)) == len(list(batches))\nfor epoch in")
    result = run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))[0]
    assert [record.samples for record in result.link.of("epoch")] == [100] * 3


def test_a_script_that_reads_its_batches_twice_may_resume_at_the_end_of_an_epoch(
    run_group: Any, tmp_path: Any
) -> None:
    stop = "if session.state.session.steps == 3: session.state.session.request(Signal.SAVE_STOP)"
    source = SCRIPT.replace("BODY", stop).replace("for epoch in", "list(batches)\nfor epoch in")
    source = f"from accordion.step_signals import Signal\n{source}"
    order = order_of(tmp_path, {"train.py": source})
    assert run_group(2, run_own_script, order)[0].outcome == "stopped"
    again = run_group(2, run_own_script, order, None, 2)[0]
    assert again.link.of("started")[0].step == 4
    assert [record.samples for record in again.link.of("epoch")] == [100] * 3


@pytest.mark.parametrize(
    ("source", "warnings"),
    [(TRAINED, 0), (change('print("read", epoch, rows)', "pass\n    if epoch == 1: break"), 1)],
    ids=["whole", "left in its second epoch"],
)
def test_a_script_that_leaves_epochs_out_is_told_so_in_the_log(
    run_group: Any, tmp_path: Any, source: str, warnings: int
) -> None:
    result = run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))[0]
    found = [line for line in result.link.lines if "ended after 1 of the 3 epochs" in line]
    assert (result.outcome, len(found)) == ("completed", warnings)
