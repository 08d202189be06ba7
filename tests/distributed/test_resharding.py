"""A group of another size than the saved one: rank 0 reads every part once, and all get the same
bits.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from accordion_workers.checkpoint import broadcast
from accordion_workers.checkpoint.checkpoint_files import read_part
from accordion_workers.common.peers import GroupPeers
from accordion_workers.records.contract import DesiredState
from accordion_workers.training import resume
from accordion_workers.training.checkpointing import restore_checkpoint
from accordion_workers.training.clock import Clock
from accordion_workers.training.train_state import build_train_state
from tests.distributed.loop_jobs import RecordingLink, context, run_job, spec

JOB = spec(
    training={"epochs": 3},
    compression={"method": "topk"},
    policy={"window": {"steps": 10}},
    checkpoint={"every_epochs": 1, "keep": 2},
)
STOP_IN_EPOCH_1 = RecordingLink(
    orders=DesiredState(version=1, stop="cancel"), order_after=("epoch", 0)
)


@pytest.fixture
def saved_by_three(run_group, tmp_path) -> Path:
    run_group(3, run_job, tmp_path, JOB, STOP_IN_EPOCH_1)
    return tmp_path


class Reads:
    """Reads parts as the workers do, and counts how many of those read before are still held."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.held = 0
        self._residuals: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, storage: Any, manifest: Any, name: str) -> dict[str, Any]:
        self.names.append(name)
        self.held = max(self.held, sum(residual() is not None for residual in self._residuals))
        part = read_part(storage, manifest, name)
        if "session" in part:
            self._residuals += [
                weakref.ref(value) for value in part["session"]["engine"]["residuals"].values()
            ]
        return part


def _restored(rank: int, folder: Path) -> dict[str, Any]:
    """Resume, and return what was read and what this rank goes on from."""
    reads = Reads()
    link = RecordingLink()
    run = build_train_state(context(rank, folder, JOB, link, 10**6), Clock())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "read_part", reads)
        name = restore_checkpoint(run)
    return {
        "name": name,
        "lines": link.lines,
        "names": reads.names,
        "held": reads.held,
        "engine": run.session.state_dict()["engine"],
        "model": {key: value.clone() for key, value in run.ddp.module.state_dict().items()},
        "optimizer": run.optimizer.state_dict()["state"],
        "samples": run.epoch_loss.samples,
        "total": float(run.epoch_loss.total),
        "rng": torch.get_rng_state(),
    }


def _parts(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    newest = max((folder / "checkpoints").iterdir())
    shared, *parts = (
        torch.load(newest / name, weights_only=True)
        for name in ("shared.pt", *(f"rank-{r}.pt" for r in range(3)))
    )
    return shared, parts


def _mean(residuals: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Sum in rank order, then divide: these bits are promised."""
    total = {layer: value.clone() for layer, value in residuals[0].items()}
    for other in residuals[1:]:
        for layer, value in other.items():
            total[layer] = total[layer] + value
    return {layer: value / len(residuals) for layer, value in total.items()}


def test_rank_0_alone_reads_every_part_once_and_holds_one_at_a_time(run_group, saved_by_three):
    first, second = run_group(2, _restored, saved_by_three)
    assert first["names"] == ["shared.pt", "rank-0.pt", "rank-1.pt", "rank-2.pt"]
    assert second["names"] == []
    assert first["held"] == 0


def test_every_rank_goes_on_from_the_bits_of_the_mean_of_all_parts(run_group, saved_by_three):
    shared, parts = _parts(saved_by_three)
    engines = [part["session"]["engine"] for part in parts]
    owed = _mean([engine["residuals"] for engine in engines])
    window = {
        layer: sum(engine["window"]["sums"][layer] / 3 for engine in engines)
        for layer in engines[0]["window"]["sums"]
    }
    assert owed
    assert engines[0]["window"]["steps"] > 0
    for found in run_group(2, _restored, saved_by_three):
        assert found["engine"]["residuals"].keys() == owed.keys()
        assert all(
            torch.equal(found["engine"]["residuals"][layer], value) for layer, value in owed.items()
        )
        assert all(
            torch.equal(found["engine"]["window"]["sums"][layer], value)
            for layer, value in window.items()
        )
        assert all(
            torch.equal(found["model"][key], value) for key, value in shared["model"].items()
        )
        assert torch.equal(found["rng"], parts[0]["rng"])
        for index, kept in shared["optimizer"]["state"].items():
            assert torch.equal(
                found["optimizer"][index]["momentum_buffer"], kept["momentum_buffer"]
            )


def test_the_loss_of_the_open_epoch_is_taken_over_by_rank_0(run_group, saved_by_three):
    _, parts = _parts(saved_by_three)
    first, second = run_group(2, _restored, saved_by_three)
    assert first["samples"] == sum(part["loss"]["samples"] for part in parts)
    assert first["total"] == sum(part["loss"]["total"] for part in parts)
    assert (second["samples"], second["total"]) == (0, 0.0)


def test_a_group_of_the_same_size_reads_its_own_parts_only(run_group, saved_by_three):
    for rank, found in enumerate(run_group(3, _restored, saved_by_three)):
        assert found["names"] == ["shared.pt", f"rank-{rank}.pt"]


def test_a_damaged_part_is_reported_and_all_resume_from_the_checkpoint_before(
    run_group, saved_by_three
):
    before, newest = sorted((saved_by_three / "checkpoints").iterdir())
    (newest / "rank-2.pt").write_bytes(b"torn")
    first, second = run_group(2, _restored, saved_by_three)
    assert first["name"] == second["name"] == before.name
    assert [line for line in first["lines"] if "rank-2.pt does not match its checksum" in line]


def _broadcast(rank: int) -> dict[str, Any]:
    """Send a state of all kinds of tensors from rank 0, in pieces of a few bytes."""
    image = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state = {
        "image": image,
        "number": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "row": torch.ones(1).expand(5),
        "nested": [(torch.arange(9).bfloat16(), "text", None)],
        "mask": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broadcast, "PIECE_BYTES", 16)
        return broadcast.broadcast_state(state if rank == 0 else None, GroupPeers(), device="cpu")


def test_a_state_that_is_broadcast_arrives_with_its_bits_and_strides(run_group):
    first, *others = run_group(3, _broadcast)
    for other in others:
        assert other["image"].stride() == first["image"].stride()
        assert all(torch.equal(other[key], first[key]) for key in first if key != "nested")
        assert torch.equal(other["nested"][0][0], first["nested"][0][0])
        assert other["nested"][0][1:] == ("text", None)
