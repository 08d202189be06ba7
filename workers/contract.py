"""What workers report (`Record`) and are told (`Launch`, `DesiredState`): pydantic; neither ray nor
torch.

Epochs and steps are counted from 0, steps since the start of the job; intervals of epochs are half
open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from accordion.messages import Ack, Decision, LayerInfo, Override
from workers.plain_text import clean_texts
from workers.spec import MAX_SAMPLES as MAX_SAMPLES
from workers.spec import JobSpec as JobSpec
from workers.spec import Label, Strict

GUEST_ATTEMPT = 1
"""Attempt of a guest run: Ray Train restarts it, so that only its generation grows."""
GUEST_PROTOCOL = 2
"""Version of the calls and records between a guest run and the actor, which may be installed apart.

It grows with each change that the other side could not read.
"""


class Reported(Strict):
    """Base of records with text from a job's own code: NUL and lone surrogates are replaced."""

    @model_validator(mode="before")
    @classmethod
    def _clean_texts(cls, data: Any) -> Any:
        return clean_texts(data)


class Bytes(Strict):
    """Bytes of one worker over some steps, all layers."""

    payload: int = 0
    """What the compressors handed to the network."""
    wire: int = 0
    """Estimate of what this worker's interface sends: ring all-reduce 2(W-1)/W, all-gather W-1
    times the payload.
    """
    dense: int = 0
    """Payload that uncompressed gradients in fp32 would have had."""
    fp16: int = 0
    """Payload that uncompressed gradients in fp16 would have had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Next sample that the job trains on."""

    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that all workers together have trained on."""


class StorageUse(Strict):
    """Where a worker group keeps its checkpoints, and how many workers verified that they can read
    there.
    """

    place: str
    """URL or path."""
    workers: int
    """Workers that read there what rank 0 had written; 1 for a group of one worker."""
    hosts: int
    """Hosts that these workers run on."""


class Started(Reported):
    """A worker group began to train."""

    kind: Literal["started"] = "started"
    world_size: int
    epoch: int
    step: int
    resumed_from: str | None
    """Name of the checkpoint, None at the beginning of the job."""
    steps_per_epoch: int
    """Steps of an epoch at the present batch size; 0 if not known."""
    layers: tuple[LayerInfo, ...]
    """Layers that decisions speak of, in the model's order."""
    parameters: int
    """Number of trained values."""
    cause: Literal["start", "resize", "recovery"] = "start"
    """Why this group took over: it is the attempt's first, people or the cluster changed its size,
    or one was lost.
    """
    previous_world_size: int = 0
    """Workers of the previous group; 0 for the attempt's first group."""
    seconds_lost: float = 0.0
    """Seconds since the previous group's last step."""
    steps_rolled_back: int = 0
    """Steps of the group before that are trained again, because they came after the checkpoint."""
    storage: StorageUse | None = None
    """Storage of the checkpoints; None in records of older versions."""
    engine: Literal["ray-train", "actors"] | None = None
    """What runs the worker processes; None in records of older versions and outside of a job."""


class ResizeRecord(Reported):
    """A worker group is about to stop at its next step boundary, to go on with other workers; no
    step is lost.
    """

    kind: Literal["resize"] = "resize"
    cause: Literal["ordered", "joined", "leaving"]
    """`ordered`: people or the queue asked for another size; `joined`: processes that were missing
    are there; `leaving`: a node is being drained.
    """
    old: int
    new: int
    """Numbers of workers."""
    step: int
    """Last step known."""
    message: str


class EpochRecord(Reported):
    """One finished epoch."""

    kind: Literal["epoch"] = "epoch"
    """Type of the record."""
    epoch: int
    """Number of the epoch, counted from 0."""
    step: int
    """Optimizer steps of the job at the end of the epoch."""
    world_size: int
    """Number of workers at the end of the epoch."""
    loss: float | None
    """Mean training loss over the samples of the epoch; null if it was not finite."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Metrics of the evaluation after the epoch, by name, such as `loss` and `accuracy`."""
    lr: float
    """Learning rate at the end of the epoch."""
    global_batch: int
    """Samples per step at the end of the epoch; 0 if unknown, as in most guest runs."""
    samples: int
    """Training samples of the epoch; 0 if unknown, as in most guest runs."""
    skipped_steps: int = 0
    """Steps skipped because a gradient was not finite."""
    seconds_by_phase: dict[str, float]
    """Seconds that rank 0 spent in each phase: `compute`, `communicate`, `optimize`, `evaluate`,
    `checkpoint`, `decide`, `wait`.
    """
    bytes: Bytes
    """Bytes of one worker in this epoch."""
    statistic_by_layer: dict[str, float] | None = None
    """Gradient statistic of the window that ended with this epoch, by layer; null if none ended."""
    regime_by_layer: dict[str, Literal["critical", "stable"]]
    """Regime at the end of the epoch, by layer."""
    level_by_layer: dict[str, str]
    """Name of the compression level at the end of the epoch, by layer."""


class DecisionRecord(Reported):
    """A decision that every rank switched to."""

    kind: Literal["decision"] = "decision"
    decision: Decision


class AcksRecord(Reported):
    """Which plan every rank runs after a switch, each rank speaking for itself; the overrides in
    force under it.
    """

    kind: Literal["acks"] = "acks"
    epoch: int
    step: int
    world_size: int
    digest: str
    """Digest of the plan that was announced."""
    override_ids: tuple[str, ...]
    acks: tuple[Ack, ...]


class RejectedRecord(Reported):
    """An override that cannot be applied to this job."""

    kind: Literal["rejected"] = "rejected"
    override_id: str
    reason: str


