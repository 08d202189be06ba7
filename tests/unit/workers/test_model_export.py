"""Models of checkpoints as safetensors files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from accordion_service.api.model_files import export_model_file
from accordion_service.errors import Conflict, NotFound, Unavailable
from accordion_workers.checkpoint.async_save import SHARED_FILE
from accordion_workers.checkpoint.checkpoint_files import (
    Manifest,
    checkpoint_name,
    write_manifest,
    write_part,
)
from accordion_workers.checkpoint.model_export import UnsupportedTensorError, export_model
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.common.errors import CheckpointError
from accordion_workers.records.contract import Order, Position

JOB = "job-1"


class Tied(nn.Module):
    """Two layers with one weight, a buffer, and state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.tensor(7))

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def save(
    root: Path, epoch: int, model: nn.Module, objective: float | None = None, **more: Any
) -> str:
    """Write a checkpoint; return its name."""
    storage, name = LocalStorage(root), checkpoint_name(1, Position(epoch=epoch))
    part = write_part(storage, f"{name}/{SHARED_FILE}", {"model": model.state_dict(), **more})
    manifest = Manifest(
        job_id=JOB,
        name=name,
        epoch=epoch,
        step=10 * epoch,
        world_size=1,
        objective=objective,
        files=(part,),
    )
    write_manifest(storage, manifest)
    return name


def test_a_model_is_loaded_from_the_file(tmp_path: Path) -> None:
    model, file = Tied(), tmp_path / "model.safetensors"
    name = save(tmp_path / "job", 3, model)
    assert export_model(LocalStorage(tmp_path / "job"), [name], job_id=JOB, file=file).name == name
    other = Tied()
    other.load_state_dict(load_file(file), strict=False)
    assert torch.equal(other.first.weight, model.first.weight)
    assert torch.equal(other.second.weight, model.first.weight)
    with safe_open(file, "pt") as opened:
        assert sorted(opened.keys()) == ["count", "first.weight", "second.weight"]
        assert opened.metadata() == {
            "format": "pt",
            "job_id": JOB,
            "checkpoint": name,
            "epoch": "3",
            "step": "30",
        }


def test_a_damaged_or_removed_checkpoint_is_passed_over(tmp_path: Path) -> None:
    good, damaged = (save(tmp_path, epoch, Tied()) for epoch in (1, 2))
    (tmp_path / damaged / SHARED_FILE).write_bytes(b"torn")
    storage, file = LocalStorage(tmp_path), tmp_path / "model.safetensors"
    names = [checkpoint_name(1, Position(epoch=9)), damaged, good]
    assert export_model(storage, names, job_id=JOB, file=file).name == good
    with pytest.raises(CheckpointError, match=f"nothing can be read of {damaged} in .*damaged"):
        export_model(storage, [damaged], job_id=JOB, file=file)
    with pytest.raises(CheckpointError, match="the job keeps only its newest ones"):
        export_model(storage, names[:1], job_id=JOB, file=file)
    with pytest.raises(CheckpointError, match=r"no checkpoint of the job is in .*/empty; mount"):
        export_model(LocalStorage(tmp_path / "empty"), names, job_id=JOB, file=file)
    with pytest.raises(CheckpointError, match="nothing can be read of the 2 checkpoints"):
        export_model(storage, [damaged, good], job_id="another-job", file=file)


def test_a_tensor_that_safetensors_cannot_represent_is_named(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("links", torch.eye(3).to_sparse())
    name, file = save(tmp_path / "job", 1, model), tmp_path / "model.safetensors"
    with pytest.raises(UnsupportedTensorError, match=f"links of checkpoint {name} is a sparse"):
        export_model(LocalStorage(tmp_path / "job"), [name], job_id=JOB, file=file)
    with pytest.raises(Conflict, match="read the checkpoint from the storage of the job"):
        export_model_file(request(tmp_path / "job", name), os.environ)


def test_views_of_one_tensor_are_written_one_by_one(tmp_path: Path) -> None:
    model, whole = nn.Module(), torch.arange(12.0).reshape(3, 4)
    for name, view in (("whole", whole), ("row", whole[1]), ("turned", whole.T)):
        model.register_buffer(name, view)
    name, file = save(tmp_path / "job", 1, model), tmp_path / "model.safetensors"
    export_model(LocalStorage(tmp_path / "job"), [name], job_id=JOB, file=file)
    loaded = load_file(file)
    assert torch.equal(loaded["whole"], whole)
    assert torch.equal(loaded["row"], whole[1])
    assert torch.equal(loaded["turned"], whole.T)


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    name = save(tmp_path / "job", 1, Tied())
    with pytest.raises(OSError, match="free some space there"):
        export_model(LocalStorage(tmp_path / "job"), [name], job_id=JOB, file=tmp_path / "no/dir")


def request(root: Path, *names: str) -> dict[str, Any]:
    return {"job_id": JOB, "url": None, "directory": str(root), "names": list(names), "order": None}


def test_a_process_of_its_own_exports_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = tmp_path / "tmp"
    drafts.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(drafts))
    name = save(tmp_path / "job", 1, Tied())
    found = export_model_file(request(tmp_path / "job", name), os.environ)
    assert list(drafts.iterdir()) == []
    content = b"".join(found.read_chunks())
    assert (found.checkpoint, found.size_bytes) == (name, len(content))
    assert found.file.closed
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["first.weight"]["shape"] == [3, 3]
    with pytest.raises(NotFound, match="the job keeps only its newest ones"):
        export_model_file(request(tmp_path / "job", "g1"), os.environ)


