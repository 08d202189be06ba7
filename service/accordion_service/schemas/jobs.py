"""Request and response models of the API under `/api/v1`, shared by the routers, the client and the
pages.

Requests reject unknown fields. Responses may gain fields; clients ignore those they do not know.
Attribute docstrings become the descriptions in `/docs`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from accordion.base.messages import Decision, OptionValue
from accordion_service.domain.jobs.statuses import Desired, Kind, Reason, Status
from accordion_service.domain.performance.elasticity import ElasticityStats
from accordion_workers.common.described_models import DescribedModel
from accordion_workers.common.plain_text import check_input
from accordion_workers.spec.public_records import Bytes, EpochRecord, Package, StorageUse
from accordion_workers.spec.types import MAX_PRIORITY, MAX_SAMPLES, Label, Whole

PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""One line of text. Databases reject some control characters, and terminals execute others."""
PLAIN_LINES = r"^[^\x00-\x08\x0b-\x1f\x7f]*$"
"""Text with tabs and line breaks, but no other control characters."""


_MAX_SENTENCE = 2000
"""Longest text of an error response, in characters; messages repeat values of the request."""


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SENTENCE else text[: _MAX_SENTENCE - 3] + "..."


_Sentence = Annotated[str, AfterValidator(_shorten)]


class Request(DescribedModel):
    """Base of request bodies: rejects unknown fields, non-finite numbers and wrong types."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_input(cls, data: Any) -> Any:
        return check_input(data)


class Answer(DescribedModel):
    """Base of responses, which are built at their first use: a command of the command line needs
    few.
    """

    model_config = ConfigDict(from_attributes=True, defer_build=True)


class ProgressView(Answer):
    """How far a job is. Epochs and steps are counted from 0."""

    type: ClassVar[Literal["progress"]] = "progress"
    """In Python, what tells it from the events of a stream."""
    epoch: int
    """Epoch in progress, which equals the number of finished epochs."""
    epochs: int | None
    """Planned epochs of the whole job; null if unknown, as in a guest run."""
    step: int
    """Optimizer steps taken since the start of the job."""
    steps: int | None
    """Planned steps of the whole job, assuming that the batch keeps its present size; null if
    unknown.
    """
    samples_per_s: float | None
    """Training samples per second over all workers: the mean of the last seconds, with evaluations
    and checkpoints as often as in the last epoch. 0 while the job does not train, null if unknown.
    """
    eta_s: float | None
    """Seconds until the last step at this speed; null if unknown, and while the job does not train.
    """
    loss: float | None
    """Newest training loss; null if it is not finite."""
    lr: float
    """Learning rate of the newest step."""
    bytes: Bytes
    """Bytes of one worker since the start of the job, including steps that were rolled back."""
    compute_s_by_rank: tuple[float, ...] = ()
    """Mean seconds per step that each rank loads data and computes, by rank, over the last 10 s; a
    straggler stands out.
    """
    micro_batches_by_rank: tuple[int, ...] = ()
    """Micro-batches of a global batch that each rank takes, more on faster workers; empty if they
    are unknown, as in a guest run.
    """
    failed_checkpoints_in_a_row: int = 0
    """Checkpoints since the newest complete one that could not be saved, or were skipped because
    the one before was still being written; 0 in a guest run.
    """
    updated_at: datetime
    """Time of this report."""


class StorageView(StorageUse):
    """Where a job keeps its checkpoints, as its newest worker group reported it."""

    model_config = ConfigDict(extra="ignore")

    seen_at: datetime
    """Time of the check, before the group's first step."""


class PackagesView(Answer):
    """Packages that `pip` of a job resolved to, which its workers install."""

    packages: list[Package]
    """Packages, by name; empty if the workers have all that `pip` names."""
    size_bytes: int
    """Size of the wheels that were downloaded."""
    seconds: float
    """Seconds that it took to resolve and download them."""
    resolved_at: datetime
    """Time at which the packages were resolved."""


class RayRunView(Answer):
    """What runs the newest worker group of a job in Ray."""

    engine: Literal["ray-train", "actors"] | None
    """What starts and supervises the worker processes: Ray Train, or the service itself with plain
    actors; null if the workers did not report it.
    """
    train_run: str | None
    """Name of the run in Ray Train, as in Ray's dashboard and state API; null without one."""
    ray_job_id: str | None
    """ID of the Ray job that started a guest run; null for jobs submitted to this service."""


