"""`pip install accordion-train` alone: a laptop without torch, Ray and database uses a service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.conftest import Live, serve_live
from tests.e2e.test_wheel import build_wheel
from tests.programs import run_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LIMIT_MB = 60
JOB = {
    "name": "from-afar",
    "task": {"name": "digits-mlp"},
    "training": {"epochs": 1000},
    "workers": {"min": 1, "max": 1},
}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("light")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}", "install"]
    command = [*pip, "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    done = run_program(command)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    yield from serve_live(tmp_path_factory.mktemp("service"))


@pytest.fixture
def run(environment: Path, service: Live, tmp_path: Path) -> Run:
    """Runs a program of the environment as a user of the service elsewhere."""
    names = ("PATH", "HOME", "LANG", "PIP_CERT", "SSL_CERT_FILE")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    variables |= {"ACCORDION_URL": service.url, "ACCORDION_HOME": str(tmp_path / "home")}

    def call(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / program), *arguments]
        return run_program(command, cwd=tmp_path, env=variables)

    return call


def test_the_light_client_is_small(environment: Path) -> None:
    files = [path for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    assert size < LIMIT_MB * 10**6, f"{size / 1e6:.1f} MB"


def test_a_job_is_submitted_watched_and_overridden_from_afar(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    for command, code, said in (
        ("check job.yaml", 0, "is a job"),
        ("submit job.yaml", 0, "is QUEUED as"),
        ("list", 0, "from-afar"),
        ("show from-afar", 0, "digits-mlp"),
        ("override from-afar --level low --until 500", 0, "low"),
        ("cancel from-afar", 0, "from-afar"),
        ("watch from-afar", 1, "CANCELLED"),
    ):
        done = run("accordion", *command.split())
        assert (done.returncode, said in done.stdout) == (code, True), done


def test_the_sdk_works_from_afar(run: Run) -> None:
    code = "from accordion_client import connect; print(len(connect().jobs().items))"
    done = run("python", "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("accordion", "up"), "service"),
        (("accordion", "api"), "service"),
        (("accordion", "scheduler"), "service"),
        (("accordion", "simulate", "job.yaml", "--workers", "2"), "train"),
        (("accordion", "download", "one", "--format", "dcp"), "ray"),
        (("accordion", "export", "one", "--format", "parquet"), "service"),
        (("accordion", "mcp"), "mcp"),
        (("python", "-c", "from accordion import attach"), "train"),
        (("python", "-c", "from accordion_workers import session"), "ray"),
        (("python", "-c", "import accordion_ray"), "ray"),
    ],
)
def test_what_needs_more_says_which_extra(run: Run, arguments: tuple[str, ...], extra: str) -> None:
    done = run(*arguments)
    assert done.returncode == (2 if arguments[0] == "accordion" else 1)
    assert f"pip install 'accordion-train[{extra}]'" in done.stderr.splitlines()[-1]


def test_a_report_that_the_command_builds_says_what_it_needs(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "seed-0"
    folder.mkdir(parents=True)
    simulated = {"name": "a", "spec": {}, "workers": 1, "seed": 0, "status": "STOPPED"}
    (folder / "run.json").write_text(json.dumps(simulated))
    done = run("accordion", "report", "runs")
    assert done.returncode == 2
    assert "pip install 'accordion-train[service]'" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "runs.html").exists()
