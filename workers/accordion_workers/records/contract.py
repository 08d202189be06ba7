"""Messages between workers and the service: reports (`Record`, `Progress`) and instructions
(`Launch`, `DesiredState`). Loads pydantic, but neither ray nor torch.

Epochs and steps are counted from 0, steps since the start of the job; intervals of epochs are half
open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from accordion.base.messages import Ack, Decision, LayerInfo, Override
from accordion_workers.records.plan_messages import PlanResult as PlanResult
from accordion_workers.records.plan_messages import PlanTask as PlanTask
from accordion_workers.spec.data import DataCache as DataCache
from accordion_workers.spec.data import name_variable as name_variable
from accordion_workers.spec.env import ENV_NAME_PATTERN as ENV_NAME_PATTERN
from accordion_workers.spec.env import SECRET_NAME_PATTERN as SECRET_NAME_PATTERN
from accordion_workers.spec.env import list_secret_names as list_secret_names
from accordion_workers.spec.env import list_secret_values
from accordion_workers.spec.env import resolve_env as resolve_env
from accordion_workers.spec.job import JobSpec as JobSpec
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from accordion_workers.spec.objective import ObjectiveSpec as ObjectiveSpec
from accordion_workers.spec.public_records import Bytes as Bytes
from accordion_workers.spec.public_records import EpochRecord as EpochRecord
from accordion_workers.spec.public_records import Package as Package
from accordion_workers.spec.public_records import Reported as Reported
from accordion_workers.spec.public_records import StorageUse as StorageUse
from accordion_workers.spec.requirements import PackagesRecord as PackagesRecord
from accordion_workers.spec.requirements import PipIndex as PipIndex
from accordion_workers.spec.types import Label, Strict
from accordion_workers.spec.warm_start import CHECKPOINT_NAME_PATTERN as CHECKPOINT_NAME_PATTERN
from accordion_workers.spec.warm_start import JOB_ID_PATTERN as JOB_ID_PATTERN
from accordion_workers.spec.warm_start import ModelSource as ModelSource
from accordion_workers.spec.warm_start import Order as Order
from accordion_workers.spec.warm_start import WarmStartSpec as WarmStartSpec

GUEST_ATTEMPT = 1
"""Attempt of every guest run: Ray Train restarts it, so only its generation grows."""
GUEST_PROTOCOL = 2
"""Version of the calls and records between a guest run and the actor, which may be of different
releases. It grows with each change that the other side could not read.
"""
AVOID_S = 300.0
"""How long a job avoids a node that cannot build its task or see its storage; what it lacks may be
mounted meanwhile.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Next sample that the job trains on."""

    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that all workers together have trained on."""


class Started(Reported):
    """A worker group began to train."""

    kind: Literal["started"] = "started"
    world_size: int
    epoch: int
    step: int
    resumed_from: str | None
    """Name of the checkpoint; None at the beginning of the job."""
    from_memory: bool = False
    """Whether the workers remembered the state of that name, which was not saved."""
    steps_per_epoch: int
    """Steps of an epoch at the present batch size; 0 if unknown."""
    layers: tuple[LayerInfo, ...]
    """Layers whose level is decided, in the model's order."""
    parameters: int
    """Number of trained values."""
    cause: Literal["start", "resize", "recovery"] = "start"
    """Why the group started: it is the attempt's first, its size changed, or the previous group was
    lost.
    """
    previous_world_size: int = 0
    """Workers of the previous group; 0 for the attempt's first group."""
    seconds_lost: float = 0.0
    """Seconds since the previous group's last step."""
    steps_rolled_back: int = 0
    """Steps of the previous group after the checkpoint, which are trained again."""
    storage: StorageUse | None = None
    """Storage of the checkpoints; None in a guest run."""
    engine: Literal["ray-train", "actors"] | None = None
    """Engine of the worker processes; None in a guest run and outside of a job."""
    local_steps: LocalStepsSpec | None = None
    """The job's local steps, with the `low` and `high` that follow from a budget; None without."""


class ResizeRecord(Reported):
    """A worker group will stop at its next step boundary and continue with another number of
    workers; no step is lost.
    """

    kind: Literal["resize"] = "resize"
    cause: Literal["ordered", "joined", "leaving"]
    """`ordered`: a user or the scheduler changed the size; `joined`: missing processes are ready;
    `leaving`: a node is being drained.
    """
    old: int
    new: int
    """Number of workers after the resize; `old` is the number before."""
    step: int
    """Last known step."""
    message: str


class DecisionRecord(Reported):
    """A decision that every rank switched to."""

    kind: Literal["decision"] = "decision"
    decision: Decision


class AcksRecord(Reported):
    """The plan that each rank reports to run after a switch, and the overrides in force."""

    kind: Literal["acks"] = "acks"
    epoch: int
    step: int
    world_size: int
    digest: str
    """Digest of the announced plan."""
    override_ids: tuple[str, ...]
    acks: tuple[Ack, ...]