class JobView(Answer):
    """One job or guest run."""

    id: str
    """ID of the job (UUID)."""
    name: str
    """Name of the job; assigned by the service if the spec has none."""
    kind: Kind = Kind.JOB
    """`job`: submitted to this service. `guest`: a Ray Train script that registered itself; the
    service shows it and can override its compression, but its own script starts, resizes and stops
    it.
    """
    owner: str | None = None
    """User who submitted the job; null for a guest run, and for a job submitted before
    users existed.
    """
    cloned_from: str | None = None
    """ID of the job whose spec it was made from; null if it was submitted with a spec."""
    status: Status
    """Current state. `QUEUED`: waits for resources. `STARTING`: worker processes start. `RUNNING`:
    trains. `RESIZING`: switches to another number of workers. `RECOVERING`: replaces a lost worker
    group from the newest checkpoint. `PAUSING`, `STOPPING`: saves and frees its workers. `PAUSED`:
    saved, without workers, until it is resumed. `LOST`: a guest run that does not report.
    `SUCCEEDED`, `FAILED` and `CANCELLED`: ended; the last two can be retried.
    """
    desired: Desired
    """State that users asked for: `RUN`, `PAUSE` or `CANCEL`."""
    reason: Reason
    """Why the job is in this state, as a stable code. Of a queued job: `WAITING_FOR_ROOM` (its
    minimum fits the cluster, but not beside what runs now), `NEVER_FITS` (its minimum is larger
    than the cluster), `WAITING_FOR_NODE` (it fits only with nodes that are cordoned or avoided),
    `WAITING_FOR_QUOTA` (a quota is used up), `WAITING_FOR_SECRET` (a secret that its variables
    refer to cannot be decrypted), `SCHEDULED` (its `start_at` has not come),
    `NOT_PLACED` (Ray did not place its processes; no failure), `RETRYING`.
    `WAITING_FOR_STORAGE`: its checkpoints cannot be read or written now, or are not on its storage.
    `NO_PROGRESS`: several worker groups failed without a new checkpoint or epoch. `message` has the
    details.
    """
    message: str
    """Why the job is in this state, in one sentence, with a remedy if there is one."""
    trained_s: float = 0.0
    """Seconds of training in the attempts that have ended."""
    times_out_at: datetime | None = None
    """Time at which the job fails as `TIMED_OUT` if it has not ended (`limits.total_seconds`); null
    without that limit, and once `limits.training_seconds` has stopped it.
    """
    spec: dict[str, Any]
    """The spec as submitted, with defaults: the fields of `JobSpec`, or those of the version that
    stored it.
    """
    labels: dict[str, str]
    """Labels given at submission, by key."""
    priority: int
    """Priority in the queue, 0 to 100; larger starts first. Default 50."""
    attempt: int
    """Number of the current or newest attempt, counted from 1; 0 before the first."""
    world_size: int
    """Number of workers in training now."""
    workers: int
    """Number of workers that the scheduler allocated; 0 if the job holds no resources."""
    min_workers: int
    """Fewest workers that the job may train with: `workers.min` of the spec, or of the last resize.
    """
    max_workers: int
    """Most workers that the job may get: `workers.max` of the spec, or of the last resize."""
    tally: ElasticityStats
    """Cost of all changes of worker group so far."""
    metrics: dict[str, float]
    """Metrics of the newest evaluation, by name, such as `loss` and `accuracy`."""
    progress: ProgressView | None
    """How far the job is; null before the first report."""
    ray_run: RayRunView | None = None
    """What runs the workers in Ray; null until the first worker group has started."""
    storage: StorageView | None = None
    """Where checkpoints are kept; null until the first worker group has started."""
    packages: PackagesView | None = None
    """Packages that `pip` of the spec resolved to; null before they are resolved, and for a
    job without `pip`."""
    created_at: datetime
    """Time of submission."""
    started_at: datetime | None
    """Time at which training began; null before."""
    ended_at: datetime | None
    """Time at which the job ended; null before."""
    archived: bool = False
    """Whether the job was archived: lists leave it out unless they are asked for it."""
    log_bytes_removed: int = 0
    """Bytes of its output that are no longer kept; the oldest are removed first."""
    history_removed_at: datetime | None = None
    """Time at which events and output of the ended job were removed by age, except its end and the
    newest part of its output; null while they are kept (`ACCORDION_HISTORY_RETENTION_S`).
    """


