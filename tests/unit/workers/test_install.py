"""People's own modules in a worker process, each test in a process of its own: `sys.path` is the
process's.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from accordion_workers.records.contract import Launch
from accordion_workers.user_code.install import install_code
from accordion_workers.worker import process
from tests.distributed.code_jobs import launch, packed, process_of_its_own
from tests.programs import run_program

TASK = """
import torch
from accordion_workers.data import TensorData
class Tiny:
    def __init__(self, options): self.options = options
    def model(self): return torch.nn.Linear(2, 2)
    def train_data(self): return TensorData(torch.zeros(4, 2), torch.zeros(4, 2))
    eval_data = train_data
    def loss(self, outputs, targets, *, step): return (outputs - targets).square().mean()
    def metrics(self, outputs, targets): return {"loss": self.loss(outputs, targets, step=0)}
class Half:
    def model(self): ...
    def loss(self): ...
thing = 3
"""
LOAD = """
import sys
from accordion_workers.user_code.install import install_code
from accordion_workers.records.contract import Launch
from accordion_workers.common.errors import WorkerError
from accordion_workers.user_code.load_task import load_task
for text in sys.argv[1:]:
    launch = Launch.model_validate_json(text)
    try:
        folder = install_code(launch)
        assert install_code(launch) == folder
        assert sys.path.count(str(folder)) == 1 and sys.path[-1] == str(folder), sys.path
        task = load_task(launch.spec.task.name, launch.spec.task.options)
        print(type(task).__name__, task.options, folder, oct(folder.stat().st_mode), sep="|")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def order(folder: Path, sources: dict[str, str], name: str = "tiny:Tiny", **options: Any) -> Launch:
    return launch(folder, {"task": {"name": name, "options": options}}, packed(folder, sources))


def said(*orders: Launch) -> str:
    """A line for each, from one process that loads their tasks."""
    command = [sys.executable, "-c", LOAD, *(order.model_dump_json() for order in orders)]
    done = run_program(command, check=True, cwd=Path(__file__).parents[3])
    return done.stdout.strip()


def test_a_class_of_ones_own_gets_its_options_in_a_folder_of_this_process(tmp_path):
    name, options, _, mode = said(order(tmp_path, {"tiny.py": TASK}, depth=3)).split("|")
    assert (name, options, mode) == ("Tiny", "{'depth': 3}", "0o40700")


@pytest.mark.usefixtures("process_of_a_worker")
def test_a_process_works_in_the_folder_of_its_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"train.py": "", "vocab.txt": "one two"}
    given = launch(tmp_path, {"task": {"name": "script"}}, packed(tmp_path, files))
    with process_of_its_own():
        process.Worker(given.model_dump_json()).prepare()
        assert Path("vocab.txt").read_text() == "one two"
    assert Path.cwd() != tmp_path


def test_folders_of_processes_that_were_ended_by_force_are_removed_and_no_others(
    tmp_path, monkeypatch
):
    temporary = tmp_path / "temporary"
    monkeypatch.setenv("TMPDIR", str(temporary))
    held, gone, pipe = (temporary / f"accordion-code-{name}" for name in ("held", "gone", "pipe"))
    for folder in (temporary, held, gone):
        folder.mkdir()
    os.mkfifo(pipe)
    with held_open(held):
        said(order(tmp_path, {"tiny.py": TASK}))
    assert sorted(temporary.iterdir()) == [held, pipe]


def test_a_worker_of_a_job_without_code_removes_them_too(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = tmp_path / "accordion-code-gone"
    gone.mkdir()
    without = order(tmp_path, {"tiny.py": TASK}).model_copy(update={"code": None})
    assert install_code(without) is None
    assert not gone.exists()


@contextmanager
def held_open(folder: Path) -> Iterator[None]:
    """Hold the folder as a process does that lives and uses it."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield
    os.close(lock)


MISSING = {
    "nowhere:Tiny": (
        "CodeError: there is no module 'nowhere' in the uploaded code or among what is installed"
    ),
    "lib.nowhere:Tiny": "CodeError: there is no module 'lib.nowhere' in the uploaded code",
    "tiny:Tiney": "CodeError: module 'tiny' has no class 'Tiney'; it has Half, Tiny",
    "tiny:thing": "CodeError: module 'tiny' has no class 'thing'; it has Half, Tiny",
    "tiny:Half": (
        "CodeError: class tiny:Half has no train_data, eval_data, metrics; "
        "a task has model, train_data, eval_data, loss, metrics"
    ),
    "needy:Needy": "ModuleNotFoundError: No module named 'something_else'",
}
"""What a spec names, and what it is told."""


def test_what_is_missing_is_named(tmp_path):
    sources = {"tiny.py": TASK, "lib/__init__.py": "", "needy.py": "import something_else"}
    lines = said(*(order(tmp_path, sources, name) for name in MISSING)).splitlines()
    assert [line[: len(told)] for line, told in zip(lines, MISSING.values(), strict=True)] == list(
        MISSING.values()
    )


def test_a_module_of_the_image_needs_no_code(tmp_path):
    spec = {"task": {"name": "accordion_workers.tasks.digits:DigitsMlp", "options": {"hidden": 8}}}
    command = [
        sys.executable,
        "-c",
        "import sys; from accordion_workers.records.contract import *;"
        "from accordion_workers.user_code.load_task import *;"
        "task = JobSpec.model_validate_json(sys.argv[1]).task;"
        "print(load_task(task.name, task.options).model())",
    ]
    done = run_program([*command, json.dumps(spec)], check=True, cwd=Path.cwd())
    assert "out_features=8" in done.stdout


def test_code_that_was_changed_is_gone_or_is_hidden_is_refused(tmp_path):
    folders = [tmp_path / name for name in ("changed", "gone", "hidden")]
    for folder in folders:
        folder.mkdir()
    changed, gone = (order(folder, {"tiny.py": TASK}) for folder in folders[:2])
    # the service's image may lack what the workers' has: torch, for one.
    hidden = order(folders[2], {"tiny.py": TASK, "torch/extra.py": ""})
    Path(changed.code or "").write_bytes(b"other")
    Path(gone.code or "").unlink()
    lines = said(changed, gone, hidden).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["TaskRaised:"] * 3
    assert f"CodeError: the code in {changed.code} is" in lines[0]
    assert "FileNotFoundError" in lines[1]
    assert "torch/extra.py would never be imported: 'torch' is" in lines[2]
