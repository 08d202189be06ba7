"""Code of people's own in worker processes: the examples of deploy/jobs, and what a script
may do.
"""

from __future__ import annotations

import difflib
import io
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion.base.messages import Override
from accordion_workers import session
from accordion_workers.common.errors import CodeError, LossNotFinite, StorageError, TaskRaised
from accordion_workers.hub.journal import SupersededError
from accordion_workers.records.contract import DesiredState, Launch
from tests.distributed.code_jobs import (
    launch,
    packed,
    packed_folder,
    run_own_script,
    run_own_task,
    run_without_us,
)
from tests.distributed.loop_jobs import RecordingLink

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"
MOST_ADDED_LINES = 10
SCRIPT = """
import collections, numpy, sys, torch
from contextlib import nullcontext
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from accordion_workers import session

class Seen:
    rows = []
    def state_dict(self):
        return {"rows": list(self.rows)}
    def load_state_dict(self, state):
        self.rows = list(state["rows"])

session.init_process_group("gloo")
inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
batches, seen = session.batches(len(inputs)), Seen()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.attach(model, optimizer, seen=seen)
for epoch in session.epochs(99):
    for rows in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[rows]), inputs[rows].tanh())
        BODY
        session.backward(loss)
        session.step()
        print("read", epoch, rows)
print("end", float(sum(parameter.double().sum() for parameter in model.parameters())))
"""
"""A job of 100 samples in four batches of at most 32; it prints the samples that this rank has
read.
"""
SPEC = {"task": {"name": "script"}, "training": {"epochs": 3, "global_batch": 32, "micro_batch": 8}}


def script(body: str = "pass") -> dict[str, str]:
    return {"train.py": SCRIPT.replace("BODY", body)}


def order_of(folder: Path, sources: dict[str, str], **changes: Any) -> Launch:
    return launch(folder / "storage", {**SPEC, **changes}, packed(folder, sources))


def example(name: str, folder: Path) -> Launch:
    spec = yaml.safe_load((JOBS / name / "job.yaml").read_text())
    return launch(folder / "storage", spec, packed_folder(folder, JOBS / name / "code"))


def test_an_ordinary_script_becomes_a_job_by_a_few_lines():
    plain = (JOBS / "own-script" / "plain.py").read_text().splitlines()
    ours = (JOBS / "own-script" / "code" / "train.py").read_text().splitlines()
    added = [
        line for line in difflib.ndiff(plain, ours) if line.startswith("+ ") and line[2:].strip()
    ]
    assert len(added) <= MOST_ADDED_LINES
    assert all("session" in line for line in added)


def test_the_example_of_a_script_trains_as_a_job(run_group, tmp_path):
    result = run_group(2, run_own_script, example("own-script", tmp_path))[0]
    assert result.outcome == "completed"
    (started,) = result.link.of("started")
    assert (started.world_size, started.steps_per_epoch, started.resumed_from) == (2, 23, None)
    epochs = result.link.of("epoch")
    assert [record.epoch for record in epochs] == list(range(10))
    assert all(record.samples == 1437 for record in epochs)
    assert epochs[-1].metrics["accuracy"] > 0.9
    assert [round(record.lr, 6) for record in epochs] == [0.1] * 6 + [0.01] * 2 + [0.001] * 2
    assert epochs[-1].bytes.payload < epochs[-1].bytes.dense / 2
    assert result.link.of("checkpoint")[-1].epoch == 10


def list_replaced_epochs(group: list[Any]) -> list[str]:
    lines = [line for result in group for line in result.link.lines]
    return [line for line in lines if "training.epochs" in line]


def test_the_log_says_once_that_the_spec_replaces_the_epochs_of_a_script(run_group, tmp_path):
    job, stop = order_of(tmp_path, script()), STOP_IN_EPOCH_1
    [line] = list_replaced_epochs(run_group(2, run_own_script, job, stop))
    assert "trains 3 epochs: training.epochs of its spec replaces the 99 of the script" in line
    assert list_replaced_epochs(run_group(2, run_own_script, job, None, 2)) == []