class JobPage(Answer):
    """One page of jobs, newest first."""

    items: list[JobView]
    """Jobs of this page."""
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""


class CodeView(Answer):
    """Uploaded code."""

    sha256: str
    """SHA-256 of the archive, in hex. A spec refers to the code by it, in the field `code`."""
    files: int
    """Number of files in the archive."""
    size_bytes: int
    """Size of the archive in bytes."""


class ResizeRequest(Request):
    """How many workers a job may have from now on."""

    min: Whole = Field(ge=1, le=1024)
    """Fewest workers to train with; the job waits if fewer fit. At least 1, at most `max`."""
    max: Whole = Field(ge=1, le=1024)
    """Most workers to use, at most one per micro-batch of the global batch."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"min": 1, "max": 2}, {"min": 2, "max": 2}]}
    )


class JobChange(Request):
    """Changes of how a job is listed and queued; what is left out stays as it is."""

    name: Label | None = None
    """New name: up to 63 letters, digits and `._/-`."""
    labels: dict[Label, Label | None] = Field(default_factory=dict, max_length=64)
    """Labels to set, by key; null removes one. A job has at most 32."""
    priority: Whole | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    """New place in the queue, 0 to 100; larger starts first. A running job keeps its workers."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"priority": 80}, {"labels": {"team": "vision", "old": None}}]
        }
    )


class CloneRequest(Request):
    """A new job with the spec of another one."""

    spec: dict[str, Any] = Field(default_factory=dict)
    """Changes of the spec, as a JSON merge patch (RFC 7396): objects are merged, other values
    replaced, and null removes a field, which then has its default.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{}, {"spec": {"training": {"epochs": 40}, "compression": None}}]
        }
    )


class EpochView(EpochRecord):
    """One finished epoch. A repeated epoch replaces the earlier record, so each appears once."""

    attempt: int
    """Attempt that trained the epoch."""
    generation: int
    """Worker group that trained the epoch, counted over all attempts."""


class DecisionView(Answer):
    """One decision that every worker has applied."""

    attempt: int
    """Attempt in which it was applied."""
    generation: int
    """Worker group that applied it, counted over all attempts."""
    time: datetime
    """Time at which the workers reported it."""
    decision: Decision
    """The levels in force from its step on, and why."""
    user_by_override: dict[str, str] = Field(default_factory=dict)
    """User who requested each override that is in force, by the ID of the override."""


class AttemptView(Answer):
    """One run of a job, from its placement on the cluster to its end."""

    number: int
    """Number of the attempt, counted from 1."""
    workers: int
    """Number of workers of its newest worker group; before one trains, the number allocated."""
    reason: Reason
    """Why the attempt ended, or its current state, as a stable code."""
    message: str
    """Why the attempt ended, or its current state, in one sentence."""
    tally: ElasticityStats
    """Cost of the changes of worker group in this attempt."""
    created_at: datetime
    """Time at which the scheduler allocated its workers."""
    started_at: datetime | None
    """Time at which its first worker group began to train; null before."""
    ended_at: datetime | None
    """Time at which the attempt ended; null before."""


class AttemptList(Answer):
    """All attempts of a job, oldest first."""

    items: list[AttemptView]
    """The attempts."""


class LayerSchedule(Answer):
    """Compression in force for one layer, and the source of that decision."""

    layer: str
    """Name of the parameter, as in `model.named_parameters()`."""
    shape: tuple[int, ...]
    """Shape of the parameter."""
    regime: Literal["critical", "stable"]
    """`critical` while the layer's gradient changes quickly, otherwise `stable`."""
    level: str
    """Name of the level in force, such as `low` or `high`."""
    method: str
    """Compression method in force."""
    options: dict[str, OptionValue]
    """Options of the method, such as `{"rank": 2}`."""
    policy_level: str
    """Level that the policy would choose without overrides."""
    said_by: str
    """Source of the level: `policy`, or the ID of an override."""


