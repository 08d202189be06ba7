"""What the api takes and gives under `/api/v1`: pydantic records shared by the routers, the client and the pages.

Requests refuse unknown fields. Answers may grow fields; clients ignore those they do not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from accordion.messages import Ack, Decision, OptionValue
from service.domain.jobs import Desired, Reason, Status
from service.domain.tally import Tally
from workers.contract import MOST_SAMPLES, Bytes, EpochRecord, JobSpec
from workers.plain_text import check_texts

PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""Text of one line; databases refuse some control characters, and screens obey others."""
PLAIN_LINES = r"^[^\x00-\x08\x0b-\x1f\x7f]*$"
"""The same with tabs and newlines."""


class Request(BaseModel):
    """A body: unknown fields, numbers that are not finite and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _plain_texts(cls, data: Any) -> Any:
        return check_texts(data)


class Answer(BaseModel):
    """An answer."""

    model_config = ConfigDict(from_attributes=True)


class ProgressView(Answer):
    """Where a running job is. Epochs and steps are counted from 0."""

    epoch: int
    """The one that runs, and so how many are finished; behind the last one all of them."""
    epochs: int
    step: int
    steps: int
    """Steps of the whole job, if the batch stays as large as it is now."""
    samples_per_s: float
    eta_s: float | None
    loss: float | None
    lr: float
    bytes: Bytes
    compute_s_by_rank: tuple[float, ...] = ()
    """Seconds that each rank computed for its newest step; a straggler stands out."""
    updated_at: datetime


class JobView(Answer):
    """One job."""

    id: str
    name: str
    status: Status
    desired: Desired
    reason: Reason
    message: str
    """One sentence: why the job is where it is, with the way out where there is one."""
    spec: dict[str, Any]
    """The spec as submitted, with defaults: the fields of `JobSpec`, or those of the version that stored it."""
    labels: dict[str, str]
    priority: int
    attempt: int
    world_size: int
    """Workers that train now; 0 where none do."""
    workers: int
    """Workers that are granted, so many the job shall have; 0 where it holds none."""
    min_workers: int
    """What people allow: the spec's numbers, or as the job was resized."""
    max_workers: int
    tally: Tally
    """What changes of worker group cost so far."""
    metrics: dict[str, float]
    """Of the newest evaluation."""
    progress: ProgressView | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class JobPage(Answer):
    """Jobs, newest first."""

    items: list[JobView]
    next_cursor: str | None


class CodeView(Answer):
    """Code that was uploaded."""

    sha256: str
    """Of the archive: a spec names it so, in its field `code`."""
    files: int
    size_bytes: int


class ResizeRequest(Request):
    """How many workers a job may have from now on."""

    min: int = Field(ge=1, le=1024)
    """With fewer it waits."""
    max: int = Field(ge=1, le=1024)
    """At most one a share of the global batch."""


class DryRun(Answer):
    """What submitting would do; nothing was stored."""

    spec: JobSpec
    would_wait: bool
    message: str


class EpochView(EpochRecord):
    """One finished epoch; exactly one row per epoch, the newest generation's."""

    attempt: int
    generation: int


class DecisionView(Answer):
    """One decision that every worker switched to."""

    attempt: int
    generation: int
    time: datetime
    decision: Decision


class AttemptView(Answer):
    """One run of a job."""

    number: int
    workers: int
    """Size of the worker group that was reserved."""
    reason: Reason
    """Why it ended, or where it is; `message` says it in a sentence."""
    message: str
    tally: Tally
    created_at: datetime
    started_at: datetime | None
    """When its first worker group began to train."""
    ended_at: datetime | None


class AttemptList(Answer):
    """All attempts, oldest first."""

    items: list[AttemptView]


class CheckpointView(Answer):
    """A saved state; only the newest few that the spec asks for still exist."""

    name: str
    attempt: int
    generation: int
    epoch: int
    """First epoch that was still to be trained."""
    step: int
    size_bytes: int
    seconds: float
    blocked_s: float
    """Of these, how long training stood still."""
    time: datetime


class CheckpointList(Answer):
    """All checkpoints that were reported, oldest first."""

    items: list[CheckpointView]


class LayerSchedule(Answer):
    """What is in force for one layer, and who said so."""

    layer: str
    shape: tuple[int, ...]
    regime: Literal["critical", "stable"]
    level: str
    method: str
    options: dict[str, OptionValue]
    policy_level: str
    """What the policy would pick."""
    said_by: str
    """`policy`, or the id of an override."""


class BatchSchedule(Answer):
    """What is in force for the global batch, and who said so."""

    global_batch: int
    """Samples a step."""
    level: Literal["low", "high"] | None
    """None for another size, given by hand."""
    policy_level: Literal["low", "high"]
    """What the policy would pick."""
    low: int
    """Samples a step at this level; likewise `high`."""
    high: int
    said_by: str
    """`policy`, or the id of an override."""


