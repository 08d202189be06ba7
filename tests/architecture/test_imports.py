"""Who may import whom: every contract of pyproject.toml is proved by an import that breaks it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.architecture import planted_imports
from tests.architecture.source import FOLDERS, ROOT, module_name, parse, source_files
from tests.programs import run_program

PLANTED = [
    ("one-way", "accordion/planted.py", "import accordion_workers.records.contract"),
    (
        "one-way",
        "workers/accordion_workers/planted.py",
        "import accordion_service.settings.settings",
    ),
    ("one-way", "workers/accordion_workers/planted.py", "import accordion_ray"),
    ("one-way", "service/accordion_service/planted.py", "import accordion_ray.errors"),
    ("one-way", "service/accordion_service/planted.py", "import accordion_client"),
    ("one-way", "workers/accordion_ray/planted.py", "import accordion_service.settings.settings"),
    ("library", "accordion/planted.py", "import pydantic"),
    ("library", "accordion/planted.py", "import transformers"),
    ("integrations", "accordion/planted.py", "from accordion.integrations import common"),
    ("torch-free", "accordion/base/messages.py", "import torch"),
    ("torch-free", "accordion/policies/fixed.py", "from accordion.session import session"),
    ("torch-free", "workers/accordion_workers/records/contract.py", "import ray"),
    ("ray-home", "service/accordion_service/planted.py", "import ray"),
    ("ray-home", "service/accordion_service/planted.py", "import torch"),
    (
        "api",
        "service/accordion_service/store/engine/database.py",
        "from accordion_service.runtime import ray_backend",
    ),
    (
        "loggers",
        "service/accordion_service/loggers/turns.py",
        "from accordion_service.loggers import mlflow_sink",
    ),
    ("loggers", "service/accordion_service/scheduler/housekeeping.py", "import wandb"),
    ("domain", "service/accordion_service/domain/jobs/statuses.py", "import pydantic"),
    (
        "house",
        "service/accordion_service/api/planted.py",
        "from accordion_service.scheduler import loop",
    ),
    (
        "house",
        "service/accordion_service/loggers/planted.py",
        "from accordion_service.api import problems",
    ),
    (
        "house",
        "service/accordion_service/views/planted.py",
        "from accordion_service.backups import backups",
    ),
    (
        "house",
        "service/accordion_service/store/planted.py",
        "from accordion_service.access import guards",
    ),
    (
        "house",
        "service/accordion_service/schemas/planted.py",
        "from accordion_service.store import database",
    ),
    (
        "house",
        "service/accordion_service/domain/planted.py",
        "from accordion_service.settings import home",
    ),
    ("house", "service/accordion_service/planted.py", ""),
    (
        "store",
        "service/accordion_service/store/reads/planted.py",
        "from accordion_service.store.writes import jobs",
    ),
    ("store", "service/accordion_service/store/planted.py", ""),
    (
        "acyclic",
        "service/accordion_service/domain/jobs/statuses.py",
        "from accordion_service.domain.capacity import queue",
    ),
    (
        "acyclic",
        "workers/accordion_workers/hub/journal.py",
        "from accordion_workers.controller import attempt",
    ),
    ("wire", "service/accordion_service/schemas/planted.py", "import fastapi"),
    (
        "wire",
        "service/accordion_service/schemas/planted.py",
        "from accordion_service.store import database",
    ),
    (
        "client",
        "service/accordion_client/sdk/jobs.py",
        "from accordion_service.settings import home",
    ),
    (
        "client",
        "service/accordion_client/sdk/planted.py",
        "import accordion_workers.records.contract",
    ),
    (
        "client-rooms",
        "service/accordion_client/machine/planted.py",
        "from accordion_client.commands import pack",
    ),
    (
        "client-rooms",
        "service/accordion_client/sdk/planted.py",
        "from accordion_client.machine import up",
    ),
    ("client-rooms", "service/accordion_client/planted.py", ""),
    ("view", "service/accordion_service/planted.py", "from accordion import session"),
    ("view", "service/accordion_service/planted.py", "from accordion.compressors import none"),
    ("view", "service/accordion_service/planted.py", "from accordion_workers.training import loop"),
    ("library-rooms", "accordion/base/planted.py", "from accordion.compressors import none"),
    ("library-rooms", "accordion/compress/planted.py", "from accordion.hook import ddp_hook"),
    ("library-rooms", "accordion/decide/planted.py", "from accordion.compress import ledger"),
    ("library-rooms", "accordion/hook/planted.py", "from accordion.session import session"),
    ("library-rooms", "accordion/planted.py", ""),
    (
        "rooms",
        "workers/accordion_workers/worker/planted.py",
        "from accordion_workers.controller import attempt",
    ),
    (
        "rooms",
        "workers/accordion_workers/training/planted.py",
        "from accordion_workers.controller import failure_causes",
    ),
    (
        "rooms",
        "workers/accordion_workers/training/planted.py",
        "from accordion_workers.worker import memory",
    ),
    (
        "rooms",
        "workers/accordion_workers/training/planted.py",
        "from accordion_workers.planning import predictions",
    ),
    (
        "rooms",
        "workers/accordion_workers/hub/planted.py",
        "from accordion_workers.training import loop",
    ),
    (
        "rooms",
        "workers/accordion_workers/hub/planted.py",
        "from accordion_workers.checkpoint import storage",
    ),
    (
        "rooms",
        "workers/accordion_workers/checkpoint/planted.py",
        "from accordion_workers.training import sampler",
    ),
    (
        "rooms",
        "workers/accordion_workers/user_code/planted.py",
        "from accordion_workers.training import loop",
    ),
    ("rooms", "workers/accordion_workers/planted.py", ""),
    (
        "rooms",
        "workers/accordion_workers/records/contract.py",
        "from accordion_workers.hub import journal",
    ),
    (
        "rooms",
        "workers/accordion_workers/spec/job.py",
        "from accordion_workers.checkpoint import storage",
    ),
    (
        "rooms",
        "workers/accordion_workers/tasks/base.py",
        "from accordion_workers.user_code import install",
    ),
    ("workers-ray", "workers/accordion_workers/training/planted.py", "import ray"),
    ("workers-ray", "workers/accordion_workers/worker/memory.py", "import ray"),
    ("workers-ray", "workers/accordion_workers/hub/accordion_actor.py", "import ray"),
    ("training-ray", "workers/accordion_workers/training/planted.py", "import ray"),
    (
        "training-ray",
        "workers/accordion_workers/training/planted.py",
        "from accordion_workers.hub import actor_client",
    ),
]


@cache
def contracts() -> dict[str, dict]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["id"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def run_in(folder: Path, command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program that finds the packages of the folder and not ours."""
    path = os.pathsep.join(str(folder / name) for name in ("", "workers", "service"))
    return run_program(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, input=text)


