"""A job trained by pretended workers: the job's own training loop, once for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch._C._distributed_c10d import HashStore

from accordion.compress.lockstep import LockstepGroup
from accordion.compress.step_signals import Signal
from accordion_workers.hub.journal import Journal, claim_generation
from accordion_workers.records.contract import JobSpec, Launch, Payload, Progress
from accordion_workers.simulation.simulated_peers import SimulatedPeers
from accordion_workers.training.boundaries import Outcome
from accordion_workers.training.clock import Clock
from accordion_workers.training.context import LoopControl, NoLink, WorkerContext
from accordion_workers.training.loop import train_job
from accordion_workers.training.standalone_context import NO_JOB, JournalLink
from accordion_workers.training.train_state import load_task_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """What a simulation tells while it runs."""

    progress: Callable[[Progress], None]
    record: Callable[[Payload], None]
    log: Callable[[str], None]


class Simulation:
    """Simulated workers of a job, whose records and checkpoints are in a folder.

    Args:
        spec: the job, as `build_simulated_spec` returns it.
        folder: where the simulation goes on from, if it was stopped there.
        workers: number of workers.
        device: `cpu`, or a GPU that all share.
        observer: told of what rank 0 reports.
    """

    def __init__(
        self, spec: JobSpec, folder: Path, *, workers: int, device: str, observer: Observer
    ) -> None:
        self._spec, self._folder = spec, folder
        self._workers, self._device = workers, device
        self._observer = observer
        self._control = LoopControl()

    def stop(self) -> None:
        """Save at the next step boundary, then end; callable from any thread."""
        self._control.request_signal(Signal.SAVE_STOP)

    def run(self) -> Outcome:
        """Train to the end of the job, or until `stop`.

        Raises:
            TaskRaised: the task raised.
            LossNotFinite: too many steps were skipped in a row.
            StorageError: the folder cannot be written.
        """
        generation = claim_generation(self._folder)
        journal = Journal(self._folder, attempt=1, generation=generation, clock=Clock().now)
        launch = Launch(
            job_id=NO_JOB,
            attempt=1,
            workers=self._workers,
            storage=str(self._folder),
            spec=self._spec,
        )
        group, store = LockstepGroup(self._workers), HashStore()
        parts = load_task_data(self._spec)
        device = torch.device(self._device)

        def train(rank: int) -> Outcome:
            is_first = rank == 0
            return train_job(
                WorkerContext(
                    launch=launch,
                    generation=generation,
                    rank=rank,
                    world_size=self._workers,
                    device=self._device,
                    link=_Link(journal, self._observer) if is_first else NoLink(lambda _: None),
                    control=self._control if is_first else LoopControl(),
                    parts=parts,
                    peers=SimulatedPeers(group, rank, device, store=store),
                )
            )

        return group.run(train)[0]


class _Link(JournalLink):
    """Rank 0's link: records go to the journal and to the observer."""

    def __init__(self, journal: Journal, observer: Observer) -> None:
        super().__init__(journal)
        self._observer = observer

    def post(self, payload: Payload) -> None:
        """Write a record."""
        super().post(payload)
        self._observer.record(payload)

    def progress(self, progress: Progress) -> None:
        """Show the progress."""
        self._observer.progress(progress)

    def log(self, text: str) -> None:
        """Show lines of the job's log."""
        self._observer.log(text)