class RejectedRecord(Reported):
    """An override that cannot be applied to this job."""

    kind: Literal["rejected"] = "rejected"
    override_id: str
    reason: str


class CheckpointRecord(Reported):
    """A complete checkpoint."""

    kind: Literal["checkpoint"] = "checkpoint"
    name: str
    epoch: int
    """Epoch in which training resumes."""
    step: int
    size_bytes: int
    objective: float | None = None
    """Value of the objective's metric after the epoch that ends here; None within an epoch."""
    seconds: float
    """Seconds from the step boundary to the manifest."""
    blocked_s: float = 0.0
    """Part of `seconds` during which training was stopped."""


class FailureRecord(Reported):
    """A worker group failed."""

    kind: Literal["failure"] = "failure"
    cause: Literal["job", "infrastructure"]
    """`job`: an exception while every process was alive; only these count for `max_failures`."""
    rank: int | None
    epoch: int | None = None
    step: int | None = None
    message: str
    """One sentence: type and text of the error, never a traceback (that is in the logs)."""
    final: bool = False
    """Whether the job ends with this failure, so that no other worker group follows."""
    is_storage: bool = False
    """Whether the job's storage was full or unreachable, or a node lacks the storage or the data of
    the job; it waits or goes on elsewhere, and no limit of failures counts that.
    """
    process_died: bool = False
    """Whether a process died while its node stayed."""
    nodes: tuple[str, ...] = ()
    """Ray's IDs of the nodes that may be the cause, each once."""


class PausedRecord(Strict):
    """The attempt was paused; the next one resumes from the newest checkpoint."""

    kind: Literal["paused"] = "paused"
    step: int | None
    """Last known step."""
    saved_step: int | None = None
    """Steps in the newest checkpoint; later steps are trained again. None if unknown."""


EndReason = Literal[
    "COMPLETED",
    "STOPPED_IMPROVING",
    "CANCELLED_BY_USER",
    "TASK_RAISED",
    "LOSS_NOT_FINITE",
    "TOO_MANY_FAILURES",
    "NO_PROGRESS",
    "LOST",
    "START_FAILED",
]


class EndRecord(Reported):
    """The job has ended; `message` is one sentence for users."""

    kind: Literal["end"] = "end"
    status: Literal["SUCCEEDED", "FAILED", "CANCELLED"]
    reason: EndReason
    message: str = ""


Payload = Annotated[
    PackagesRecord
    | Started
    | ResizeRecord
    | EpochRecord
    | DecisionRecord
    | AcksRecord
    | RejectedRecord
    | CheckpointRecord
    | FailureRecord
    | PausedRecord
    | EndRecord,
    Field(discriminator="kind"),
]


class Record(Strict):
    """Event that must reach the database: kept, and sent until the database has confirmed it.

    Records are ordered by (attempt, generation, seq). A new generation starts at seq 0 and voids
    older generations.
    """

    attempt: int
    generation: int
    """Grows with every worker group of the job, over all attempts."""
    seq: int
    time: float
    """Seconds since 1970, on the clock of the machine that wrote it."""
    payload: Payload


class Progress(Strict):
    """Current progress of a job; only the newest is kept, and one may be lost."""

    attempt: int
    generation: int
    time: float
    epoch: int
    step: int
    steps_per_epoch: int
    """Steps of an epoch at the present batch size; 0 if unknown, as in a guest run."""
    epochs: int
    """Epochs of the whole job; 0 if unknown, as in a guest run."""
    world_size: int
    loss: float | None
    lr: float
    samples_per_s: float
    bytes: Bytes
    seconds_by_phase: dict[str, float]
    """Seconds by phase since the job began, including rolled-back work."""
    global_batch: int = 0
    """Samples per step now; 0 if unknown."""
    steps: int = 0
    """Steps of the whole job at the present batch size; 0 if unknown."""
    compute_s_by_rank: tuple[float, ...] = ()
    """Mean seconds per step that each rank lately loaded data and computed, without waiting for
    others; a straggler stands out.
    """
    micro_batches_by_rank: tuple[int, ...] = ()
    """Micro-batches of a global batch that each rank takes, more on faster workers; empty if they
    are unknown, as in a guest run.
    """
    step_s_by_phase: dict[str, float] = Field(default_factory=dict)
    """Mean seconds per step that rank 0 lately spent in each phase; empty before two steps."""
    link: dict[str, float] = Field(default_factory=dict)
    """Measured link between the workers: `latency_s` (seconds per message) and `bytes_per_s`, which
    is left out if bytes took no measurable time; empty if it was not measured.
    """
    receive_s_by_rank: tuple[float, ...] = ()
    """Seconds that 64 KiB take from the rank before (for rank 0: from the last) to each rank, as
    measured at the last two decisions before which compression had saved enough bytes to pay for
    it; empty for two workers, and if it was not measured.
    """
    wait_s_by_level: dict[str, float] = Field(default_factory=dict)
    """Seconds for which a step would wait for exchanges at each level, as predicted at the last
    decision; empty if the policy does not ask for it.
    """
    exchange_wait_s: float | None = None
    """Seconds for which a step waited for exchanges after its last gradient, as measured before the
    last decision; null if it was not measured.
    """
    failed_checkpoints: int = 0
    """Checkpoints of this worker group that could not be saved, or were skipped because the one
    before was still being written; 0 in a guest run.
    """
    failed_checkpoints_in_a_row: int = 0
    """Failed or skipped checkpoints since the newest complete one."""