class CheckpointRecord(Reported):
    """A saved state that can be resumed from."""

    kind: Literal["checkpoint"] = "checkpoint"
    name: str
    epoch: int
    """First epoch that is still to be trained."""
    step: int
    size_bytes: int
    seconds: float
    """Seconds from the step boundary to the manifest."""
    blocked_s: float = 0.0
    """Seconds of it during which training stood still."""


class FailureRecord(Reported):
    """A worker group ended before its time."""

    kind: Literal["failure"] = "failure"
    cause: Literal["job", "infrastructure"]
    """`job`: an exception with every process alive; only these spend `max_failures`."""
    rank: int | None
    epoch: int | None = None
    step: int | None = None
    message: str
    """One sentence: type and text of the error, never a traceback (that is in the logs)."""
    final: bool = False
    """No other worker group follows: the job ends with it."""
    is_storage: bool = False
    """The job's storage was full or unreachable; the job waits for it, and this is not counted as a
    failure.
    """
    process_died: bool = False
    """A process died while its node stayed."""


class PausedRecord(Strict):
    """The attempt was paused; the next one resumes from the newest checkpoint."""

    kind: Literal["paused"] = "paused"
    step: int | None
    """Last step known."""
    saved_step: int | None = None
    """Steps in the newest checkpoint; later steps are trained again. None if not known."""


EndReason = Literal[
    "COMPLETED",
    "CANCELLED_BY_USER",
    "TASK_RAISED",
    "LOSS_NOT_FINITE",
    "TOO_MANY_FAILURES",
    "NO_PROGRESS",
    "LOST",
    "START_FAILED",
]


class EndRecord(Reported):
    """The job is over; `message` is one sentence for people."""

    kind: Literal["end"] = "end"
    status: Literal["SUCCEEDED", "FAILED", "CANCELLED"]
    reason: EndReason
    message: str = ""


Payload = Annotated[
    Started
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
    """Something that must reach the database: kept and sent again until the database has confirmed
    it.

    Ordered by (attempt, generation, seq). A newer generation starts again at seq 0 and makes older
    ones void.
    """

    attempt: int
    generation: int
    """Grows with every worker group of the job, over all attempts."""
    seq: int
    time: float
    """Seconds since 1970, on the clock of the machine that wrote it."""
    payload: Payload


class Progress(Strict):
    """Where the job is now; only the newest is kept, and one may be lost."""

    attempt: int
    generation: int
    time: float
    epoch: int
    step: int
    steps_per_epoch: int
    """Steps of an epoch at the present batch size; 0 if not known, as in a guest run."""
    epochs: int
    """Epochs of the whole job; 0 if not known, as in a guest run."""
    world_size: int
    loss: float | None
    lr: float
    samples_per_s: float
    bytes: Bytes
    seconds_by_phase: dict[str, float]
    """Seconds since the job began; like `bytes`, rolled-back work included."""
    global_batch: int = 0
    """Samples per step now; 0 if not known."""
    steps: int = 0
    """Steps of the whole job at the present batch size; 0 if not known."""
    compute_s_by_rank: tuple[float, ...] = ()
    """Seconds that each rank computed for its newest step; a straggler stands out."""


class LogLine(Reported):
    """One line of output; `rank` None is the supervisor."""

    attempt: int
    rank: int | None
    time: float
    text: str


class Cursor(Strict):
    """The newest record that the database holds."""

    attempt: int = 0
    generation: int = 0
    seq: int = -1


class Size(Strict):
    """How many workers a job shall have now: granted by the scheduler, within what people allow."""

    min: int
    """Fewest workers to train with; the job waits while there are fewer."""
    target: int
    """Workers that the supervisor keeps running; lost ones are replaced."""


class DesiredState(Strict):
    """What people want of a running job; the newest version replaces all before it."""

    version: int = 0
    overrides: tuple[Override, ...] = ()
    stop: Literal["cancel", "pause"] | None = None
    """Save and end: the job, or the attempt only."""
    size: Size | None = None
    """Number of workers; None keeps that of the launch."""


class Launch(Strict):
    """All that a supervisor has to know to run one attempt."""

    job_id: str
    attempt: int
    workers: int
    """Size of the worker group, within the spec's limits."""
    storage: str
    """Directory for checkpoints and the end file, the same for all attempts of the job."""
    spec: JobSpec
    installation: str = ""
    """Id of the installation that runs the attempt, part of its actors' names; empty in old
    launches.
    """
    code: str | None = None
    """Path of the user's own modules as a zip, where every worker reaches it; None where the spec
    names none.
    """
    retried_attempt: int = 0
    """Newest attempt whose recorded end is ignored because the user retried the job: this attempt
    resumes from the newest checkpoint. 0 if there is none.
    """


class Guest(Strict):
    """A guest run: people started it themselves with Ray Train, and it registers with the
    service.
    """

    job_id: str
    """UUID that the run chose and keeps in its storage, so that it stays the same when Ray Train
    restarts the run.
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
    """What the scheduler takes over from a running job in one call."""

    records: tuple[Record, ...] = ()
    """Above the cursor that was given, in order."""
    progress: Progress | None = None
    logs: tuple[LogLine, ...] = ()
    """Handed over once: with an answer that is lost they are gone, and not counted."""
    logs_dropped: int = 0
    """Lines lost since the last call because they came faster than they were taken."""
    orders_version: int = 0
    """Version of the orders held there; below the last one sent after a restart: they are to be
    sent again.
    """
    silent_s: float | None = None
    """Seconds since the guest run last enlisted, which its rank 0 does every few seconds, even
    while it makes no steps. None for a job of the service, and for a guest run that the actor does
    not list.
    """