def loaded_by(modules: list[str]) -> set[str]:
    """Top-level names that a fresh interpreter has loaded after importing the modules."""
    code = (
        f"import sys, {', '.join(modules)}; print(*(name for name in sys.modules if '.' not in"
        " name))"
    )
    done = run_program([sys.executable, "-c", code], cwd=ROOT, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for package in FOLDERS:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("static", "__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def reports(copy: Path) -> list[tuple[int, str]]:
    """Status and report of import-linter for each planted import, all from one process."""
    command = [sys.executable, str(Path(planted_imports.__file__))]
    done = run_in(copy, command, json.dumps(PLANTED))
    assert done.returncode == 0, done.stderr
    return [(status, report) for status, report in json.loads(done.stdout)]


def test_all_contracts_are_kept(copy: Path) -> None:
    done = run_in(copy, [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("place", "contract"),
    [
        pytest.param(place, contract, id=f"{contract}: {line}")
        for place, (contract, _, line) in enumerate(PLANTED)
    ],
)
def test_an_import_that_breaks_a_contract_is_found(
    reports: list[tuple[int, str]], place: int, contract: str
) -> None:
    status, report = reports[place]
    assert status == 1
    assert f"{contracts()[contract]['name']} BROKEN" in " ".join(report.split())


def test_every_contract_is_proved_by_a_planted_import() -> None:
    assert {contract for contract, _, _ in PLANTED} == contracts().keys()


def foreign_imports(paths: Iterable[Path]) -> set[str]:
    """Top-level names that files import from outside of the standard library."""
    nodes = [node for path in paths for node in ast.walk(parse(path))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)


def test_the_library_needs_nothing_but_torch() -> None:
    paths = [path for path in source_files() if path.is_relative_to(ROOT / "accordion")]
    core = [path for path in paths if "integrations" not in path.parts]
    assert foreign_imports(core) == {"accordion", "torch"}
    assert foreign_imports(paths) == {"accordion", "torch", "transformers"}


def test_no_integration_is_loaded_before_a_script_asks_for_it() -> None:
    frameworks = {"accelerate", "lightning", "pytorch_lightning", "transformers"}
    assert loaded_by(["accordion.session.session", "accordion.integrations.accelerate"]).isdisjoint(
        frameworks
    )


def test_what_a_server_reads_loads_neither_torch_nor_ray() -> None:
    assert loaded_by(contracts()["torch-free"]["source_modules"]).isdisjoint({"torch", "ray"})


def test_the_api_process_loads_neither_torch_nor_ray() -> None:
    assert loaded_by(["accordion_service.api.app"]).isdisjoint({"torch", "ray"})


def test_the_supervisor_loads_neither_ray_train_nor_torch() -> None:
    assert loaded_by(
        ["accordion_workers.controller.supervisor", "accordion_workers.controller.ray_train_pool"]
    ).isdisjoint({"pandas", "pyarrow", "torch"})


def test_the_process_of_ray_trains_controller_loads_no_torch() -> None:
    assert "torch" not in loaded_by(["accordion_workers.controller.ray_train_internals"])


PRIVATE_HOMES = {
    "ray.train.v2": {
        "accordion_ray.train_context",
        "accordion_workers.controller.ray_train_internals",
        "accordion_workers.worker.ray_train_context",
    }
}
"""Private names of other packages by their beginning, and the modules that may import them: one for
each kind of process.
"""


def strangers(tree: ast.AST, module: str) -> set[str]:
    """Private names of other packages that a module imports though another one is their home."""
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {
        name: allowed
        for name in names
        for start, allowed in PRIVATE_HOMES.items()
        if f"{name}.".startswith(f"{start}.")
    }
    return {name for name, allowed in homes.items() if module not in allowed}


def test_what_ray_train_keeps_private_has_one_home() -> None:
    found = {
        module_name(path): strangers(parse(path), module_name(path)) for path in source_files()
    }
    assert {module: names for module, names in found.items() if names} == {}
    assert strangers(
        ast.parse(
            (ROOT / "workers/accordion_workers/controller/ray_train_internals.py").read_text()
        ),
        "accordion_workers.planted",
    )


@pytest.mark.parametrize(
    "line",
    [
        "import ray.train.v2._internal.util",
        "from ray.train.v2._internal.execution import context",
        "def f():\n    from ray.train import v2",
    ],
)
def test_a_second_home_of_what_ray_train_keeps_private_is_found(line: str) -> None:
    assert strangers(ast.parse(line), "accordion_workers.planted")
