"""Overrides: requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from accordion.messages import Ack, OptionValue
from service.api.schemas import PLAIN, PLAIN_LINES, Answer, Request
from workers.contract import MOST_SAMPLES


class OverrideRequest(Request):
    """A person's decision: which layers, how hard, or how large the batch; from when, until
    when.
    """

    target: Literal["compression", "batch"] = "compression"
    level: (
        Annotated[str, Field(min_length=1, max_length=64)]
        | Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
        | dict[str, OptionValue]
    )
    """`low`, `high`, a rung's index (0 is the lightest) or options such as `{"rank": 2}` or
    `{"method": "none"}`.

    Of the batch: `low`, `high`, or samples a step.
    """
    layers: list[Annotated[str, Field(min_length=1, max_length=512, pattern=PLAIN)]] = Field(
        default=["*"], min_length=1, max_length=256
    )
    """Globs over layer names; left out for the batch, which is one for the whole model."""
    apply_at: Literal["next_step", "next_epoch"] | Annotated[int, Field(ge=0, le=100_000)] = (
        "next_step"
    )
    """When it starts; a number is an epoch, counted from 0."""
    until: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """First epoch that belongs to the policy again; null holds for the rest of the job."""
    reason: str = Field(default="", max_length=1000, pattern=PLAIN_LINES)

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"level": "low"},
                {
                    "level": {"method": "none"},
                    "layers": ["*"],
                    "apply_at": "next_epoch",
                    "reason": "the loss jumped",
                },
                {"target": "batch", "level": "high", "until": 100},
            ]
        }
    )


OverrideState = Literal[
    "PENDING", "DELIVERED", "APPLIED", "REJECTED", "SUPERSEDED", "EXPIRED", "CANCELLED"
]


class OverrideView(Answer):
    """An override and its status."""

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
    """Epoch in which it took effect. Worker groups that take over later leave it as it is."""
    step: int | None
    world_size: int | None
    """World size of the worker group that runs it now."""
    acks: int
    """Ranks that said, from their own hook, that they run the announced plan."""
    ack_list: list[Ack]
    created_at: datetime
    applied_at: datetime | None


class OverrideList(Answer):
    """All overrides of a job, oldest first."""

    items: list[OverrideView]
