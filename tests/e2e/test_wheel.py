"""The built wheel in an environment without the checkout, beside people's own folders and modules
that have the names of ours: `workers/`, `service.py`, `tests/`, `utils/`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.real_up import WAIT_S, wait_for
from tests.programs import run_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RAY_TRAIN_PAGE = ROOT / "docs/start/ray_train.md"
OWN_SCRIPT = ROOT / "deploy/jobs/own-script/code/train.py"
PACKAGES = {
    "accordion",
    "accordion_client",
    "accordion_ray",
    "accordion_service",
    "accordion_workers",
}
STRANGERS = ("service.py", "tests/__init__.py", "utils/__init__.py", "workers/__init__.py")
"""Modules of the user. Folders with these names broke imports while our packages had them."""
CHECK = """
import service, tests, utils, workers
for module in (service, tests, utils, workers):
    assert module.OWNER == "the user", module
"""
LIBRARY = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, attach

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = attach(
    model, Config(method="powersgd", low={"rank": 4}, high={"rank": 1}), optimizer=optimizer
)
for _ in range(3):
    model(torch.randn(8, 64)).square().mean().backward()
    session.step()
    optimizer.zero_grad()
switch = session.end_epoch(lr=0.1, next_lr=0.1)
if dist.get_rank() == 0:
    print("decided", switch.decision.epoch)
dist.destroy_process_group()
"""
SDK = """
from accordion_client import connect

with connect() as client:
    print("jobs:", *(job.name for job in client.jobs().items))
"""
JOB = {
    "name": "beside-strangers",
    "code": "./code",
    "task": {"name": "script", "options": {"file": "train.py"}},
    "workers": {"min": 2, "max": 2, "cpus": 1},
    "training": {"epochs": 2, "global_batch": 64, "micro_batch": 16},
}


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Output of a command that succeeds."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ACCORDION_", "RAY_", "PYTHON"))
    }
    environment = {**kept, "OMP_NUM_THREADS": "1", **variables}
    done = run_program(command, cwd=folder, env=environment, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", str(folder), str(ROOT)], folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and, of the environment of the tests, what others made."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # Of a folder that such a file names, Python does not read the .pth files: the checkout, which
    # is installed there by one, stays away.
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet"]
    run([*pip, "--no-deps", "--ignore-installed", str(wheel)], folder)
    return python


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder, with modules that have the names of our folders."""
    folder = tmp_path_factory.mktemp("strange")
    for name in STRANGERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('OWNER = "the user"\n')
    (folder / "library.py").write_text(CHECK + LIBRARY)
    (folder / "sdk.py").write_text(CHECK + SDK)
    (guest,) = re.findall(r"```python\n(.*?)```", RAY_TRAIN_PAGE.read_text(), flags=re.DOTALL)
    (folder / "guest.py").write_text(CHECK + guest)
    for name in STRANGERS:
        (folder / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, folder / "code" / name)
    (folder / "code" / "train.py").write_text(_after_future_imports(OWN_SCRIPT.read_text(), CHECK))
    (folder / "job.yaml").write_text(json.dumps(JOB))
    return folder


def _after_future_imports(script: str, lines: str) -> str:
    head, future, rest = script.partition("from __future__ import annotations\n")
    return f"{head}{future}{lines}{rest}"


class Installed:
    """A service of the wheel that runs in the user's folder, and its command line."""

    def __init__(self, python: Path, folder: Path, home: Path) -> None:
        self._python, self._folder, self._home = python, folder, home

    def __call__(self, *arguments: str) -> str:
        """Output of a command that succeeds."""
        command = [str(self._python.with_name("accordion")), *arguments]
        return run(command, self._folder, ACCORDION_HOME=str(self._home))

    def python(self, *arguments: str, **more: str) -> str:
        """Output of Python with these arguments and variables, in the same folder."""
        variables = json.loads(self("env", "--json"))
        given = {name: value for name, value in variables.items() if value is not None}
        command = [str(self._python), *arguments]
        return run(command, self._folder, **given, **more, ACCORDION_HOME=str(self._home))


@pytest.fixture(scope="module")
def installed(
    python: Path, strange: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    home = tmp_path_factory.mktemp("home")
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("ACCORDION_", "RAY_"))}
    log = home / "up.log"
    with log.open("wb") as file:
        up = subprocess.Popen(
            [str(python.with_name("accordion")), "up", "--port", "0"],
            cwd=strange,
            env={**kept, "ACCORDION_HOME": str(home), "RAY_worker_niceness": "0"},
            stdout=file,
            stderr=file,
        )
    try:
        wait_for(lambda: "accordion is ready" in log.read_text() or up.poll(), log.read_text)
        assert up.poll() is None, log.read_text()
        yield Installed(python, strange, home)
    finally:
        up.terminate()
        up.wait(WAIT_S)


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    tops = {name.parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    inside = [name for name in names if not name.parts[0].endswith(".dist-info")]
    suffixes = {name.suffix for name in inside if name.name != "py.typed"}
    assert suffixes == {
        *(".py", ".html", ".css", ".js", ".yaml", ".mako", ".json", ".yml"),
        *(".md", ".sh", ".tpl", ".txt"),
    }
    assert {name.parts[0] for name in names if name.name == "py.typed"} == PACKAGES


def test_examples_come_with_the_wheel(installed: Installed, tmp_path: Path) -> None:
    written = tmp_path / "examples"
    installed("examples", str(written))
    assert "is a job" in installed("check", str(written / "jobs/own-script/job.yaml"))
    assert list((written / "grafana/dashboards").glob("*.json"))


def test_the_library_runs_under_torchrun_beside_strangers(python: Path, strange: Path) -> None:
    torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert "decided 1" in run([*torchrun, "library.py"], strange)


def test_a_script_of_a_job_runs_under_torchrun_beside_strangers(
    python: Path, strange: Path
) -> None:
    torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run([*torchrun, "train.py", "--epochs", "1"], strange / "code")


def test_a_script_runs_as_a_job_beside_strangers(installed: Installed) -> None:
    assert "SUCCEEDED" in installed("submit", "job.yaml", "--follow")
    assert JOB["name"] in installed("list")
    assert JOB["name"] in installed.python("sdk.py")


def test_the_ray_train_script_of_the_book_runs_beside_strangers(
    installed: Installed, tmp_path: Path
) -> None:
    installed.python("guest.py", HOME=str(tmp_path))
    [guest] = json.loads(installed("list", "--kind", "guest", "--json"))["items"]
    assert guest["status"] == "SUCCEEDED"
