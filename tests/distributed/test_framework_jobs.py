"""Loops of other frameworks as jobs: they train what a loop of one's own trains, and resume."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from accordion_workers import session
from accordion_workers.common.errors import TaskRaised
from tests.distributed.code_jobs import (
    context,
    launch,
    packed_folder,
    process_of_its_own,
    run_own_script,
)
from tests.distributed.framework_loops import (
    LIGHTNING,
    LOOPS,
    OWN,
    STEPS,
    TRAINER,
    changed,
    end_of,
    run_job,
    stop_in,
    training_of,
)
from tests.distributed.loop_jobs import RecordingLink
from tests.distributed.test_own_code import order_of

EXAMPLES = Path(__file__).parents[2] / "deploy/jobs/frameworks"


@pytest.fixture(scope="module")
def undisturbed(run_group: Any, tmp_path_factory: Any) -> Any:
    """How a script ends that nothing stops; each is run once."""

    @cache
    def end(source: str, body: str = "pass", more: str = "") -> tuple[str, str]:
        return end_of(run_group, tmp_path_factory.mktemp("whole"), source, body=body, more=more)

    return end


@pytest.mark.parametrize("loop", LOOPS)
def test_the_loop_of_a_framework_trains_what_a_loop_of_ones_own_trains(
    run_group: Any, tmp_path: Path, loop: str
) -> None:
    seeded = f"if {STEPS} == 0: torch.manual_seed(7)"  # of the dropout
    without = "limit_val_batches=0, " if loop == "lightning" else ""  # it would draw numbers too
    ends = []
    for name, source in {"theirs": LOOPS[loop], "own": OWN}.items():
        (tmp_path / name).mkdir()
        given = {"body": seeded, "more": without, "training": training_of(16)}
        ends.append(end_of(run_group, tmp_path / name, source, **given))
    assert ends[0] == ends[1]
    assert ends[0][0] == "completed"


def test_a_trainer_takes_micro_batches_whose_gradients_add_up(
    run_group: Any, tmp_path: Path
) -> None:
    source = TRAINER.replace("Dropout(0.1)", "Dropout(0.0)").replace(
        "outputs = self.layers(inputs)",
        "outputs = self.layers(inputs); print('pass', len(inputs))",
    )
    sums, passes = [], []
    for size in (16, 4):
        (tmp_path / str(size)).mkdir()
        result = run_job(run_group, tmp_path / str(size), source, training=training_of(size))
        sums.append(float(result.said.partition("end ")[2]))
        passes.append([line for line in result.said.splitlines() if line.startswith("pass")])
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)
    # Three batches of 16 and one of 4 in each epoch, on the first of two workers.
    assert passes[0] == ["pass 16", "pass 16", "pass 16", "pass 4"] * 3
    assert passes[1] == ["pass 4"] * 13 * 3


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("signal", "step"), [("SAVE_STOP", 5), ("RESIZE", 5), ("SAVE_STOP", 3), ("SAVE_STOP", 2)]
)
def test_a_stopped_loop_goes_on_where_it_was(
    run_group: Any, undisturbed: Any, tmp_path: Path, *, loop: str, signal: str, step: int
) -> None:
    first = end_of(run_group, tmp_path, LOOPS[loop], body=stop_in(step, signal))
    assert first == ({"SAVE_STOP": "stopped", "RESIZE": "resized"}[signal], "")
    whole = undisturbed(LOOPS[loop])
    assert end_of(run_group, tmp_path, LOOPS[loop], generation=2) == whole


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("step", [4, 6])
def test_a_loop_whose_workers_died_goes_on_from_its_last_saved_step(
    run_group: Any, undisturbed: Any, tmp_path: Path, *, loop: str, step: int
) -> None:
    death, saving = f"if {STEPS} == {step}: raise KeyError('a death')", {"every_steps": 1}
    with pytest.raises(TaskRaised, match="a death"):
        end_of(run_group, tmp_path, LOOPS[loop], body=death, checkpoint=saving)
    again = end_of(run_group, tmp_path, LOOPS[loop], generation=2, checkpoint=saving)
    assert again == undisturbed(LOOPS[loop])


@pytest.mark.parametrize("loop", LOOPS)
def test_the_example_of_a_framework_learns(run_group: Any, tmp_path: Path, *, loop: str) -> None:
    spec = yaml.safe_load((EXAMPLES / f"{loop}.yaml").read_text())
    order = launch(tmp_path / "storage", spec, packed_folder(tmp_path, EXAMPLES / "code"))
    result = run_group(2, run_own_script, order)[0]
    assert result.outcome == "completed"
    epochs = result.link.of("epoch")
    assert epochs[-1].metrics["accuracy"] > 0.9
    assert 0 < epochs[-1].bytes.payload < epochs[-1].bytes.dense / 4


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_loop_goes_on_with_another_number_of_workers(
    run_group: Any, tmp_path: Path, *, loop: str, workers: int
) -> None:
    first = end_of(run_group, tmp_path, LOOPS[loop], body=stop_in(5, "RESIZE"))
    assert first == ("resized", "")
    again = run_job(run_group, tmp_path, LOOPS[loop], generation=2, workers=workers)
    assert again.outcome == "completed"
    assert [record.epoch for record in again.link.of("epoch")] == [1, 2]


@pytest.mark.parametrize(
    ("loop", "more", "name"),
    [
        ("transformers", "eval_strategy='epoch'", "held_out_loss"),
        ("lightning", "", "held_out"),
    ],
)
@pytest.mark.parametrize("step", [None, 3])
def test_what_a_framework_evaluates_is_in_the_record_of_the_epoch(
    run_group: Any, tmp_path: Path, *, loop: str, more: str, name: str, step: int | None
) -> None:
    records, generation = [], 1
    if step is not None:  # after the last step of the first epoch, and before its evaluation
        body, generation = stop_in(step, "SAVE_STOP"), 2
        stopped = run_job(run_group, tmp_path, LOOPS[loop], body=body, more=more)
        records += stopped.link.of("epoch")
    goal = {"metric": name, "mode": "min"}
    whole = {"generation": generation, "objective": goal}
    records += run_job(run_group, tmp_path, LOOPS[loop], more=more, **whole).link.of("epoch")
    assert [record.epoch for record in records] == [0, 1, 2]
    losses = [record.metrics[name] for record in records]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[2]


@pytest.mark.parametrize(
    ("loop", "more", "name"),
    [
        ("transformers", "eval_strategy='epoch'", "held_out_loss"),
        ("lightning", "", "held_out"),
    ],
)
def test_a_job_that_stops_improving_ends_the_loop(
    run_group: Any, tmp_path: Path, *, loop: str, more: str, name: str
) -> None:
    goal = {"metric": name, "mode": "max", "patience": 1}  # the loss only falls
    ended = run_job(run_group, tmp_path, LOOPS[loop], more=more, objective=goal)
    assert ended.outcome == "ended early"
    assert [record.epoch for record in ended.link.of("epoch")] == [0, 1]


@pytest.mark.parametrize(
    ("loop", "more", "spec", "sentence"),
    [
        ("transformers", "gradient_accumulation_steps=2", {}, "accumulation_steps is 2, but a"),
        ("transformers", "max_steps=5", {}, "max_steps is 5, but a job ends by training.epochs"),
        ("transformers", "auto_find_batch_size=True", {}, "auto_find_batch_size changes the batch"),
        ("transformers", "", {"batch": {"high": 64}}, "the job file has batch levels, but a"),
        ("lightning", "accumulate_grad_batches=2,", {}, "accumulate_grad_batches is 2, but a"),
        ("lightning", "max_steps=5,", {}, "max_steps is 5, but a job ends by training.epochs"),
        ("lightning", "limit_train_batches=1,", {}, "limit_train_batches is 1, but a job trains"),
        ("lightning", "overfit_batches=0.5,", {}, "limit_train_batches is 0.5, but a job trains"),
        ("lightning", "", {"batch": {"high": 64}}, "the job file has batch levels, but a"),
    ],
)
def test_what_a_job_cannot_follow_is_refused_before_any_step(
    run_group: Any, tmp_path: Path, *, loop: str, more: str, spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TaskRaised, match=sentence):
        run_job(run_group, tmp_path, LOOPS[loop], more=more, **spec)


PREPARED = "scheduler = accelerator.prepare(scheduler); attach_accelerator("
LOADER = "loader = accelerator.prepare(loader); attach_accelerator("
OTHER_DATA = """class Own(Trainer):
    def get_train_dataloader(self):
        return DataLoader([1, 2])