def test_the_log_is_quiet_about_a_script_with_as_many_epochs_as_its_spec(run_group, tmp_path):
    job = order_of(tmp_path, {"train.py": script()["train.py"].replace("99", "3")})
    assert list_replaced_epochs(run_group(2, run_own_script, job)) == []


def test_the_example_of_a_script_runs_in_a_group_that_others_made(run_group):
    file = str(JOBS / "own-script" / "code" / "train.py")
    first, second = run_group(2, run_without_us, file, ["--epochs", "2"])
    assert re.fullmatch(r"epoch 0: accuracy 0\.\d+\nepoch 1: accuracy 0\.\d+\n", first)
    assert second == ""


def test_the_example_of_a_task_trains_as_a_job(run_group, tmp_path):
    result = run_group(2, run_own_task, example("own-task", tmp_path))[0]
    assert result.outcome == "completed"
    assert result.link.of("epoch")[-1].metrics["accuracy"] > 0.9


def test_what_a_script_does_before_its_forward_pass_counts_as_loading(run_group, tmp_path):
    slow = SCRIPT.replace("optimizer.zero_grad()", "optimizer.zero_grad(); time.sleep(0.1)")
    sources = {"train.py": f"import time\n{slow.replace('BODY', 'time.sleep(0.03)')}"}
    result = run_group(2, run_own_script, order_of(tmp_path, sources))[0]
    for record in result.link.of("epoch"):
        seconds = record.seconds_by_phase
        assert seconds["load"] >= 4 * 0.1
        assert seconds["compute"] >= 4 * 0.03
    newest = result.link.progresses[-1].step_s_by_phase
    assert newest["load"] >= 0.1


STOP_IN_EPOCH_1 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0)
)


def read_by(*groups: list[Any]) -> dict[int, list[int]]:
    """Samples by epoch: those that all ranks of these groups have trained on."""
    seen: dict[int, list[int]] = {}
    for result in (result for group in groups for result in group):
        for epoch, rows in re.findall(r"read (\d+) \[(.*)\]", result.said):
            seen.setdefault(int(epoch), []).extend(map(int, rows.split(", ")))
    return seen


def test_every_sample_of_an_epoch_is_read_once_by_any_number_of_workers(run_group, tmp_path):
    for size in (1, 3):
        (tmp_path / str(size)).mkdir()
        seen = read_by(run_group(size, run_own_script, order_of(tmp_path / str(size), script())))
        # the last batch has four samples in one piece: it is read by the others too, and counts
        # nothing there.
        assert all(set(rows) == set(range(100)) for rows in seen.values())
        assert [len(rows) for rows in seen.values()] == [100 + (size - 1) * 4] * 3


def test_the_number_of_workers_does_not_change_what_a_script_learns(run_group, tmp_path):
    ends = []
    for size in (1, 2, 3):
        (tmp_path / str(size)).mkdir()
        order = order_of(tmp_path / str(size), script(), compression={"method": "none"})
        ends.append(float(run_group(size, run_own_script, order)[0].said.split()[-1]))
    # fp32: sums are taken in another order.
    assert ends == pytest.approx([ends[0]] * 3, rel=1e-5)


TWO_OPTIMIZERS = (
    script()["train.py"]
    .replace(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "optimizers = [torch.optim.SGD([model.module.weight], lr=0.1, momentum=0.9),"
        " torch.optim.AdamW([model.module.bias], lr=0.01)]",
    )
    .replace("attach(model, optimizer,", "attach(model, optimizers,")
    .replace("optimizer.zero_grad", "model.zero_grad")
)


