"""Mistakes of a user's script by which it would train wrongly, or not at all, and succeed."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from accordion import Config, attach
from accordion_workers.common.errors import ScriptMistaken, TaskRaised
from accordion_workers.records.contract import Launch
from accordion_workers.spec.public_records import EpochRecord
from tests.distributed.code_jobs import Result, run_own_script
from tests.distributed.loop_jobs import RecordingLink
from tests.distributed.test_own_code import (
    SCRIPT,
    STOP_IN_EPOCH_1,
    logged_without_us,
    order_of,
    stored,
)

OURS = "session.backward(loss)\n        session.step()"
WRAPPED = "DistributedDataParallel(nn.Linear(8, 8))"
TRAINED = SCRIPT.replace("BODY", "pass")


def change(old: str, new: str) -> str:
    """The script of a good job with a mistake in it."""
    assert TRAINED.count(old) == 1
    return TRAINED.replace(old, new)


END = 'print("end"'


def trained(result: Result) -> list[int]:
    """The epochs that a group recorded."""
    return [record.epoch for record in result.link.posted if isinstance(record, EpochRecord)]


def loop_over(epochs: str) -> str:
    """The script of a good job with another loop, which ends its epochs itself."""
    return change("session.epochs(99)", epochs).replace(END, f"    session.end_epoch()\n{END}")


def attach_itself(call: str) -> str:
    """The script of a good job with `accordion.attach` and an ordinary loop of two steps."""
    return (
        change(OURS, "loss.backward()\n        optimizer.step()")
        .replace("session.attach(model, optimizer, seen=seen)", call)
        .replace("session.epochs(99)", "range(1)")
        .replace("in batches:", "in [[0, 1], [2, 3]]:")
    )


LIBRARY = "__import__('accordion').attach"
CONFIG = "__import__('accordion').Config(), optimizer, step='optimizer'"

MISTAKES = {
    "an import by an old name": (
        change("for epoch in", "from workers.session import session as old\nfor epoch in"),
        "what Accordion had there is now `from accordion_workers import session`",
    ),
    "an attach of the library": (
        attach_itself(f"{LIBRARY}(model, {CONFIG})"),
        "`from accordion_workers import session` and session.attach(model, optimizer)",
    ),
    "an attach of the library in a thread": (
        attach_itself(
            "from concurrent.futures import ThreadPoolExecutor\n"
            f"ThreadPoolExecutor(1).submit({LIBRARY}, model, {CONFIG}).result()"
        ),
        "session.attach(model, optimizer), with session.backward(loss)",
    ),
    "an attach of the library beside the session's": (
        change(
            "for epoch in",
            f"{LIBRARY}(nn.Linear(2, 2), __import__('accordion').Config())\nfor epoch in",
        ),
        "session.attach(model, optimizer), with session.backward(loss)",
    ),
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
        "whose last call counts, so that evaluation needs another loader",
    ),
    "no data": (
        change("session.batches(len(inputs))", "session.batches(0)"),
        "session.batches(0) has no samples to read",
    ),
    "a loader that is used up": (
        change(
            "    for rows in batches:",
            "    for rows in own:",
        )
        .replace("batches, seen", "own = iter([[0, 1], [2, 3]]); seen")
        .replace("session.batches(len(inputs)), Seen()", "Seen()")
        .replace("seen=seen)", "seen=seen, samples=100)"),
        "no step was taken in epoch 1",
    ),
    "no end of an epoch": (
        change("session.epochs(99)", "range(3)"),
        "session.batches() has no samples left in epoch 0; call session.end_epoch()",
    ),
    "a second module": (
        change(
            "for epoch in",
            "other = DistributedDataParallel(nn.Linear(8, 4))\n"
            "session.attach(other, torch.optim.SGD(other.parameters(), lr=0.1))\n"
            "for epoch in",
        ),
        "session.attach() was called twice",
    ),
    "accumulation over its batches": (
        change(
            OURS,
            "with model.no_sync() if rows[0] % 2 else nullcontext(): session.backward(loss)\n"
            "        if rows[0] % 2: session.step()",
        ),
        "call session.step() after each backward(), because a batch has all samples of a step (32)",
    ),
    "a kept object that is none": (
        change("seen=seen)", "best=0.5)"),
        "session.attach(best=...) got a float, which has no state_dict()",
    ),
    "a kept state of other types": (
        change('"rows": list(self.rows)', '"rows": collections.defaultdict(list)'),
        "the state of seen that session.attach() got cannot be loaded back from a checkpoint:"
        " it holds a collections.defaultdict",
    ),
    "a kept state that changes its type": (
        change(
            'print("read", epoch, rows)', "seen.rows = numpy.ones(1); session.checkpoint()"
        ).replace("list(self.rows)", "self.rows"),
        "the state of seen that session.attach() got cannot be loaded back",
    ),
    "a layer that is unfrozen later": (
        change(OURS, f"extra.requires_grad_(True)\n        {OURS}").replace(
            "session.attach(",
            "extra = nn.Linear(2, 2).requires_grad_(False)\n"
            "getattr(model, 'module', model).extra = extra\nsession.attach(",
        ),
        "the layers extra.weight, extra.bias became trainable after attach()",
    ),
    "a process group of its own": (
        change("session.init_process_group(", "torch.distributed.init_process_group("),
        "`from accordion_workers import session` and session.init_process_group(...) in place of"
        " torch.distributed.init_process_group",
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
    # What the session refuses once it has a module, it refuses again.
    refusals = ("CodeError", "HookError")
    is_refused = caught.value.step is not None and caught.value.error.startswith(refusals)
    assert isinstance(caught.value, ScriptMistaken) == is_refused


def test_an_attach_of_the_library_is_refused_before_any_training(
    run_group: Any, tmp_path: Any
) -> None:
    source, _ = MISTAKES["an attach of the library"]
    with pytest.raises(TaskRaised) as caught:
        run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))
    line = next(n for n, text in enumerate(source.splitlines(), 1) if LIBRARY in text)
    assert (caught.value.step, caught.value.epoch) == (None, None)
    assert caught.value.error.endswith(f"(train.py:{line})")


def attach_after_scripts(rank: int, refused: Launch, completed: Launch) -> int:
    """Run two jobs, and attach to a module of this process itself; return its number of layers."""
    with pytest.raises(TaskRaised):
        run_own_script(rank, refused)
    run_own_script(rank, completed)
    return len(attach(nn.Linear(8, 8), Config()).layers)


def test_a_process_that_has_run_scripts_may_attach(run_group: Any, tmp_path: Any) -> None:
    (folder := tmp_path / "completed").mkdir()
    refused = order_of(tmp_path, {"train.py": MISTAKES["an attach of the library"][0]})
    completed = order_of(folder, {"train.py": TRAINED})
    assert run_group(1, attach_after_scripts, refused, completed) == [1]


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


IN_PARTS = change(
    OURS,
    "for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):\n"
    "            with nullcontext() if part[-1] == rows[-1] else model.no_sync():\n"
    "                loss = nn.functional.mse_loss(model(inputs[part]), inputs[part].tanh())\n"
    "                session.backward(loss * len(part) / len(rows))\n"
    "        session.step()",
).replace("loss = nn.functional.mse_loss(model(inputs[rows]), inputs[rows].tanh())", "pass")
"""A script that trains each batch in two parts."""


def test_a_batch_may_be_trained_in_parts(run_group: Any, tmp_path: Any) -> None:
    records = []
    for name, source in (("whole", TRAINED), ("parts", IN_PARTS)):
        (folder := tmp_path / name).mkdir()
        order = order_of(folder, {"train.py": source}, compression={"method": "none"})
        records.append(run_group(2, run_own_script, order)[0].link.of("epoch"))
    whole, in_parts = ([record.loss for record in each] for each in records)
    assert in_parts == pytest.approx(whole, rel=1e-5)  # fp32: sums are taken in another order.
    assert [record.samples for record in records[1]] == [100] * 3


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
    source = f"from accordion.compress.step_signals import Signal\n{source}"
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


def lines_of(rank: int, order: Launch) -> list[str]:
    """The log of a script, which may fail."""
    link = RecordingLink()
    with suppress(TaskRaised):
        run_own_script(rank, order, link)
    return link.lines


@pytest.mark.parametrize(
    ("source", "warnings"),
    [(attach_itself("pass"), 1), (TRAINED, 0)],
    ids=["without attach", "with attach"],
)
def test_a_script_that_steps_without_attach_is_told_at_its_first_step(
    run_group: Any, tmp_path: Any, source: str, warnings: int
) -> None:
    lines = run_group(2, lines_of, order_of(tmp_path, {"train.py": source}))[0]
    told = [line for line in lines if "before session.attach(model, optimizer)" in line]
    assert len(told) == warnings


def test_a_script_may_follow_the_steps_of_all_optimizers_itself(
    run_group: Any, tmp_path: Any
) -> None:
    found = "from torch.optim.optimizer import register_optimizer_step_pre_hook as follow"
    source = f"{found}\nfollow(lambda *_: None)\n{TRAINED}"
    result, _ = run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))
    assert result.outcome == "completed"


def test_a_second_process_group_is_told_with_its_line(run_group: Any, tmp_path: Any) -> None:
    source, _ = MISTAKES["a process group of its own"]
    with pytest.raises(TaskRaised) as caught:
        run_group(2, run_own_script, order_of(tmp_path, {"train.py": source}))
    line = source.splitlines().index('torch.distributed.init_process_group("gloo")') + 1
    assert caught.value.error.endswith(f"(train.py:{line})")


@pytest.mark.parametrize("leave", ["raise SystemExit('boom')", "sys.exit(1)", "sys.exit('boom')"])
def test_an_exit_with_an_error_is_told_with_its_line(
    run_group: Any, tmp_path: Any, leave: str
) -> None:
    source = change(END, f"{leave}\n{END}")
    with pytest.raises(TaskRaised) as caught:
        run_group(1, run_own_script, order_of(tmp_path, {"train.py": source}))
    assert "the script ended with sys.exit(" in caught.value.error
    assert caught.value.error.endswith(f"(train.py:{source.splitlines().index(leave) + 1})")


@pytest.mark.parametrize("leave", ["sys.exit()", "sys.exit(0)", "raise SystemExit(None)"])
def test_an_exit_without_an_error_completes_the_job(
    run_group: Any, tmp_path: Any, leave: str
) -> None:
    order = order_of(tmp_path, {"train.py": f"{TRAINED}{leave}"})
    assert run_group(1, run_own_script, order)[0].outcome == "completed"


@pytest.mark.parametrize(
    "source",
    [loop_over("range(10)"), change(END, f"session.end_epoch()\n{END}")],
    ids=["more epochs", "one more end of an epoch"],
)
def test_a_script_that_goes_on_after_the_last_epoch_ends_with_all_saved(
    run_group: Any, tmp_path: Any, source: str
) -> None:
    order = order_of(tmp_path, {"train.py": source}, checkpoint={"every_epochs": 2})
    first = run_group(2, run_own_script, order)[0]
    assert first.outcome == "completed"
    assert trained(first) == [0, 1, 2]
    told = [line for line in first.link.lines if "write `for epoch in session.epochs(N)`" in line]
    assert len(told) == 1
    # Nothing is left to train.
    again = run_group(2, run_own_script, order, None, 2)[0]
    assert (again.outcome, trained(again)) == ("completed", [])


def test_a_loop_that_starts_anew_ends_when_the_epochs_of_the_job_are_trained(
    run_group: Any, tmp_path: Any
) -> None:
    order = order_of(tmp_path, {"train.py": loop_over("range(3)")})
    first = run_group(2, run_own_script, order, STOP_IN_EPOCH_1)[0]
    second = run_group(2, run_own_script, order, None, 2)[0]
    assert [first.outcome, second.outcome] == ["stopped", "completed"]
    assert trained(first) + trained(second) == [0, 1, 2]


UNREAD = "resumed in epoch 1, and the script has read neither session.epochs() nor session.epoch"


@pytest.mark.parametrize(
    ("epochs", "warnings"),
    [("range(2)", 1), ("range(session.epoch, 3)", 0), ("session.epochs(3)", 0)],
)
def test_a_script_that_does_not_ask_where_it_resumes_is_warned_in_the_log(
    run_group: Any, tmp_path: Any, epochs: str, warnings: int
) -> None:
    order = order_of(tmp_path, {"train.py": loop_over(epochs)})
    first = run_group(2, run_own_script, order, STOP_IN_EPOCH_1)
    second = run_group(2, run_own_script, order, None, 2)
    assert [first[0].outcome, second[0].outcome] == ["stopped", "completed"]
    told = [[line for line in group[0].link.lines if UNREAD in line] for group in (first, second)]
    assert [len(lines) for lines in told] == [0, warnings]


def test_a_script_outside_of_a_job_trains_as_many_epochs_as_its_own_loop_has(
    run_group: Any, tmp_path: Any
) -> None:
    file = Path(stored(tmp_path, "train"))
    source = file.read_text().replace("session.epochs(4)", "range(2)")
    file.write_text(source.replace(END, f"    session.end_epoch()\n{END}"))
    first, second = (run_group(2, logged_without_us, str(file))[0] for _ in range(2))
    # The last checkpoint of a loop of its own may not be complete when the second run begins.
    told = re.compile("resumed in epoch [12], and the script has read neither")
    assert [len(told.findall(text)) for text in (first, second)] == [0, 1], (first, second)
