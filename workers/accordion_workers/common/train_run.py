"""Settings of a Ray Train run; imports nothing, so that its controller's process stays small."""

from __future__ import annotations

from dataclasses import dataclass

TRAIN_SETTINGS = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
}
"""Environment of Ray Train's processes. The job's log has the printed lines and the supervisor
reacts to drained nodes, so Ray Train does neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """One attempt of a job as Ray Train shows it."""

    name: str
    storage: str
    """Directory or URL of the job's storage."""
    num_workers: int
    cpus: float
    """CPUs of a worker."""
    gpus: float
    """GPUs of a worker."""


__all__ = ["TRAIN_SETTINGS", "TrainRun"]