def test_a_stopped_script_with_two_optimizers_goes_on_with_the_states_of_both(run_group, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir(), halves.mkdir()
    sources = {"train.py": TWO_OPTIMIZERS}
    undisturbed = run_group(2, run_own_script, order_of(whole, sources))
    order = order_of(halves, sources)
    run_group(2, run_own_script, order, STOP_IN_EPOCH_1)
    resumed = run_group(2, run_own_script, order, None, 2)
    assert resumed[0].link.of("started")[0].step == 5
    assert resumed[0].said.split()[-1] == undisturbed[0].said.split()[-1]


def test_a_script_that_was_stopped_goes_on_where_it_was(run_group, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir(), halves.mkdir()
    undisturbed = run_group(2, run_own_script, order_of(whole, script()))
    order = order_of(halves, script())
    first = run_group(2, run_own_script, order, STOP_IN_EPOCH_1)
    second = run_group(2, run_own_script, order, None, 2)
    assert [first[0].outcome, second[0].outcome] == ["stopped", "completed"]
    assert second[0].link.of("started")[0].step == 5
    assert second[0].said.split()[-1] == undisturbed[0].said.split()[-1]
    assert [
        record.epoch for record in (*first[0].link.of("epoch"), *second[0].link.of("epoch"))
    ] == [0, 1, 2]
    assert {epoch: len(rows) for epoch, rows in read_by(first, second).items()} == dict.fromkeys(
        range(3), 104
    )


def test_a_script_goes_on_with_another_number_of_workers(run_group, tmp_path):
    order = order_of(tmp_path, script())
    first = run_group(2, run_own_script, order, STOP_IN_EPOCH_1)
    second = run_group(3, run_own_script, order, None, 2)
    assert second[0].outcome == "completed"
    assert set(read_by(first, second)[1]) == set(range(100))
    assert [record.samples for record in second[0].link.of("epoch")] == [100, 100]


def test_an_override_reaches_a_script(run_group, tmp_path):
    orders = DesiredState(version=1, overrides=(Override(id="by-hand", level="high"),))
    link = RecordingLink(orders=orders, order_after=("epoch", 0))
    order = order_of(
        tmp_path,
        script(),
        compression={"method": "powersgd", "low": {"rank": 2}, "high": {"rank": 1}},
    )
    records = run_group(2, run_own_script, order, link)[0].link.of("epoch")
    assert [record.level_by_layer["weight"] for record in records] == ["low", "high", "high"]


def test_a_script_with_a_loss_scale_learns_reports_and_resumes_like_one_without(
    run_group, tmp_path
):
    # a scale that is a power of two rounds nothing in fp32.
    scaled = SCRIPT.replace("seen=seen)", "seen=seen, scaler=torch.amp.GradScaler('cpu'))").replace(
        "BODY", "pass"
    )
    losses, ends = {}, {}
    for name, source in (("plain", script()["train.py"]), ("scaled", scaled)):
        (tmp_path / name).mkdir()
        order = order_of(tmp_path / name, {"train.py": source})
        before = run_group(2, run_own_script, order, STOP_IN_EPOCH_1)[0]
        after = run_group(2, run_own_script, order, None, 2)[0]
        losses[name] = [
            record.loss for result in (before, after) for record in result.link.of("epoch")
        ]
        ends[name] = after.said.splitlines()[-1]
    assert losses["scaled"] == losses["plain"]
    assert ends["scaled"] == ends["plain"]


def test_a_script_keeps_what_it_asked_to_keep(run_group, tmp_path):
    body = "print('kept', len(seen.rows)); seen.rows.append(0)"
    order = order_of(tmp_path, script(body))
    first = run_group(1, run_own_script, order, STOP_IN_EPOCH_1)[0]
    second = run_group(1, run_own_script, order, None, 2)[0]
    counts = [int(number) for number in re.findall(r"kept (\d+)", first.said + second.said)]
    assert counts == list(range(12))


def raised_by(run_group: Any, order: Launch) -> TaskRaised:
    with pytest.raises(TaskRaised) as caught:
        run_group(1, run_own_script, order)
    return caught.value


def test_what_a_script_raises_is_told_with_its_place(run_group, tmp_path):
    error = raised_by(
        run_group,
        order_of(tmp_path, script("if session.state.session.steps == 5: raise ValueError('x')")),
    )
    assert (error.step, error.epoch, error.error) == (5, 1, "ValueError: x (train.py:26)")


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        (
            {"other.py": ""},
            "CodeError: there is no train.py in the uploaded code; it holds other.py",
        ),
        ({"train.py": "import nowhere"}, "ModuleNotFoundError: No module named 'nowhere'"),
        ({"train.py": "def"}, "SyntaxError: invalid syntax"),
        (
            {"train.py": "print('done')"},
            "CodeError: the script train.py ended without session.attach(model, optimizer)",
        ),
        ({"train.py": "raise SystemExit(3)"}, "the script ended with sys.exit(3)"),
        (
            {"train.py": "from accordion_workers import session\nsession.step()"},
            "attach(model, optimizer) must come first",
        ),
    ],
)
def test_a_script_that_cannot_begin_is_told_why(run_group, tmp_path, sources, sentence):
    error = raised_by(run_group, order_of(tmp_path, sources))
    assert sentence in error.error
    assert "(script_" not in error.error, "a line of this project does not help"
    assert (type(error), error.step) == (TaskRaised, None)  # code may be missing, and come back


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ({"train.py": "import sys\ndef"}, "SyntaxError: invalid syntax (train.py:2)"),
        (
            {"train.py": "import near", "near.py": "\n if True:"},
            "IndentationError: unexpected indent (near.py:2)",
        ),
    ],
)
def test_a_syntax_error_is_told_with_its_own_line_alone(run_group, tmp_path, sources, told):
    assert raised_by(run_group, order_of(tmp_path, sources)).error == told


