"""What the api takes and gives under `/api/v1`: pydantic records shared by the routers, the client
and the pages.

Requests refuse unknown fields. Answers may grow fields; clients ignore those they do not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from accordion.messages import Decision, OptionValue
from service.domain.jobs import Desired, Kind, Reason, Status
from service.domain.tally import Tally
from workers.contract import Bytes, EpochRecord, JobSpec, StorageUse
from workers.plain_text import check_texts

PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""Text of one line; databases refuse some control characters, and screens obey others."""
PLAIN_LINES = r"^[^\x00-\x08\x0b-\x1f\x7f]*$"
"""The same with tabs and newlines."""


class Request(BaseModel):
    """A body: unknown fields, numbers that are not finite and values of another type are
    refused.
    """

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
    epochs: int | None
    """Epochs of the whole job; null if not known, as in a guest run."""
    step: int
    steps: int | None
    """Steps of the whole job, if the batch stays as large as it is now; null if not known."""
    samples_per_s: float | None
    """Samples that all workers train on per second; null if not known."""
    eta_s: float | None
    """Seconds until the last step at the present speed; null if not known."""
    loss: float | None
    lr: float
    bytes: Bytes
    compute_s_by_rank: tuple[float, ...] = ()
    """Seconds that each rank computed for its newest step; a straggler stands out."""
    updated_at: datetime


class StorageView(StorageUse):
    """Where a job's checkpoints are kept, as its newest worker group found it."""

    model_config = ConfigDict(extra="ignore")

    seen_at: datetime
    """When the group found it so, before its first step."""


class RayRunView(Answer):
    """What runs the newest worker group of a job in Ray."""

    engine: Literal["ray-train", "actors"] | None
    """Who starts and watches the worker processes: Ray Train, or the service itself with plain
    actors; null if the workers did not report it.
    """
    train_run: str | None
    """Name of the run in Ray Train, as in Ray's dashboard and state API; null without one."""
    ray_job_id: str | None
    """Id of the Ray job that started a guest run; null for jobs that were submitted here."""


class JobView(Answer):
    """One job, or a guest run."""

    id: str
    name: str
    kind: Kind = Kind.JOB
    """`job` was submitted here; `guest` is a Ray Train script that registered itself. A guest run
    is shown, and its compression can be overridden; it is started, resized and stopped where its
    script runs.
    """
    status: Status
    desired: Desired
    reason: Reason
    message: str
    """One sentence: why the job is where it is, with the way out where there is one."""
    spec: dict[str, Any]
    """The spec as submitted, with defaults: the fields of `JobSpec`, or those of the version that
    stored it.
    """
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
    ray_run: RayRunView | None = None
    """Null before the first worker group has started."""
    storage: StorageView | None = None
    """Null before the first worker group has started."""
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

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"min": 1, "max": 2}, {"min": 2, "max": 2}]}
    )


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


class EventView(Answer):
    """One event: `seq` grows by one within a job and is the SSE id."""

    seq: int
    type: Literal["status", "epoch", "decision", "override", "workers", "checkpoint", "log", "end"]
    time: datetime
    data: dict[str, Any]


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
