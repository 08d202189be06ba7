"""Scripts under torchrun, or in a warm process with its environment: those of the book, that of
deploy/jobs without a job, and how a process ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.distributed.code_jobs import run_as_launched
from tests.programs import run_program

HERE = Path(__file__).parent
BOOK = HERE.parents[1] / "docs" / "start"
OWN_SCRIPT = HERE.parents[1] / "deploy" / "jobs" / "own-script"
TIMEOUT_S = 200
OWN_LINES_NEED = """
import torch
from torch.nn.functional import cross_entropy as loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
accuracy = 0.5
"""
MODEL = """
ddp_model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
"""


def torchrun(*script: str, folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", *script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    run = run_program(command, cwd=folder, env=environment, timeout=TIMEOUT_S)
    assert run.returncode == 0, run.stderr
    return run


def blocks_of(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (BOOK / page).read_text(), flags=re.DOTALL)


def test_the_script_in_the_book_saves_bytes_and_the_calls_beside_it_run_in_it(tmp_path):
    (script,), (override, save, gather) = (
        blocks_of("torchrun.md", language) for language in ("python", "py")
    )
    # Loaded in a later run; here not before it is saved.
    save = save.replace("states =", "dist.barrier()\nstates =")
    gather = gather.replace("session.load_state_dict", "dist.barrier()\nsession.load_state_dict")
    end = "dist.destroy_process_group()"
    calls = ["saved_workers = world_size", override, save, gather, "print('called')", end]
    (tmp_path / "train.py").write_text(script.replace(end, "\n".join(calls)))
    said = torchrun("train.py", folder=tmp_path).stdout
    sent, dense = read_bytes(said)
    assert sent < dense / 4
    assert "critical" in said
    assert said.count("called") == 2


def test_the_script_of_the_book_with_a_sharded_model_saves_bytes(tmp_path, run_new):
    (script,) = blocks_of("sharded.md", "python")
    (tmp_path / "train.py").write_text(script)
    said, *_ = run_new(4, run_as_launched, free_port(), str(tmp_path / "train.py"), [], 4)
    assert read_bytes(said)[0] < read_bytes(said)[1] / 4


def test_the_example_of_a_sharded_model_resumes_on_the_same_and_on_another_grid(tmp_path, run_new):
    script = str(HERE.parents[1] / "deploy" / "examples" / "train_with_fsdp2.py")

    def accuracy(epochs: int, *options: str) -> str:
        arguments = ["--epochs", str(epochs), *options]
        said, *_ = run_new(4, run_as_launched, free_port(), script, arguments, 4)
        return re.findall(r"accuracy (\S+),", said)[0]

    kept = ["--checkpoint", str(tmp_path / "kept")]
    accuracy(1, *kept)
    shutil.copytree(tmp_path / "kept", tmp_path / "one epoch")
    assert accuracy(2, *kept) == accuracy(2)
    other = accuracy(2, "--checkpoint", str(tmp_path / "one epoch"), "--shards", "4")
    assert float(other) > 0.8


def test_the_example_of_a_sharded_script_learns_without_a_job(tmp_path, monkeypatch, run_new):
    text = tmp_path / "text.txt"
    text.write_text("".join(page.read_text() for page in sorted(BOOK.glob("*.md"))))
    monkeypatch.setenv("ACCORDION_DATA_TEXT", str(text))
    script = HERE.parents[1] / "deploy" / "jobs" / "lm-fsdp2" / "code" / "train.py"
    options = ["--epochs", "2", "--characters", "20000", "--length", "16", "--width", "32"]
    said, *_ = run_new(4, run_as_launched, free_port(), str(script), options, 4)
    first, second = map(float, re.findall(r"epoch \d: loss (\S+)", said))
    assert second < first
    (shown,) = blocks_of("sharded.md", "py")
    written = [line.strip() for line in script.read_text().splitlines()]
    assert all(line.strip() in written for line in shown.splitlines())


def read_bytes(said: str) -> list[int]:
    found = re.search(r"sent (\S+) bytes, dense (\S+)", said)
    return [int(number.replace(",", "")) for number in found.groups()]


def test_the_lines_of_a_job_in_the_book_train_without_a_job(run_group, tmp_path):
    (lines,) = blocks_of("own_script.md", "python")
    begin = 'session.init_process_group("gloo")  # in place of torch.distributed\'s\n'
    head, tail = lines.split(begin)
    script = f"{OWN_LINES_NEED}{head}{begin}{MODEL}{tail}print('trained')\n"
    (tmp_path / "train.py").write_text(script)
    file = str(tmp_path / "train.py")
    assert run_group(2, run_as_launched, free_port(), file, []) == ["trained\n"] * 2


def test_the_example_of_a_script_runs_before_it_was_a_job(run_group):
    file = f"{OWN_SCRIPT}/plain.py"
    said, nothing = run_group(2, run_as_launched, free_port(), file, ["--epochs=1"])
    assert re.fullmatch(r"epoch 0: accuracy 0\.\d+\n", said)
    assert nothing == ""


def test_the_example_of_a_script_runs_under_torchrun_as_in_a_job():
    said = torchrun(f"{OWN_SCRIPT}/code/train.py", "--epochs=1").stdout
    assert re.fullmatch(r"epoch 0: accuracy 0\.\d+\n", said)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="threads are made late by Linux's scheduler"
)
@pytest.mark.parametrize("method", ["none", "powersgd"])
def test_a_script_may_end_right_after_its_last_step(method):
    assert torchrun("ends_at_once.py", method).stdout == "trained\n"


def test_a_script_that_nobody_started_in_a_group_is_told_how(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("from accordion_workers import session\nsession.init_process_group()\n")
    alone = {name: value for name, value in os.environ.items() if name != "RANK"}
    said = run_program([sys.executable, script], env=alone)
    assert said.returncode == 1
    assert "start the script with torchrun --nproc-per-node 2 FILE" in said.stderr
