"""`accordion simulate`: jobs of pretended workers, their tables, and what goes on where it was."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from accordion_client.commands.group_tables import list_seeds, print_group
from accordion_client.commands.run_groups import (
    RunGroup,
    SeedResult,
    compute_interval,
    format_interval,
)
from accordion_client.commands.simulate import parse_seeds
from accordion_service.errors import SettingsError
from accordion_workers.simulation.simulated_runs import lock_run
from tests.unit.service.conftest import Accordion

JOB = """
name: small
task: {name: digits-mlp, options: {hidden: 16}}
training: {epochs: 2}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


@pytest.mark.parametrize(
    ("text", "seeds"), [("", []), ("3", [3]), ("0,1, 2", [0, 1, 2]), ("5-7,1", [5, 6, 7, 1])]
)
def test_seeds_are_numbers_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text",
    ["a", "1-", "-1", "1,1", "0-3,2", "0-100000", "3-1", "1,3-2", ",", "9" * 5000],
)
def test_other_seeds_are_refused_with_an_example(text):
    with pytest.raises(SettingsError, match="such as"):
        parse_seeds(text)


def test_the_interval_is_that_of_students_t():
    mean, half = compute_interval([1.0, 2.0, 3.0])
    assert (mean, half) == pytest.approx((2.0, 4.303 / 3**0.5))
    assert format_interval([0.5, 0.75, None], "accuracy") == "62.5 ±158.8 %"
    assert format_interval([0.5], "accuracy") == "50.0 %"
    assert format_interval([None], "loss") == "-"


def result(seed: int, status: str, loss: float) -> SeedResult:
    numbers = {"wire": 10, "dense_wire": 20, "payload": 10, "seconds": 1.0}
    parts = {"payload_by_method": {"none": 10}, "wire_by_method": {"none": 10}}
    return SeedResult(
        seed=seed, status=status, epochs=2, metric=None, loss=loss, **numbers, **parts
    )


def test_the_mean_is_over_the_seeds_that_trained_to_their_end() -> None:
    ended = [result(0, "SUCCEEDED", 1.0), result(1, "FAILED", 90.0), result(2, "SUCCEEDED", 2.0)]
    group = RunGroup(name="small", workers=2, metric_name=None, seeds=ended, epochs=[])
    mean = list_seeds(group).rows[-1]
    assert (mean[0], mean[3]) == ("mean", "1.5 ±6.4")


def test_a_method_that_a_seed_did_not_use_counts_as_nothing_sent_in_the_mean() -> None:
    parts = {"payload_by_method": {"qsgd": 6}, "wire_by_method": {"qsgd": 4}}
    ended = [replace(result(0, "SUCCEEDED", 1.0), **parts), result(1, "SUCCEEDED", 1.0)]
    group = RunGroup(name="small", workers=2, metric_name=None, seeds=ended, epochs=[])
    assert group.average_methods() == {"qsgd": (3.0, 2.0), "none": (5.0, 5.0)}


def test_seeds_that_trained_no_epoch_have_no_table() -> None:
    failed = replace(result(0, "FAILED", 0.0), epochs=0)
    group = RunGroup(name="small", workers=2, metric_name=None, seeds=[failed], epochs=[])
    assert list(print_group(group)) == []


