"""Response models of plans: predicted steps of a job that does not run yet."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from accordion.base.messages import OptionValue
from accordion_service.domain.jobs.plans import PlanStatus
from accordion_service.schemas.jobs import Answer


class PredictionView(Answer):
    """A step of all workers at one level of one method."""

    method: str
    """Compression method."""
    level: str
    """`low` or `high`; empty for a method without levels."""
    options: dict[str, OptionValue]
    """Options of the level: those of the spec for its own method, otherwise the defaults."""
    step_s: float
    """Predicted seconds of a step."""
    samples_per_s: float
    """Predicted samples per second over all workers."""
    exchange_s: float
    """Seconds by which encoding and exchanging lengthens a step, spread over a round."""
    sent_bytes: int
    """Bytes that each worker sends per step, spread over a round; each replica, if workers hold the
    model together.
    """
    exchange_plan: list[int]
    """Number of DDP's buckets in each exchange of a step."""
    collectives: int
    """Number of collectives of an exchange. They run one after the other, and each waits for the
    link's latency two or three times on CPUs.
    """
    is_own_method: bool
    """Whether it is the method of the spec."""
    local_steps: int = 1
    """Steps of a round of local steps, of which the spec's method has the shortest and the longest;
    1 if gradients are exchanged in every step.
    """


class PlannedEpochsView(Answer):
    """Epochs in a row that are planned alike."""

    epoch: int
    """First of them."""
    epochs: int
    """Number of them."""
    lr: float
    """Learning rate of the last step of the first of them."""
    last_lr: float
    """Learning rate of the last step of the last of them."""
    global_batch: int
    """Samples per step over all workers."""
    steps: int
    """Steps of each of them."""
    local_steps: list[int]
    """Steps of a round of local steps, one after the other if they change within an epoch; 1 if
    gradients are exchanged in every step.
    """
    layers_by_level: dict[str, int]
    """Number of layers at each level at the end of an epoch; empty if the levels are decided in the
    job and send equally much.
    """
    exchanges: int
    """Exchanges in each of them."""
    sent_bytes: int
    """Bytes of gradients or changes that each worker sends in each of them."""


class PlannedRunView(Answer):
    """A whole job as it is known before it runs: without overrides, and with the same number of
    workers all the time.
    """

    assumed: str
    """What is assumed of that which is decided in the job, such as `all layers at low`; empty if
    all is known before.
    """
    epochs: list[PlannedEpochsView]
    """Its epochs in order."""
    sent_bytes: int
    """Bytes that each worker sends in the whole job, without decisions, acknowledgements and
    running statistics.
    """
    control_bytes: int
    """Part of them that is not of gradients or changes: signals, and sums of windows."""
    uncompressed_bytes: int
    """Bytes that it would send without compression in every step."""


class PlannedRoundsView(Answer):
    """Steps of rounds of local steps, those that follow from a budget included."""

    low: int
    """Steps of a round at the peak of the learning rate."""
    high: int
    """Most steps of a round."""


class PlanView(Answer):
    """Predicted steps of a job, as far as they are known."""

    id: str
    """ID of the plan (UUID); a plan that has ended is kept for a day."""
    status: PlanStatus
    """`QUEUED`: waits for the plan before it. `RUNNING`: is measured on the cluster, where it may
    wait for free CPUs. `SUCCEEDED`, `FAILED` and `CANCELLED` are final.
    """
    message: str
    """Why it failed; empty otherwise."""
    created_at: datetime
    """Time of the request."""
    compute_s: float | None = None
    """Seconds of one worker's step without exchanges, as measured; null until it succeeded."""
    predictions: list[PredictionView] = Field(default_factory=list)
    """Every method and level, the fastest first; empty until it succeeded."""
    local_steps: PlannedRoundsView | None = None
    """Rounds of the spec's `local_steps`; null without them, and until it succeeded."""
    shard_bytes: int | None = None
    """Bytes of parameters that each worker holds, if workers hold the model together; its
    gradients, each moment of the optimizer and a residual take as much. Null otherwise, and until
    it succeeded.
    """
    runs: list[PlannedRunView] = Field(default_factory=list)
    """The whole job; twice, all low and all high, if something is decided in the job. Empty until
    it succeeded.
    """
