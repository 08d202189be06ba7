"""Every error of the training side, in one tree; stdlib only.

    WorkerError
    ├── TaskRaised        the task's own code raised; carries the place of the error
    │   ├── ScriptMistaken  the session refuses what the script does, and would again
    │   └── TaskNotReady  it was not loaded within the job's limit
    ├── LossNotFinite     too many steps were skipped in a row: loss or gradient was not finite
    │   └── RoundsNotFinite  too many rounds of local steps were undone in a row
    ├── CheckpointError   a saved state does not fit this job
    ├── StorageError      the storage of the checkpoints cannot serve this job
    │   └── StorageNotShared  the node does not see what the other nodes see
    ├── PeerUnfit         another worker of the group cannot take part
    ├── DataFetchError    the data of a job cannot be fetched to a node, or are not there
    │   └── DataNotOnNode  the node lacks a path of the data, or has no room for them
    ├── CodeError         a user's code cannot be used: the archive, or what it holds
    ├── PackagesError     the packages of `pip` cannot be resolved, or not be installed on a node
    ├── EngineUnavailable the installed Ray cannot run the job's engine
    ├── OutOfMemory       a worker process used more than its limit, or than its node had
    └── ProcessLost       a worker process is gone or unresponsive
        └── ProcessCrashed  the code that ran in it ended it

All carry one sentence with the value, the limit and the way out, and survive pickling.
"""

from __future__ import annotations


class WorkerError(Exception):
    """Root of the training side's errors."""


class TaskRaised(WorkerError):
    """The task's code raised `error`, `Type: message`; `step` and `epoch` are None if it did so
    before training began: while the task was built, or before a script's `session.attach`.
    """

    def __init__(self, step: int | None, epoch: int | None, error: str) -> None:
        super().__init__(step, epoch, error)
        self.step = step
        self.epoch = epoch
        self.error = error

    @property
    def summary(self) -> str:
        """One sentence about the error and its place."""
        place = (
            "before training began"
            if self.step is None
            else f"in step {self.step} (epoch {self.epoch})"
        )
        return f"the task raised {place}: {self.error}"

    def __str__(self) -> str:
        return f"{self.summary}; the traceback is in the job's log"


class ScriptMistaken(TaskRaised):
    """A script calls the session in a way that it refuses, and would refuse again."""


class TaskNotReady(TaskRaised):
    """The task or its data did not load within `limits.start_seconds`; `error` is a full
    sentence.
    """

    def __str__(self) -> str:
        return self.error


class LossNotFinite(WorkerError):
    """`skipped` steps in a row could not be taken on any worker, the last of them `step` in
    `epoch`.
    """

    unit = "steps"

    def __init__(self, step: int, epoch: int, skipped: int) -> None:
        super().__init__(step, epoch, skipped)
        self.step = step
        self.epoch = epoch
        self.skipped = skipped

    def __str__(self) -> str:
        return (
            f"loss or gradient was not finite in {self.skipped} {self.unit} in a row, up to step"
            f" {self.step} (epoch {self.epoch}); lower training.optimizer.lr or set"
            " training.clip_norm"
        )


class RoundsNotFinite(LossNotFinite):
    """Rounds of local steps were undone in a row, as steps are skipped."""

    unit = "rounds of local steps"


class ProcessLost(WorkerError):
    """A worker process is gone or unresponsive; not the job's fault."""


class ProcessCrashed(ProcessLost):
    """The code running in a worker process ended it: a crash or `os._exit`."""


class OutOfMemory(WorkerError):
    """A worker process was killed for its memory use.

    `shortage` states how much it used of what there was, `bytes_per_s` how fast its use grew; 0 if
    it did not grow steadily.
    """

    def __init__(self, shortage: str, bytes_per_s: float = 0.0) -> None:
        super().__init__(shortage, bytes_per_s)
        self.shortage = shortage
        self.bytes_per_s = bytes_per_s

    def __str__(self) -> str:
        if self.bytes_per_s <= 0:
            advice = "lower training.micro_batch, or raise workers.memory or take larger nodes"
        else:
            advice = (
                f"its memory grew by {_growth_rate(self.bytes_per_s)}; look for objects kept across"
                " steps, such as losses that still hold their graph"
            )
        return f"out of memory ({self.shortage}); {advice}"


def _growth_rate(bytes_per_s: float) -> str:
    gb_a_minute = 60 * bytes_per_s / 1e9
    gb, per = (gb_a_minute, "a minute") if gb_a_minute >= 0.1 else (60 * gb_a_minute, "an hour")
    return f"{gb:.{1 if gb >= 1 else 2}f} GB {per}"


class CheckpointError(WorkerError):
    """A checkpoint is incomplete, of another job or does not fit the job."""


class StorageError(WorkerError):
    """The storage of the checkpoints cannot serve this job, and waiting does not help."""


class StorageNotShared(StorageError):
    """A node does not see the storage of the checkpoints, which other nodes see."""


class PeerUnfit(WorkerError):
    """Another worker of the group cannot take part; its own error holds the reason."""


class DataFetchError(WorkerError):
    """Data that a job names cannot be fetched to a node, or are not there."""


class DataNotOnNode(DataFetchError):
    """A node lacks a path of the data, or cannot keep them; another node may."""


class EngineUnavailable(WorkerError):
    """The installed Ray cannot run the engine that `workers.engine` names."""


class CodeError(WorkerError):
    """An archive is not safe to unpack, its modules cannot be found, or they are not a task."""


class PackagesError(WorkerError):
    """The packages that a job names cannot be resolved, or cannot be installed on a node."""


__all__ = [
    "CheckpointError",
    "CodeError",
    "DataFetchError",
    "DataNotOnNode",
    "EngineUnavailable",
    "LossNotFinite",
    "OutOfMemory",
    "PackagesError",
    "PeerUnfit",
    "ProcessCrashed",
    "ProcessLost",
    "RoundsNotFinite",
    "ScriptMistaken",
    "StorageError",
    "StorageNotShared",
    "TaskNotReady",
    "TaskRaised",
    "WorkerError",
]