def test_an_export_that_cannot_run_is_reported(tmp_path: Path) -> None:
    away = {**request(tmp_path, "g1"), "url": "no-such-filesystem://bucket"}
    with pytest.raises(Unavailable, match="no-such-filesystem"):
        export_model_file(away, os.environ)
    with pytest.raises(Unavailable, match="cannot be exported on the machine of the service"):
        export_model_file({"job_id": JOB}, os.environ)


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("raise ModuleNotFoundError('no torch')", "torch.; install torch there, or read"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9.; give it more memory, or read"),
        ("raise ValueError('odd')", "ValueError: odd.; read the checkpoint from the storage"),
    ],
)
def test_the_advice_fits_the_crash(tmp_path: Path, module: str, advice: str) -> None:
    package = tmp_path / "accordion_workers" / "checkpoint"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "model_export.py").write_text(module)
    with pytest.raises(Unavailable, match=advice):
        export_model_file(request(tmp_path, "g1"), {**os.environ, "PYTHONPATH": str(tmp_path)})


class Rotating(LocalStorage):
    """A storage whose job saves another checkpoint, and removes the older ones, with each listing
    and, at first, between a listing and a read.
    """

    def __init__(self, root: Path, *, moves: int) -> None:
        super().__init__(root)
        self.root, self.moves, self.epoch = root, moves, 1
        self.save()

    def save(self) -> None:
        for old in list(self.root.glob("g*")):
            shutil.rmtree(old)
        self.epoch += 1
        save(self.root, self.epoch, Tied(), objective=float(self.epoch))

    def names(self) -> list[str]:
        found = super().names()
        if self.moves:
            self.moves -= 1
            self.save()
        return found


@pytest.mark.parametrize("order", ["newest", "max", "min"])
def test_a_job_that_saves_faster_than_a_model_is_read(tmp_path: Path, order: Order) -> None:
    storage = Rotating(tmp_path / "job", moves=3)
    names = [checkpoint_name(1, Position(epoch=1))]
    file = tmp_path / "model.safetensors"
    found = export_model(storage, names, job_id=JOB, file=file, order=order)
    assert found.epoch == storage.epoch
    with pytest.raises(CheckpointError, match="the job keeps only its newest ones"):
        export_model(storage, names, job_id=JOB, file=file)


def test_the_best_of_those_that_a_job_has_now_is_read(tmp_path: Path) -> None:
    root, file = tmp_path / "job", tmp_path / "model.safetensors"
    values = {3: 0.5, 4: 0.9, 5: 0.7}
    names = {epoch: save(root, epoch, Tied(), objective=one) for epoch, one in values.items()}
    removed, storage = [checkpoint_name(1, Position(epoch=1))], LocalStorage(root)

    def read(order: Order) -> str:
        return export_model(storage, removed, job_id=JOB, file=file, order=order).name

    assert read("max") == names[4]
    assert read("min") == names[3]
    assert read("newest") == names[5]


def test_a_damaged_checkpoint_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = save(tmp_path / "job", 1, Tied())
    (tmp_path / "job" / name / SHARED_FILE).write_bytes(b"torn")
    storage, read = LocalStorage(tmp_path / "job"), []
    monkeypatch.setattr(
        storage, "read", lambda path: read.append(path) or LocalStorage.read(storage, path)
    )
    file = tmp_path / "model.safetensors"
    for names in ([name], [checkpoint_name(1, Position(epoch=0))]):
        read.clear()
        with pytest.raises(CheckpointError, match=f"{name} is incomplete or damaged"):
            export_model(storage, names, job_id=JOB, file=file, order="newest")
        assert read.count(f"{name}/{SHARED_FILE}") == 1