class LogLine(Reported):
    """One line of output; the supervisor's has no rank."""

    attempt: int
    rank: int | None
    time: float
    text: str


class Cursor(Strict):
    """Newest record that the database holds; by default, the position before the first record."""

    attempt: int = 0
    generation: int = 0
    seq: int = -1
    """Sequence number; -1 before the first. A number because cursors are compared with records, are
    sent between releases, and are columns of the database that cannot be null.
    """


class Size(Strict):
    """Number of workers that the scheduler allocated to a job, within the user's limits."""

    min: int
    """Fewest workers to train with; the job waits while there are fewer."""
    target: int
    """Workers that the supervisor keeps running; lost ones are replaced."""


class DesiredState(Strict):
    """State that users and the scheduler want a job in; a newer version replaces older ones."""

    version: int = 0
    overrides: tuple[Override, ...] = ()
    stop: Literal["cancel", "pause"] | None = None
    """Save, then end the job (`cancel`) or only the attempt (`pause`)."""
    size: Size | None = None
    """Number of workers; None keeps that of the launch."""
    avoid: tuple[str, ...] | None = None
    """Ray's IDs of nodes on which no process is started; None keeps those of the launch."""


class Launch(Strict):
    """Everything that a supervisor needs to run one attempt."""

    job_id: str
    attempt: int
    workers: int
    """Size of the worker group, within the spec's limits."""
    storage: str
    """Directory for checkpoints and the end file, the same for all attempts of the job."""
    spec: JobSpec
    installation: str = ""
    """Id of the installation, part of its actors' names; empty in old launches."""
    code: str | None = None
    """Path of the user's modules, a zip file that every worker can read; None without any."""
    retried_attempt: int = 0
    """Newest attempt whose recorded end is ignored because the user retried the job: this attempt
    resumes from the newest checkpoint. 0 if there is none.
    """
    saved_step: int = 0
    """Steps that the newest checkpoint of the job holds, as the service knows; 0 without one. The
    attempt waits for its storage if nothing of the job is there.
    """
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Environment variables of the worker processes, with the values of secrets."""
    pip_index: PipIndex | None = Field(default=None, repr=False)
    """Where the packages of the job come from, for its supervisor only; None if it has none."""
    warm_start: ModelSource | None = None
    """Model to start with if the job has no checkpoint yet."""
    data_cache: DataCache = DataCache()
    """Where nodes keep the files of `spec.data` that they fetch."""
    avoid: tuple[str, ...] = ()
    """Ray's IDs of nodes on which no process is started."""

    def list_secret_values(self) -> list[str]:
        """Return the values of variables that refer to a secret, and what may be secret in the URLs
        of package indexes.
        """
        urls = [] if self.pip_index is None else self.pip_index.list_secret_values()
        return [*list_secret_values(self.spec.env, self.env), *urls]


class Guest(Strict):
    """A guest run: a user started it with Ray Train, and it registers with the service."""

    job_id: str
    """UUID that the run generates and keeps in its storage, so that a restart by Ray Train does not
    change it.
    """
    name: Label
    """Name to show; the service appends part of the id if an unfinished run has the same name."""
    generation: int
    """Grows with every worker group of the run; the attempt of all its records is `GUEST_ATTEMPT`.
    """
    train_run: str
    """Name of the run in Ray Train (`RunConfig(name=...)`)."""
    ray_job_id: str
    """Id of the Ray job that started the run; `ray job stop` or its owner can end it."""
    spec: JobSpec
    """Settings of the run as far as they are known: a field that is not in its `model_fields_set`
    is unknown, and its default says nothing about the run. `spec.model_dump(exclude_unset=True)`
    has the known fields.
    """


class Drained(Strict):
    """Everything that the scheduler drains from a job in one call."""

    records: tuple[Record, ...] = ()
    """Records above the given cursor, in order."""
    progress: Progress | None = None
    logs: tuple[LogLine, ...] = ()
    """Log lines, returned once: those of a lost answer are gone and not counted."""
    logs_dropped: int = 0
    """Lines dropped since the last call because they came faster than they were drained."""
    orders_version: int = 0
    """Version of the desired state that the actor holds; after a restart it is below the last one
    sent, which must then be sent again.
    """
    silent_s: float | None = None
    """Seconds since the guest run last registered; its rank 0 does so every few seconds, even
    without steps. None for a job of the service, and for a guest run that the actor does not list.
    """
