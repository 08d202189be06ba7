"""A simulation equals real processes, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from accordion.compress.ledger import OVERHEAD
from accordion_workers.checkpoint.checkpoint_files import find_candidates, read_part
from accordion_workers.checkpoint.storage import LocalStorage
from accordion_workers.common.errors import TaskRaised
from accordion_workers.records.contract import Bytes, JobSpec, Payload, Progress
from accordion_workers.simulation.simulation import Observer, Simulation
from accordion_workers.training.standalone_context import NO_JOB
from tests.distributed.loop_jobs import equal, run_job, spec, synthetic

ADAM = {"name": "adamw", "lr": 1e-3}
DROPS = {"epochs": 3, "lr_decay": {"at": [1], "factor": 0.1}}
WINDOW = {"window": {"epochs": 1}}
CASES = {
    "none": spec(compression={"method": "none"}, training={"clip_norm": 1.0}),
    "half": spec(compression={"method": "half"}, training={"optimizer": ADAM}),
    "powersgd": spec(compression={"method": "powersgd"}, policy=WINDOW, training=DROPS),
    "adacomp": spec(compression={"method": "adacomp"}, policy=WINDOW, training={"epochs": 1}),
    "topk": spec(compression={"method": "topk"}, training={"epochs": 1}),
    "signsgd": spec(compression={"method": "signsgd"}, training={"epochs": 1}),
    "growing batch": spec(batch={"low": 64, "high": 128}, policy=WINDOW, training=DROPS),
    "batch norm": spec(f"{__package__}.loop_tasks:Normed", {"hidden": 16}),
    "bf16": spec(training={"precision": "bf16", "epochs": 1}),
    "two buckets": synthetic(1, width=700, depth=2),
    "local steps": spec(
        compression={"method": "qsgd"},
        training={**DROPS, "optimizer": ADAM},
        local_steps={"low": 3, "high": 9, "start_steps": 20},
    ),
    "local steps of SGD": spec(compression={"method": "none"}, local_steps={"low": 4}),
    "overlap": spec(
        compression={"method": "qsgd"},
        training={**DROPS, "optimizer": ADAM},
        local_steps={"low": 3, "high": 9, "start_steps": 20, "overlap": 3},
    ),
    "overlap with batch norm": spec(
        f"{__package__}.loop_tasks:Normed",
        {"hidden": 16},
        compression={"method": "half"},
        local_steps={"low": 4, "overlap": 2},
    ),
}
GROUPS = {2: tuple(CASES), 3: ("powersgd", "topk", "local steps", "overlap"), 1: ("powersgd",)}
"""Cases by number of workers."""


class Told:
    """What a simulation told."""

    def __init__(self) -> None:
        self.posted: list[Payload] = []
        self.lines: list[str] = []
        self.stop_in_epoch: int | None = None
        self.simulation: Simulation | None = None

    def run(self, job: JobSpec, folder: Path, workers: int) -> Any:
        observer = Observer(progress=self.see, record=self.keep, log=self.lines.append)
        self.simulation = Simulation(job, folder, workers=workers, device="cpu", observer=observer)
        return self.simulation.run()

    def see(self, progress: Progress) -> None:
        pass

    def keep(self, payload: Payload) -> None:
        self.posted.append(payload)
        if self.simulation and payload.kind == "epoch" and payload.epoch == self.stop_in_epoch:
            self.simulation.stop()

    def epochs(self) -> list[Any]:
        return [payload for payload in self.posted if payload.kind == "epoch"]


def simulate(job: JobSpec, folder: Path, workers: int) -> Told:
    told = Told()
    assert told.run(job, folder, workers) == "completed"
    return told


def learned(epochs: list[Any]) -> list[dict[str, Any]]:
    return [epoch.model_dump(exclude={"seconds_by_phase", "bytes"}) for epoch in epochs]


def gradient_bytes(epochs: list[Any]) -> list[dict[str, Any]]:
    """Bytes of gradients; processes also measure their link."""

    def of(bytes_: Bytes) -> dict[str, Any]:
        by_method = [dict(bytes_.payload_by_method), dict(bytes_.wire_by_method)]
        control = [sent.pop(OVERHEAD, 0) for sent in by_method]
        assert control[1] == bytes_.control_wire
        assert sum(by_method[0].values()) == bytes_.payload - control[0]
        assert sum(by_method[1].values()) == bytes_.wire - control[1]
        return {"sent": by_method, "dense": bytes_.dense, "dense_wire": bytes_.dense_wire}

    return [of(epoch.bytes) for epoch in epochs]


def newest_state(folder: Path, job_id: str) -> dict[str, Any]:
    storage = LocalStorage(folder / "checkpoints")
    newest = next(find_candidates(storage, job_id, lambda _: None))
    return read_part(storage, newest, "shared.pt")


def tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        return [one for key in sorted(state, key=str) for one in tensors(state[key])]
    return [one for part in state for one in tensors(part)] if isinstance(state, list) else []


def run_cases(rank: int, folder: Path, names: tuple[str, ...]) -> list[Any]:
    return [run_job(rank, folder / name, CASES[name]).link.of("epoch") for name in names]


@pytest.fixture(scope="module")
def processes(run_group, tmp_path_factory) -> dict[int, tuple[Path, dict[str, list[Any]]]]:
    """Folder and epochs by case of real processes, by their number."""
    found = {}
    for workers, names in GROUPS.items():
        folder = tmp_path_factory.mktemp(f"processes-{workers}")
        epochs = run_group(workers, run_cases, folder, names)[0]
        found[workers] = folder, dict(zip(names, epochs, strict=True))
    return found


@pytest.mark.parametrize(
    ("workers", "name"), [(workers, name) for workers, names in GROUPS.items() for name in names]
)
def test_a_simulation_ends_with_the_bits_of_processes(processes, tmp_path, workers, name):
    folder, epochs = processes[workers]
    told = simulate(CASES[name], tmp_path, workers)
    assert learned(told.epochs()) == learned(epochs[name])
    assert gradient_bytes(told.epochs()) == gradient_bytes(epochs[name])
    ours, theirs = newest_state(tmp_path, NO_JOB), newest_state(folder / name, "job-1")
    assert equal(tensors(ours["model"]), tensors(theirs["model"]))
    assert equal(tensors(ours["optimizer"]), tensors(theirs["optimizer"]))


def test_an_epoch_tells_the_bytes_of_rounds_from_those_of_every_step(tmp_path):
    first, *_, last = simulate(CASES["local steps"], tmp_path, 2).epochs()
    in_rounds = {"qsgd (local steps)", "none (local steps)"}
    assert first.bytes.wire_by_method.keys() == {"qsgd", "none", OVERHEAD, *in_rounds}
    assert last.bytes.wire_by_method.keys() == {OVERHEAD, *in_rounds}


def test_a_stopped_simulation_goes_on_with_the_bits_of_one_that_was_not(tmp_path):
    job = CASES["powersgd"]
    whole = simulate(job, tmp_path / "whole", 3)
    stopped, folder = Told(), tmp_path / "stopped"
    stopped.stop_in_epoch = 0
    assert stopped.run(job, folder, 3) == "stopped"
    again = simulate(job, folder, 3)
    assert 0 < len(again.epochs()) < len(whole.epochs())
    assert learned([*stopped.epochs(), *again.epochs()]) == learned(whole.epochs())
    ends = [newest_state(one, NO_JOB)["model"] for one in (tmp_path / "whole", folder)]
    assert equal(*map(tensors, ends))


def test_what_a_task_raises_ends_all_workers_of_a_simulation(tmp_path):
    broken = spec("synthetic", {"samples": 256, "width": 16, "raise_at_step": 2})
    with pytest.raises(TaskRaised, match="raise_at_step"):
        Told().run(broken, tmp_path, 3)
