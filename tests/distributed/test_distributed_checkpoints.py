"""State of a session in checkpoints of `torch.distributed.checkpoint`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from accordion import Config, LocalSteps, Session, attach, distributed_state, load_distributed_state
from accordion.base.errors import StateError
from tests.distributed.sharded_models import Model, SingleRow, backward, full

STEPS = 6
SIGNS = Config(method="signsgd")
ROUNDS = LocalSteps(low=2, high=2, outer="nesterov")
RESUMED = {
    "powersgd": Config(method="powersgd"),
    "signs": SIGNS,
    "local steps": Config(method="qsgd", local_steps=ROUNDS),
    "after a start": Config(method="qsgd", local_steps=replace(ROUNDS, start_steps=2)),
}


@cache
def mesh_of(shards: int) -> Any:
    shape = (dist.get_world_size() // shards, shards)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


class Run:
    """A model in a session, sharded over so many workers; over 1 it is a DDP module."""

    def __init__(self, rank: int, config: Config, *, shards: int = 2, kind: Any = Model) -> None:
        torch.manual_seed(0)
        self.rank, self.config, self.shards, self.replicas = rank, config, shards, None
        self.model: nn.Module = kind()
        if shards == 1:
            self.model = DistributedDataParallel(self.model)
        else:
            for part in (*self.model.blocks, self.model):
                fully_shard(part, mesh=mesh_of(shards)["shard"])
            self.replicas = mesh_of(shards)["replicate"].get_group()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.session: Session = attach(
            self.model, config, self.optimizer, replicate_group=self.replicas
        )

    def train(self, *steps: int) -> None:
        for step in steps:
            backward(self.model, self.rank, step)
            self.session.step()
            self.optimizer.zero_grad()

    @property
    def optimizer_name(self) -> str:
        """Name of its state in a checkpoint: between local steps, every replica has its own."""
        replica = self.rank // self.shards
        return f"optimizer-{replica}" if self.config.local_steps else "optimizer"

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        whole = {"model": model, self.optimizer_name: optimizer}
        dcp.save({**whole, "accordion": distributed_state(self.session)}, checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, self.optimizer_name: optimizer}, checkpoint_id=folder)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        load_distributed_state(self.session, folder)

    def residuals(self) -> dict[str, Tensor]:
        return self.session.state_dict()["engine"]["residuals"]


def stop_and_go_on(rank: int, folder: Path, name: str, stops: bool, kind: Any) -> list[Tensor]:
    run = Run(rank, RESUMED[name], kind=kind)
    run.train(*range(4))
    if stops:
        run.session.finish_round()
        run.save(folder)
        run = Run(rank, RESUMED[name], kind=kind)
        run.load(folder)
    run.train(4, 5)
    run.session.finish_round()
    window = run.session.state_dict()["engine"]["window"]
    return [*full(run.model), torch.tensor(window["steps"]), *window["sums"].values()]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*product(RESUMED, [Model]), *product(["powersgd", "local steps"], [SingleRow])],
)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(run_grid, tmp_path, name, kind):
    resumed = run_grid(stop_and_go_on, tmp_path, name, True, kind)
    whole = run_grid(stop_and_go_on, tmp_path, name, False, kind)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert all(map(torch.equal, ours, theirs))


def save_in_shards(rank: int, folder: Path, shards: int) -> dict[str, Tensor]:
    run = Run(rank, SIGNS, shards=shards)
    run.train(0, 1)
    run.save(folder)
    return run.residuals()


def load_in_shards(rank: int, folder: Path, shards: int) -> tuple[dict[str, Tensor], Any]:
    run = Run(rank, SIGNS, shards=shards)
    run.load(folder)
    residuals, steps = run.residuals(), run.session.steps
    run.train(2)
    return residuals, (steps, run.session.steps, run.session.ledger.total.wire > 0)


def mean_residuals(found: list[dict[str, Tensor]], shards: int) -> dict[str, Tensor]:
    """The mean over replicas of whole layers, whose parts are rows."""
    replicas = [found[start : start + shards] for start in range(0, len(found), shards)]
    return {
        layer: torch.stack(
            [
                torch.cat([part[layer].flatten() for part in parts if layer in part])
                for parts in replicas
            ]
        ).mean(0)
        for layer in found[0]
    }


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 1), (1, 2), (1, 4)])
def test_another_number_of_shards_starts_with_the_mean_residuals(run_grid, tmp_path, before, after):
    saved = mean_residuals(run_grid(save_in_shards, tmp_path, before), before)
    loaded = run_grid(load_in_shards, tmp_path, after)
    assert {told for _, told in loaded} == {(2, 3, True)}
    for start in range(0, 4, after):
        present = mean_residuals([own for own, _ in loaded[start : start + after]], after)
        assert present.keys() == saved.keys()
        for layer, value in saved.items():
            torch.testing.assert_close(present[layer], value)


def test_another_number_of_replicas_starts_with_the_mean_residuals(run_group, tmp_path):
    saved = mean_residuals(run_group(4, save_in_shards, tmp_path, 1), 1)
    for own, told in run_group(2, load_in_shards, tmp_path, 1):
        assert told == (2, 3, True)
        for layer, value in saved.items():
            torch.testing.assert_close(own[layer].flatten(), value)


class Wider(Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 33, bias=False)
        self.blocks[0] = nn.Sequential(nn.Linear(33, 34), nn.Tanh(), nn.Linear(34, 33))


def load_wrongly(rank: int, folder: Path, mistake: str) -> tuple[str, bool]:
    """Return what was said, and whether the session is as it was."""
    run = Run(rank, SIGNS, kind=Wider if mistake == "model" else Model)
    run.train(0)
    before, place, name = run.residuals(), folder, "accordion"
    if mistake == "folder" and rank == 1:
        place = folder / "elsewhere"
    if mistake == "name":
        name = "session"
    try:
        load_distributed_state(run.session, place, name=name)
    except StateError as error:
        same = all(torch.equal(before[one], value) for one, value in run.residuals().items())
        return str(error), same
    return "", False


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("folder", "cannot be read"),
        ("torn file", "cannot be read"),
        (
            "name",
            "no state of a session's rank 0 named 'session'; save accordion.distributed_state",
        ),
        ("model", "saved values of layer"),
    ],
)
def test_what_cannot_be_read_is_told_on_all_workers_and_changes_nothing(
    run_grid, tmp_path, mistake, told
):
    run_grid(save_in_shards, tmp_path, 2)
    if mistake == "torn file":  # which rank 1 alone reads
        (tmp_path / "__1_0.distcp").write_bytes(b"torn")
    for said, is_unchanged in run_grid(load_wrongly, tmp_path, mistake):
        assert told in said
        assert is_unchanged


def save_in_background(rank: int, folder: Path) -> tuple[list[Tensor], list[Tensor]]:
    """Return the momentum that was saved, and the one that was loaded."""
    run, again = Run(rank, RESUMED["local steps"]), Run(rank, RESUMED["local steps"])
    run.train(0, 1)
    state = {"accordion": distributed_state(run.session)}
    dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group()).result()
    load_distributed_state(again.session, folder)
    saved, loaded = (one.session.state_dict()["outer_momentum"] for one in (run, again))
    return saved, loaded


def test_a_state_is_saved_in_the_background(run_grid, tmp_path):
    for saved, loaded in run_grid(save_in_background, tmp_path):
        assert saved
        assert all(map(torch.equal, saved, loaded))


def save_within_a_round(rank: int) -> str:
    run = Run(rank, RESUMED["local steps"])
    run.train(0)
    with pytest.raises(StateError) as caught:
        distributed_state(run.session)
    run.session.finish_round()
    return str(caught.value)


def test_no_state_is_saved_within_a_round(run_grid):
    assert all("finish_round" in said for said in run_grid(save_within_a_round))
