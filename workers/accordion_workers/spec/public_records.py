"""Records of the workers that the REST API shows as they are, so that each field has a description.

Loads pydantic, but neither ray, torch nor the specification of a job: the command line reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from accordion_workers.common.plain_text import clean_texts
from accordion_workers.spec.types import Strict


class Reported(Strict):
    """Base of records with text from a job's own code: NUL and lone surrogates are replaced."""

    @model_validator(mode="before")
    @classmethod
    def _clean_texts(cls, data: Any) -> Any:
        return clean_texts(data)


class Bytes(Strict):
    """Bytes of one worker over some steps, all layers."""

    payload: int = 0
    """Bytes that this worker passed to the network, also in a group of one, which sends nothing."""
    wire: int = 0
    """Bytes that this worker's interface sends, on average over the workers: 2(W-1)/W times the
    payload of an all-reduce, W-1 times that of an all-gather, (W-1)/W times that of an all-to-all.
    """
    dense: int = 0
    """Payload of the same gradients uncompressed in fp32."""
    fp16: int = 0
    """Payload of the same gradients uncompressed in fp16."""
    dense_wire: int = 0
    """`wire` of the same gradients uncompressed in fp32; in fp16 it is half of it."""
    control_wire: int = 0
    """Part of `wire` that is no gradient: step signals, statistics, decisions, probes of the link
    and states that rank 0 collects.
    """

    payload_by_method: dict[str, int] = Field(default_factory=dict)
    """Parts of `payload`: gradients by the name of their method, such as `powersgd`; changes of
    parameters by local steps as `powersgd (local steps)`; and `(control)`. Empty if unknown.
    """
    wire_by_method: dict[str, int] = Field(default_factory=dict)
    """Parts of `wire`, under the names that `payload_by_method` has."""

    def totals(self) -> dict[str, int]:
        """Return the counts over all methods, by name."""
        return {name: value for name, value in self if isinstance(value, int)}

    @classmethod
    def add_up(cls, parts: Iterable[Bytes]) -> Bytes:
        """Return the bytes of several intervals together."""
        totals, payload, wire = Counter[str](), Counter[str](), Counter[str]()
        for one in parts:
            totals.update(one.totals())
            payload.update(one.payload_by_method)
            wire.update(one.wire_by_method)
        return cls(**totals, payload_by_method=dict(payload), wire_by_method=dict(wire))

    def since(self, before: Bytes) -> Bytes:
        """Return the bytes that were counted after an earlier moment."""
        return Bytes(
            **{name: value - getattr(before, name) for name, value in self.totals().items()},
            payload_by_method=_subtract(self.payload_by_method, before.payload_by_method),
            wire_by_method=_subtract(self.wire_by_method, before.wire_by_method),
        )


def _subtract(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    grown = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in grown.items() if count}


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
    local_steps: int = 1
    """Optimizer steps that each worker took between two exchanges at the end of the epoch; 1 if
    gradients were exchanged in every step.
    """
    samples: int
    """Training samples of the epoch; 0 if unknown, as in most guest runs."""
    skipped_steps: int = 0
    """Steps skipped because a gradient was not finite; in rounds of local steps, which a worker
    skips alone, those of the worker that skipped most.
    """
    seconds_by_phase: dict[str, float]
    """Seconds that rank 0 spent in each phase: `load` (data), `compute`, `encode` (gradients),
    `communicate`, `optimize`, `evaluate`, `checkpoint`, `decide`, `wait` (`min_step_s`).
    """
    bytes: Bytes
    """Bytes of one worker in this epoch."""
    statistic_by_layer: dict[str, float] | None = None
    """Gradient statistic of the window that ended with this epoch, by layer; null if none ended."""
    agreement: float | None = None
    """Agreement of the workers over the window that ended last in the epoch: 1 if the sums of their
    gradients, or of their changes by local steps, point the same way, 0 within noise if only noise
    is left; null if none ended, with one worker, or if workers changed within the window.
    """
    regime_by_layer: dict[str, Literal["critical", "stable"]]
    """Regime at the end of the epoch, by layer."""
    level_by_layer: dict[str, str]
    """Name of the compression level at the end of the epoch, by layer."""


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


class Package(Strict):
    """One package that a job installs."""

    name: str
    """Name of the package."""
    version: str
    """Version of the package."""