class BatchSchedule(Answer):
    """Global batch in force, and the source of that decision."""

    global_batch: int
    """Samples per step over all workers."""
    level: Literal["low", "high"] | None
    """Level in force; null if an override set another size."""
    policy_level: Literal["low", "high"]
    """Level that the policy would choose without overrides."""
    low: int
    """Samples per step at level `low`."""
    high: int
    """Samples per step at level `high`."""
    min: int = 1
    """Fewest samples per step that an override can set, so that every worker gets a part."""
    max: int = MAX_SAMPLES
    """Most samples per step that an override can set."""
    said_by: str
    """Source of the batch: `policy`, or the ID of an override."""


class ScheduleView(Answer):
    """Compression, local steps and batch in force now."""

    epoch: int
    """Epoch in progress, counted from 0."""
    step: int
    """Optimizer steps taken since the start of the job."""
    layers: list[LayerSchedule]
    """Every compressed layer, in the order of the model."""
    batch: BatchSchedule | None
    """The global batch; null if the spec has no `batch`, so that its size is fixed."""
    local_steps: int = 1
    """Optimizer steps that each worker takes between two exchanges; 1 if gradients are exchanged in
    every step.
    """
    policy_local_steps: int = 1
    """Local steps that the policy would choose without overrides."""
    local_steps_said_by: str = "policy"
    """Source of the local steps: `policy`, or the ID of an override."""
    optimizer: dict[str, float] = Field(default={})
    """What overrides set of the optimizer: `lr`, or `lr_factor` for a factor of the scheduled rate,
    `weight_decay` and `clip_norm`; empty without such overrides.
    """
    optimizer_said_by: dict[str, str] = Field(default={})
    """ID of the override in force of `lr`, `weight_decay` and `clip_norm`, where there is one."""


class EventView(Answer):
    """One event of a job, as the `data` of a server-sent event."""

    seq: int
    """Sequence number within the job, without gaps; also the ID of the server-sent event."""
    type: Literal[
        "status",
        "epoch",
        "decision",
        "override",
        "workers",
        "checkpoint",
        "packages",
        "log",
        "end",
        "archive",
        "change",
        "retention",
    ]
    """What happened. `archive`: an ended job was archived or unarchived. `change`: its name, labels
    or priority were changed. `retention`: checkpoints of an ended job were removed.
    """
    time: datetime
    """When it happened."""
    data: dict[str, Any]
    """Details, whose keys depend on `type`. `by` is the user whose request the event is or
    completes, and is missing if the service or the workers caused it. In a `decision`,
    `user_by_override` has the users who requested the overrides in force. A `change` has the old
    and new values in `before` and `after`.
    """


class ProblemItem(Answer):
    """One rejected value."""

    pointer: _Sentence
    """JSON pointer into the body, such as `/workers/min`; for other parts of the request a path
    such as `query/limit`, `path/job_id` or `header/if-match`.
    """
    detail: _Sentence
    """What is wrong with the value, and what is allowed."""


class Problem(Answer):
    """Problem details (RFC 9457), the body of every 4xx and 5xx response."""

    type: str = "about:blank"
    """Always `about:blank`; `code` identifies the problem."""
    title: str
    """Phrase of the HTTP status."""
    status: int
    """HTTP status."""
    detail: _Sentence
    """What went wrong, in one sentence, with a remedy if there is one."""
    code: str
    """Stable code of the problem, such as `not_found` or `invalid`."""
    request_id: str
    """ID of the request, as in the service's log."""
    errors: list[ProblemItem] = Field(default=[])
    """The first 20 rejected values, if the request was invalid."""


class CheckResult(Answer):
    """Result of one check of `/readyz`."""

    ok: bool
    """True if the check passed."""
    message: str
    """What the check found."""


class Ready(Answer):
    """Whether the service can accept and run jobs."""

    ready: bool
    """True if all checks passed."""
    checks: dict[str, CheckResult]
    """Results by name: `service`, `database`, `migrations`, `scheduler`, `ray`."""
