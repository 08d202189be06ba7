"""A session's state in the checkpoints of a single worker."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow.fs
import pytest
import torch
from ray.train import Checkpoint
from torch import nn

import accordion
import accordion_ray
from accordion.base.errors import StateError
from accordion.config import Config
from accordion.session.session import Session
from accordion_ray.checkpoints import load_state
from accordion_ray.epochs import EpochFollower
from accordion_ray.records import Attached


def session_of(model: nn.Module) -> Session:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = accordion.attach(model, Config(), optimizer=optimizer, step="optimizer")
    follower = EpochFollower(Attached(session=session, optimizer=optimizer, parameters=1), None)
    session.on_boundary = follower.pass_boundary
    return session


def test_a_run_without_a_checkpoint_begins_anew() -> None:
    assert load_state(session_of(nn.Linear(4, 4)), None) is None


def test_a_checkpoint_without_a_state_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_state(session_of(nn.Linear(4, 4)), Checkpoint.from_directory(tmp_path)) is None
    assert "without residuals; call accordion_ray.save_state()" in caplog.text


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    accordion_ray.save_state(session_of(nn.Linear(4, 4)), tmp_path)
    with pytest.raises(StateError, match="weight"):
        load_state(
            session_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))),
            Checkpoint.from_directory(tmp_path),
        )


def test_a_session_of_the_library_is_told_of_attach(tmp_path: Path) -> None:
    session = accordion.attach(nn.Linear(4, 4), Config())
    with pytest.raises(accordion_ray.AttachError, match=r"accordion_ray\.attach\(\) has not made"):
        accordion_ray.save_state(session, tmp_path)


def test_only_the_state_of_a_remote_checkpoint_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The download of the whole checkpoint, with the model, is not used."""
    stored = session_of(nn.Linear(4, 4))
    stored.steps = 7
    folder = tmp_path / "checkpoint_3"
    folder.mkdir()
    accordion_ray.save_state(stored, folder)
    remote = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    checkpoint = Checkpoint("checkpoint_3", filesystem=remote)
    monkeypatch.setattr(Checkpoint, "to_directory", lambda *_: pytest.fail("all is downloaded"))
    session = session_of(nn.Linear(4, 4))
    assert load_state(session, checkpoint) == "checkpoint_3"
    assert session.steps == 7


def test_a_state_is_mapped_into_memory_and_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accordion_ray.save_state(session_of(nn.Linear(4, 4)), tmp_path)
    options: list[dict[str, object]] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda file, **how: options.append(how) or load(file, **how))
    load_state(session_of(nn.Linear(4, 4)), Checkpoint.from_directory(tmp_path))
    assert options[0]["mmap"] is True