def test_a_script_whose_loss_is_never_finite_ends(run_group, tmp_path):
    with pytest.raises(LossNotFinite):
        run_group(2, run_own_script, order_of(tmp_path, script("loss = loss * float('nan')")))


def test_a_script_imports_its_neighbours_and_never_replaces_what_is_installed(run_group, tmp_path):
    sources = {
        "train.py": "from near_train import SCRIPT\nexec(SCRIPT)",
        "near_train.py": f"SCRIPT = {script()['train.py']!r}",
    }
    assert run_group(1, run_own_script, order_of(tmp_path, sources))[0].outcome == "completed"
    error = raised_by(run_group, order_of(tmp_path, {**script(), "torch/__init__.py": ""}))
    assert "torch/__init__.py would never be imported: 'torch' is" in error.error


def test_a_script_begins_in_the_folder_of_its_code_in_each_group(run_group, tmp_path):
    moves = script("import os; print('in', os.getcwd()); os.chdir('/')")
    for name in ("first", "second"):
        (folder := tmp_path / name).mkdir()
        said = run_group(1, run_own_script, order_of(folder, moves))[0].said
        assert "accordion-code-" in said.splitlines()[0]


STORED = SCRIPT.replace('("gloo")', '("gloo", storage=STORAGE, job=JOB)').replace(
    "epochs(99)", "epochs(4)"
)


def stored(folder: Path, name: str, body: str = "pass") -> str:
    """Write a script that keeps its checkpoints in a directory, outside of a job."""
    job = {"training": SPEC["training"] | {"epochs": 1}}
    file = folder / f"{name}.py"
    file.write_text(
        f"STORAGE = {str(folder / 'storage')!r}\nJOB = {job!r}\n{STORED.replace('BODY', body)}"
    )
    return str(file)


def test_a_script_outside_of_a_job_goes_on_after_a_death_where_it_has_a_storage(
    run_group, tmp_path
):
    (tmp_path / "other").mkdir()
    undisturbed = run_group(2, run_without_us, stored(tmp_path / "other", "train"), [])
    with pytest.raises(KeyError, match="a death"):
        run_group(
            2,
            run_without_us,
            stored(tmp_path, "dies", "if epoch == 3: raise KeyError('a death')"),
            [],
        )
    resumed = run_group(2, run_without_us, stored(tmp_path, "train"), [])
    # a checkpoint that was being written at the death may be lost, the one before it is whole
    assert resumed[0].startswith(("read 2", "read 3"))
    assert [said.splitlines()[-1] for said in resumed] == [
        said.splitlines()[-1] for said in undisturbed
    ]
    again = run_group(2, run_without_us, stored(tmp_path, "train"), [])
    assert "read" not in again[0]