class ScheduleView(Answer):
    """What is in force now."""

    epoch: int
    step: int
    layers: list[LayerSchedule]
    batch: BatchSchedule | None
    """None where the job has no batch levels, and its batch stays as it is."""


class OverrideRequest(Request):
    """A person's decision: which layers, how hard, or how large the batch; from when, until when."""

    target: Literal["compression", "batch"] = "compression"
    level: (
        Annotated[str, Field(min_length=1, max_length=64)]
        | Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
        | dict[str, OptionValue]
    )
    """`low`, `high`, a rung's index (0 is the lightest) or options such as `{"rank": 2}` or `{"method": "none"}`.

    Of the batch: `low`, `high`, or samples a step.
    """
    layers: list[Annotated[str, Field(min_length=1, max_length=512, pattern=PLAIN)]] = Field(
        default=["*"], min_length=1, max_length=256
    )
    """Globs over layer names; left out for the batch, which is one for the whole model."""
    apply_at: Literal["next_step", "next_epoch"] | Annotated[int, Field(ge=0, le=100_000)] = "next_step"
    """When it starts; a number is an epoch, counted from 0."""
    until: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """First epoch that belongs to the policy again; null holds for the rest of the job."""
    reason: str = Field(default="", max_length=1000, pattern=PLAIN_LINES)


OverrideState = Literal["PENDING", "DELIVERED", "APPLIED", "REJECTED", "SUPERSEDED", "EXPIRED", "CANCELLED"]


class OverrideView(Answer):
    """An override and how far it got."""

    id: str
    number: int
    target: Literal["compression", "batch"]
    level: str | int | dict[str, OptionValue]
    layers: list[str]
    apply_at: str | int
    until: int | None
    reason: str
    state: OverrideState
    message: str
    """Why it was rejected, superseded or expired; which ranks have not switched yet."""
    epoch: int | None
    """Where it came into force; likewise the step. Worker groups that take over later leave it as it is."""
    step: int | None
    world_size: int | None
    """Of the worker group that runs it now."""
    acks: int
    """Ranks that said, from their own hook, that they run the announced plan."""
    ack_list: list[Ack]
    created_at: datetime
    applied_at: datetime | None


class OverrideList(Answer):
    """All overrides of a job, oldest first."""

    items: list[OverrideView]


class EventView(Answer):
    """One event: `seq` grows by one within a job and is the SSE id."""

    seq: int
    type: Literal["status", "epoch", "decision", "override", "workers", "checkpoint", "log", "end"]
    time: datetime
    data: dict[str, Any]


class Named(Answer):
    """Something a spec can name, with the JSON schema of its options."""

    name: str
    summary: str
    options: dict[str, Any]


class NamedList(Answer):
    """What a spec can name."""

    items: list[Named]


class QueueEntry(Answer):
    """One waiting job: who is next, and why it waits."""

    position: int
    id: str
    name: str
    priority: int
    reason: Reason
    message: str
    created_at: datetime


class QueueView(Answer):
    """Waiting jobs in the order in which they will start."""

    items: list[QueueEntry]


class NodeView(Answer):
    """One machine of the cluster, as the scheduler last saw it."""

    id: str
    address: str
    alive: bool
    cpus: float
    gpus: float
    memory_bytes: int
    cpus_foreign: float = 0.0
    """CPUs that programs other than the jobs of this service use."""
    gpus_foreign: float = 0.0
    """GPUs that programs other than the jobs of this service use."""
    draining: bool = False
    """It is about to go and takes no more workers."""


class ClusterView(Answer):
    """The cluster, as the scheduler last saw it."""

    reachable: bool
    message: str
    """Why the cluster is unreachable, or which jobs of other installations also run there; empty if none."""
    seen_at: datetime | None
    cpus: float
    """Of the nodes that take workers: alive and not being drained; likewise the GPUs."""
    gpus: float
    cpus_reserved: float
    """By jobs of ours that start or run."""
    gpus_reserved: float
    cpus_foreign: float
    """CPUs that other programs use on the nodes that take workers."""
    gpus_foreign: float
    """GPUs that other programs use on the nodes that take workers."""
    nodes: list[NodeView]


class ProblemItem(Answer):
    """One wrong value."""

    pointer: str
    detail: str


class Problem(Answer):
    """RFC 9457 problem details; every 4xx and 5xx answer has this form."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[ProblemItem] = []


class CheckResult(Answer):
    """One check of `/readyz`."""

    ok: bool
    message: str


class Ready(Answer):
    """Whether the service can do its work."""

    ready: bool
    checks: dict[str, CheckResult]