trainer = Own("""
ITERABLE = """class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield self[0]"""
BACKWARD = "def backward(self, loss): loss.backward()\n    def validation_step"
FROM_FILE = "DataLoader(Rows()), ckpt_path='last')"
BY_ITSELF = "super().__init__(); self.automatic_optimization = False\n        self.net"
MISTAKES = [
    ("accelerate", "Accelerator(", "Accelerator(gradient_accumulation_steps=2, ", "is 2, but"),
    ("accelerate", "model, optimizer = acc", "model, _ = acc", "the optimizer is not prepared"),
    ("accelerate", "attach_accelerator(", PREPARED, "would step once for each worker"),
    ("transformers", "train_dataset=Rows()", "train_dataset=iter(Rows())", "no train_dataset with"),
    ("transformers", "train(trainer)", "train(trainer, trial=None)", "takes no trial: a job goes"),
    ("transformers", "train(trainer)", "trainer.train()", r"write train\(trainer\)"),
    ("accelerate", "attach_accelerator(", LOADER, r"loader of session.batches\(\) is prepared"),
    ("transformers", "class Rows(torch.utils.data.Dataset):", ITERABLE, "no train_dataset with"),
    (
        "transformers",
        "trainer = Trainer(",
        OTHER_DATA,
        "reads 2 samples, and train_dataset has 100",
    ),
    ("lightning", "batch_sampler=session.batches(100)", "batch_size=8", "do not read the job's"),
    ("lightning", "DataLoader(Rows()))", FROM_FILE, "ckpt_path is 'last', but a job resumes"),
    ("lightning", "def validation_step", BACKWARD, r"has a backward\(\) of its own"),
    ("lightning", "super().__init__()\n        self.net", BY_ITSELF, "automatic_optimization is"),
]
"""Changes of a loop, and what its script is told."""


@pytest.mark.parametrize(("loop", "old", "new", "sentence"), MISTAKES)
def test_a_script_that_would_train_wrongly_is_told_what_to_write(
    run_group: Any, tmp_path: Path, *, loop: str, old: str, new: str, sentence: str
) -> None:
    assert LOOPS[loop].count(old) == 1
    steps = "max_steps=5" if "iter" in new else ""  # which Transformers asks for itself
    with pytest.raises(TaskRaised, match=sentence):
        run_job(run_group, tmp_path, LOOPS[loop].replace(old, new), more=steps)


PLATEAU = [
    ('"linear"', '"reduce_lr_on_plateau"'),
    ("tell_end(trainer.model)", "tell_end(trainer.model, trainer._get_learning_rate())"),
]


def test_a_schedule_that_follows_an_evaluation_goes_on_where_it_was(
    run_group: Any, undisturbed: Any, tmp_path: Path
) -> None:
    source = changed(TRAINER, *PLATEAU)
    more = "eval_strategy='epoch', lr_scheduler_kwargs={'patience': 0, 'threshold': 10.0}"
    end_of(run_group, tmp_path, source, body=stop_in(3, "SAVE_STOP"), more=more)
    again = run_job(run_group, tmp_path, source, more=more, generation=2)
    whole = undisturbed(source, "pass", more)
    assert again.said.partition("end ")[2] == whole[1]
    assert float(whole[1].split()[1]) < 0.001  # after two epochs that did not improve


def test_the_record_of_an_epoch_has_the_metrics_of_all_held_out_data(
    run_group: Any, tmp_path: Path
) -> None:
    two = ("eval_dataset=Rows()", "eval_dataset={'a': Rows(), 'b': Rows()}")
    source, more = changed(TRAINER, two), "eval_strategy='epoch'"
    epochs = run_job(run_group, tmp_path, source, more=more).link.of("epoch")
    assert all({"a_loss", "b_loss"} <= epoch.metrics.keys() for epoch in epochs)


def test_an_epoch_without_validation_has_no_metrics_of_an_earlier_one(
    run_group: Any, tmp_path: Path
) -> None:
    every = "check_val_every_n_epoch=2, "
    epochs = run_job(run_group, tmp_path, LIGHTNING, more=every).link.of("epoch")
    assert [epoch.metrics.keys() for epoch in epochs] == [set(), {"held_out"}, set()]


COUNTED_LOSS = (
    "train_dataset=Rows()",
    "train_dataset=Rows(), compute_loss_func=lambda outputs, labels, num_items_in_batch:"
    " nn.functional.mse_loss(outputs['outputs'], labels) * (labels.numel() / num_items_in_batch)",
)


@pytest.mark.parametrize("change", [("model=Net()", "model_init=Net"), COUNTED_LOSS])
def test_a_trainer_that_makes_its_model_or_loss_trains_the_same(
    run_group: Any, tmp_path: Path, *, change: tuple[str, str]
) -> None:
    ends = []
    for name, source in {"own": changed(TRAINER, change), "usual": TRAINER}.items():
        seeded = f"if {STEPS} == 0: torch.manual_seed(7)"
        (folder := tmp_path / name).mkdir()
        ends += [end_of(run_group, folder, source, body=seeded, workers=3)]  # uneven batches
    assert ends[0] == ends[1]


def test_a_module_may_ask_for_the_number_of_steps(undisturbed: Any) -> None:
    asking = ("total_iters=12", "total_iters=self.trainer.estimated_stepping_batches")
    assert undisturbed(changed(LIGHTNING, asking)) == undisturbed(LIGHTNING)


def devices_of(rank: int, order: Any) -> Any:
    from accordion_workers.frameworks.lightning import trainer_options

    with process_of_its_own():
        session.bind(replace(context(0, order, RecordingLink()), device="cuda:1"))
        found = trainer_options()["devices"]
        session.reset()
    return found


def test_a_trainer_takes_the_device_of_its_worker(run_group: Any, tmp_path: Path) -> None:
    assert run_group(1, devices_of, order_of(tmp_path, {"train.py": ""})) == [[1]]


def test_a_script_under_torchrun_needs_no_backend_for_lightning(tmp_path: Path) -> None:
    source = LIGHTNING.replace("BODY", "pass").replace("MORE", "").replace("epochs=99", "epochs=1")
    (tmp_path / "train.py").write_text(source)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "train.py"]
    ended = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "end " in ended.stdout, ended.stderr