def test_a_script_outside_of_a_job_does_not_begin_anew_without_its_checkpoints(run_group, tmp_path):
    run_group(1, run_without_us, stored(tmp_path, "train"), [])
    shutil.rmtree(tmp_path / "storage" / "checkpoints")
    with pytest.raises(
        StorageError, match=r"16 steps were saved, and no checkpoint is in .*; mount"
    ):
        run_group(1, run_without_us, stored(tmp_path, "train"), [])


def start_used_session(rank: int, storage: str | None) -> str:
    """Say why a storage is refused by a session that was used before; None passes an empty one to a
    new session.
    """
    session.reset()
    try:
        if storage is not None:
            session.init_process_group()
            session.init_process_group(job={})
        with pytest.raises(CodeError) as refused:
            session.init_process_group(storage=storage or "")
        return str(refused.value)
    finally:
        session.reset()


def test_a_storage_that_would_be_ignored_is_refused(run_group, tmp_path):
    (used,) = run_group(1, start_used_session, str(tmp_path))
    assert "before the session is used" in used
    (empty,) = run_group(1, start_used_session, None)
    assert "storage is empty" in empty


def start_with_a_wrong_job(rank: int, parts: dict[str, Any]) -> str:
    session.reset()
    try:
        with pytest.raises(CodeError) as refused:
            session.init_process_group(job=parts)
        return str(refused.value)
    finally:
        session.reset()


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            {"parallelism": {"shard": 1}},
            "parallelism.shard: shard is 1, and without shards each worker has",
        ),
        ({"compression": {"method": "zip"}}, "compression: unknown compression method 'zip'"),
        ({"epochs": 3}, "epochs: Extra inputs are not permitted"),
    ],
)
def test_a_part_of_a_job_that_a_script_gives_wrongly_is_named(run_group, parts, told):
    (sentence,) = run_group(1, start_with_a_wrong_job, parts)
    assert sentence.startswith("job of session.init_process_group() is no part of a job file: ")
    assert told in sentence


def logged_without_us(rank: int, file: str) -> str:
    """Run a script outside of a job; return what is logged with Python's default settings."""
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    logging.getLogger("accordion_workers").addHandler(handler)
    try:
        run_without_us(rank, file, [])
    except SupersededError as error:
        shown.write(f"raised {error}")
    finally:
        logging.getLogger("accordion_workers").removeHandler(handler)
    return shown.getvalue()


def test_a_script_outside_of_a_job_logs_where_it_resumes_and_that_it_is_done(run_group, tmp_path):
    file = Path(stored(tmp_path, "train"))
    longer = file.read_text()
    file.write_text(longer.replace("epochs(4)", "epochs(2)"))
    assert run_group(2, logged_without_us, str(file)) == ["", ""]
    file.write_text(longer)
    resumed, done = (run_group(2, logged_without_us, str(file)) for _ in range(2))
    assert re.fullmatch(r"resumed from \S+: epoch 2, step 8\n", resumed[0])
    nothing_left = "all 4 epochs have been trained; nothing is left to train"
    assert done[0].splitlines()[1:] == [nothing_left]
    assert resumed[1] == done[1] == ""


def test_a_script_outside_of_a_job_ends_if_another_run_uses_its_storage(run_group, tmp_path):
    imports = (
        "from pathlib import Path\nfrom accordion_workers.hub.journal import claim_generation\n"
    )
    file = Path(stored(tmp_path, "train", "if epoch == 1: claim_generation(Path(STORAGE))"))
    file.write_text(imports + file.read_text())
    for said in run_group(2, logged_without_us, str(file)):
        assert re.search(
            r"raised another run started on storage .* give each run a directory", said
        )


def test_a_rate_of_0_is_recorded_as_it_is(run_group, tmp_path):
    schedule = (
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [1, 0, 0.5, 1].__getitem__)"
    )
    text = SCRIPT.replace("BODY", "pass").replace("session.attach(", f"{schedule}\nsession.attach(")
    text = text.replace('print("read", epoch, rows)', "if 0: pass\n    scheduler.step()")
    result = run_group(2, run_own_script, order_of(tmp_path, {"train.py": text}))[0]
    assert [record.lr for record in result.link.of("epoch")] == [0.1, 0.0, 0.05]
