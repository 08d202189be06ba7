"""Jobs with code of people's own, in plain gloo groups. Functions of the form `f(rank, ...)` run in
every process.
"""

from __future__ import annotations

import hashlib
import io
import os
import runpy
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d

from accordion_workers import session
from accordion_workers.common.errors import WorkerError
from accordion_workers.records.contract import JobSpec, Launch
from accordion_workers.training.boundaries import Outcome
from accordion_workers.training.context import NoLink, RankProgress, WorkerContext
from accordion_workers.training.loop import train_job
from accordion_workers.training.script_runner import run_script
from accordion_workers.user_code.install import install_code
from accordion_workers.worker.process import GroupAssignment, run_training
from accordion_workers.worker.process_damage import note_destroyed_groups
from accordion_workers.worker.process_group import hold_groups, release_groups
from accordion_workers.worker.torchrun_env import build_torchrun_env
from tests.distributed.loop_jobs import RecordingLink


@dataclass
class Result:
    """What one rank brought back."""

    outcome: Outcome
    link: RecordingLink
    """Empty on all ranks but 0."""
    said: str
    """What the script printed on this rank."""


def packed(folder: Path, sources: dict[str, str]) -> tuple[Path, str]:
    """A zip file of these sources, and its SHA-256."""
    path = folder / "code.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        for name, text in sources.items():
            # A fixed date (1980) in place of now: equal sources give an equal archive.
            zipped.writestr(zipfile.ZipInfo(name), text)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def packed_folder(folder: Path, code: Path) -> tuple[Path, str]:
    return packed(
        folder, {str(file.relative_to(code)): file.read_text() for file in code.rglob("*.py")}
    )


def context(rank: int, launch: Launch, link: RecordingLink, generation: int = 1) -> WorkerContext:
    return WorkerContext(
        launch=launch,
        generation=generation,
        rank=rank,
        world_size=dist.get_world_size(),
        device="cpu",
        link=link if rank == 0 else NoLink(lambda _: None),
    )


def launch(storage: Path, spec: dict[str, Any], code: tuple[Path, str]) -> Launch:
    path, sha256 = code
    job = JobSpec.model_validate({**spec, "code": sha256})
    return Launch(
        job_id="job-1", attempt=1, workers=2, storage=str(storage), spec=job, code=str(path)
    )


@contextmanager
def process_of_its_own() -> Iterator[None]:
    """A worker process serves one job; those of the tests serve many."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if "accordion-code-" in (getattr(sys.modules[name], "__file__", None) or ""):
                del sys.modules[name]


def run_own_script(
    rank: int, order: Launch, link: RecordingLink | None = None, generation: int = 1
) -> Result:
    """Run the job's script, and say what came of it."""
    link = link or RecordingLink()
    said = io.StringIO()
    assignment = GroupAssignment(
        generation=generation,
        rank=rank,
        world_size=dist.get_world_size(),
        store=("", 0, ""),
        previous_group=None,
        peer_timeout_s=60.0,
        nodes=("node",) * dist.get_world_size(),
    )
    os.environ |= build_torchrun_env(assignment, "cpu")
    with process_of_its_own(), redirect_stdout(said):
        outcome = run_script(context(rank, order, link, generation))
    link.callback = None
    return Result(outcome, link if rank == 0 else RecordingLink(), said.getvalue())


def run_own_task(rank: int, order: Launch) -> Result:
    link = RecordingLink()
    with process_of_its_own():
        install_code(order)
        outcome = train_job(context(rank, order, link))
    link.callback = None
    return Result(outcome, link if rank == 0 else RecordingLink(), "")


def run_without_us(rank: int, file: str, arguments: list[str]) -> str:
    """What the script prints as torchrun would start it: no job, no context."""
    said, before = io.StringIO(), sys.argv
    session.reset()
    sys.argv = [file, *arguments]
    try:
        with redirect_stdout(said), groups_held():
            runpy.run_path(file, run_name="__main__")
    finally:
        sys.argv = before
        session.reset()
    return said.getvalue()


def run_as_launched(
    rank: int, port: int, file: str, arguments: list[str], world_size: int = 2
) -> str:
    """What a script prints that makes its group from the environment that torchrun sets."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    environment = {name: str(value) for name, value in names.items()}
    if dist.is_initialized():
        dist.destroy_process_group()
    with patch.dict(os.environ, {**environment, "MASTER_ADDR": "127.0.0.1"}):
        return run_without_us(rank, file, arguments)


@contextmanager
def groups_held() -> Iterator[None]:
    """Free groups that a script destroys after its models: the last owner of a group has to be a
    Python object (`release_groups`), and a model of plain torch that is freed last hangs.
    """
    destroy = dist.destroy_process_group

    def hold(*arguments: Any) -> None:
        hold_groups()
        destroy(*arguments)

    with patch.object(dist, "destroy_process_group", hold):
        yield
    release_groups()


def how_it_ended(
    rank: int, order: Launch, generation: int = 1
) -> tuple[BaseException | None, RankProgress]:
    """What the script raised on this rank, and how far it was; peers are awaited for a few seconds
    only.
    """
    distributed_c10d._set_pg_timeout(timedelta(seconds=5), distributed_c10d._get_default_group())
    place = context(rank, order, RecordingLink(), generation)
    with process_of_its_own():
        try:
            note_destroyed_groups()
            run_training(place)
        except (OSError, RuntimeError, ValueError, WorkerError) as error:
            # its cause may be of a kind that cannot be sent.
            return type(error)(*error.args), place.control.progress
    return None, place.control.progress