def test_a_simulation_prints_its_seeds_and_epochs_compares_them_and_refuses_another(
    accordion: Accordion, job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    one = ("simulate", job, "--workers", "3", "--out", out)
    simulate = (*one, "--seeds", "0,1")
    assert accordion(*one).code == 0
    view = accordion(*simulate, "--json").json()
    assert [seed["status"] for seed in view["seeds"]] == ["SUCCEEDED", "SUCCEEDED"]
    assert [row["epoch"] for row in view["epochs"]] == [0, 1]
    assert view["seeds"][0]["loss"] != view["seeds"][1]["loss"]
    assert all(0 < seed["wire"] < seed["dense_wire"] for seed in view["seeds"])
    # No call trains a seed again.
    assert [len(list((out / f"seed-{seed}/records").iterdir())) for seed in (0, 1)] == [1, 1]
    lines = accordion(*simulate).out.splitlines()
    assert lines[0] == "small, 3 simulated workers"
    assert [line.split()[0] for line in lines if line[:1] in {"0", "1", "m"}] == [
        "0",
        "1",
        "0",
        "1",
        "mean",
    ]
    [mean] = [line for line in lines if line.startswith("mean")]
    assert " ±" in mean
    methods = [line.split()[0] for line in lines[lines.index(mean) :] if " %" in line]
    assert methods[1:] == ["powersgd", "(control)", "none"]
    compared = accordion("compare", out).out
    assert "runs/seed-0" in compared
    assert "times of simulations: those of their one process, not of a cluster" in compared
    assert "training.seed" in compared
    said = accordion(*one, "--set", "training.epochs=3")
    assert said.code == 2
    assert "another training.epochs (2, now 3); give --out another folder" in said.err
    said = accordion("simulate", job, "--workers", "2", "--out", out)
    assert said.code == 2
    assert "another workers (3, now 2)" in said.err


def test_workers_that_hold_the_model_together_are_simulated_as_replicas(
    accordion: Accordion, job: Path, tmp_path: Path
) -> None:
    shards = ("--workers", "4", "--set", "parallelism.shard=2")
    sharded = (*shards, "--out", tmp_path / "sharded", "--json")
    said = accordion("simulate", job, *sharded)
    assert "4 workers that hold the model together in replicas of 2 are simulated as 2" in said.err
    alone = ("--workers", "2", "--out", tmp_path / "whole", "--json")
    whole = accordion("simulate", job, *alone).json()
    assert said.json()["epochs"] == whole["epochs"]


def test_a_folder_in_which_another_command_runs_is_refused(
    accordion: Accordion, job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    with lock_run(out / "seed-0"):
        said = accordion("simulate", job, "--workers", "1", "--out", out)
    assert said.code == 2
    assert "another command runs the simulation in" in said.err


def test_a_refused_spec_leaves_no_run_behind_and_seeds_of_a_folder_share_their_spec(
    accordion: Accordion, job: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "runs", ("--set", "training.optimizer.lr=0.2")
    simulate = ("simulate", job, "--workers", "1", "--out", out, "--seeds")
    assert accordion(*simulate, "2").code == 0
    for seeds in ("0-2", "1"):
        said = accordion(*simulate, seeds, *other)
        assert said.code == 2
        assert "seed-2 has a simulation with another training.optimizer" in said.err
    assert list(out.glob("*/run.json")) == [out / "seed-2" / "run.json"]
    assert accordion(*simulate, "1,2").code == 0


def test_an_output_folder_that_is_a_file_is_refused_with_the_way_out(
    accordion: Accordion, job: Path
) -> None:
    said = accordion("simulate", job, "--workers", "1", "--out", job)
    assert said.code == 2
    assert f"{job}/seed-0 cannot be used (Not a directory); give another folder" in said.err


def test_a_run_whose_folder_cannot_be_written_fails_alone(
    accordion: Accordion, job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    (out / "seed-0" / "output.log").mkdir(parents=True)
    said = accordion("simulate", job, "--workers", "1", "--seeds", "0,1", "--out", out, "--json")
    assert said.code == 1
    assert "seed 0 failed: [Errno 21] Is a directory: " in said.err
    assert [seed["status"] for seed in said.json()["seeds"]] == ["FAILED", "SUCCEEDED"]


def test_the_line_of_the_progress_is_cleared_before_the_tables(job: Path, tmp_path: Path) -> None:
    ours, terminal = pty.openpty()
    arguments = ["simulate", job, "--workers", "2", "--out", tmp_path / "runs"]
    command = [sys.executable, "-m", "accordion_client.commands.main", *map(str, arguments)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=terminal, check=True)
    os.close(terminal)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    lines = shown.split("\r")
    assert "seed 0: epoch " in shown
    assert max(map(len, lines)) < 80 + len("\x1b[K")
    assert lines[-1] == "\x1b[K"


def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    accordion: Accordion, job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    for device in ("cuda:64", "tpu"):
        said = accordion("simulate", job, "--workers", "1", "--device", device, "--out", out)
        assert said.code == 1
        assert f"device is {device!r}, and this machine has cpu" in said.err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("--workers", "9"), "for --workers 9"),
        (("--set", "parallelism.shard=3"), "give a multiple of 3, such as 3"),
        (("--set", "parallelism={shard: 2, shards: 2}"), "shards"),
        (("--set", "policy.name=cost_aware"), "simulated workers have none"),
        (("--set", "task={name: script, options: {file: a.py}}"), "needs code"),
        (("--set", "training.epochs=0"), "training.epochs: 0 is rejected"),
        (("--set", "task.options.data=1"), "data"),
    ],
)
def test_a_job_that_cannot_be_simulated_is_refused_in_one_sentence(
    accordion: Accordion, job: Path, changes: tuple[str, ...], sentence: str
) -> None:
    said = accordion("simulate", job, "--workers", "2", *changes)
    assert said.code == 2
    assert sentence in said.err
    assert not Path("simulations").exists()


def test_a_script_cannot_be_simulated(accordion: Accordion, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    file = tmp_path / "job.yaml"
    file.write_text("code: ./code\ntask: {name: script, options: {file: train.py}}\n")
    said = accordion("simulate", file, "--workers", "2")
    assert said.code == 2
    assert "a script has a training loop of its own" in said.err


def test_what_the_task_raises_is_one_sentence_and_its_output_is_kept(
    accordion: Accordion, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    options = "{samples: 256, width: 16, raise_at_step: 2}"
    file.write_text(f"task: {{name: synthetic, options: {options}}}\n")
    out = tmp_path / "runs"
    said = accordion("simulate", file, "--workers", "2", "--out", out)
    assert said.code == 1
    assert "seed 0 failed: " in said.err
    assert "raise_at_step" in said.err
    assert "Traceback" not in said.err
    assert "Traceback" in (out / "seed-0" / "output.log").read_text()


SLOW_TASK = """
import os, time
from accordion_workers.tasks.digits import DigitsMlp

class Mine(DigitsMlp):
    def loss(self, outputs, targets, *, step):
        if step >= 23:  # after the first epoch
            time.sleep(float(os.environ.get("SLEEP_S", "0")))
        return super().loss(outputs, targets, step=step)
"""


@pytest.fixture
def heard_ctrl_c() -> Iterator[None]:
    """Processes hear Ctrl-C, also if these tests run in the background of a shell, which lets its
    jobs ignore it, and with them their children.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_saves_and_the_same_command_goes_on(accordion: Accordion, tmp_path: Path) -> None:
    file, out, code = tmp_path / "job.yaml", tmp_path / "runs", tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(SLOW_TASK)
    task = "code: ./code\ntask: {name: mine:Mine, options: {hidden: 16}}\n"
    file.write_text(f"{task}training: {{epochs: 4}}\n")
    arguments = ["simulate", file, "--workers", "2", "--out", out]
    command = [sys.executable, "-m", "accordion_client.commands.main", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The epochs after the first one, of 92 micro-batches each, take longer than anything here.
        env={**os.environ, "SLEEP_S": "0.3"},
    ) as process:
        records = out / "seed-0" / "records"
        while not any('"kind":"epoch"' in one.read_text() for one in records.glob("*.jsonl")):
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 1
    assert "stopped at seed 0; the same command goes on" in said
    assert json.loads((out / "seed-0" / "run.json").read_text())["status"] == "STOPPED"
    view = accordion(*arguments, "--json").json()
    assert [row["epoch"] for row in view["epochs"]] == list(range(4))


def test_a_folder_without_runs_is_named_where_no_service_responds(
    accordion: Accordion, tmp_path: Path
) -> None:
    said = accordion("compare", str(tmp_path), "other", "--url", "http://127.0.0.1:9")
    assert said.code != 0
    assert f"{tmp_path} is a folder without simulated runs" in said.err
