"""A session's state in a Ray Train checkpoint, loaded by the workers of a group."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
import torch
from ray.train import Checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import accordion
import accordion_ray
from accordion.base.errors import StateError
from accordion.config import Config
from accordion_ray.checkpoints import load_state
from accordion_ray.epochs import EpochFollower
from accordion_ray.records import Attached


def session_in_group() -> accordion.Session:
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = accordion.attach(model, Config(), optimizer=optimizer, step="optimizer")
    follower = EpochFollower(Attached(session=session, optimizer=optimizer, parameters=1), None)
    session.on_boundary = follower.pass_boundary
    return session


def load_on_first_rank_only(rank: int, folder: str) -> str:
    checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
    with pytest.raises(StateError) as raised:
        load_state(session_in_group(), checkpoint)
    return str(raised.value)


def load_from_remote_storage(rank: int, folder: str) -> list[Any]:
    saved = session_in_group()
    saved.steps = 5
    accordion_ray.save_state(saved, folder)
    torch.distributed.barrier()
    remote = pyarrow.fs.SubTreeFileSystem(str(Path(folder).parent), pyarrow.fs.LocalFileSystem())
    made: list[str] = []
    make = tempfile.mkdtemp
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", lambda **how: made.append(make(**how)) or made[-1])
        session = session_in_group()
        load_state(session, Checkpoint(Path(folder).name, filesystem=remote), node="one")
    return [session.steps, len(made), any(Path(one).exists() for one in made)]


def test_a_checkpoint_on_some_ranks_only_is_an_error_on_all(run_group, tmp_path):
    (tmp_path / "accordion.pt").write_bytes(b"not read")
    sentences = run_group(2, load_on_first_rank_only, str(tmp_path))
    assert len(set(sentences)) == 1
    assert f"rank 0: {tmp_path.name}, rank 1: none" in sentences[0]
    assert "the same checkpoint on every rank" in sentences[0]


def test_one_rank_of_a_node_downloads_the_state_for_the_others(run_group, tmp_path):
    assert run_group(2, load_from_remote_storage, str(tmp_path)) == [[5, 1, False], [5, 0, False]]
