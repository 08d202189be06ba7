"""Records of a guest run, built from its session; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import Any, Literal

from pydantic import ValidationError

from accordion.base.messages import Decision
from accordion.config import Config
from accordion.session.optimizer_steps import Optimizers, list_optimizers
from accordion.session.session import Session
from accordion.session.step_results import Switch
from accordion_ray.identity import GuestState
from accordion_workers.records.contract import Bytes, JobSpec, Started
from accordion_workers.spec.workers import MIN_SHARE
from accordion_workers.tasks import GUEST

_LOSS_METRICS = ("train_loss", "loss")
"""Names under which scripts report the mean loss of an epoch, the first found counts."""
_LONGEST_NAME = 63


def make_label(name: str) -> str:
    """Return a name that the service accepts: other characters become hyphens, the end is cut."""
    label = re.sub(r"[^A-Za-z0-9._/-]+", "-", name)[:_LONGEST_NAME].strip("._/-")
    return label or GUEST


def known_spec(
    config: Config, *, name: str, world_size: int, global_batch: int, resources: Mapping[str, float]
) -> JobSpec:
    """Return a spec in which only the fields that are known of a guest run are set.

    A value that the service does not take, such as more than 1,024 workers, stays unknown to it.

    Raises:
        ValidationError: the service does not take the name.
    """
    workers: dict[str, Any] = {"min": world_size, "max": world_size}
    if resources.get("CPU", 0.0) >= MIN_SHARE:
        workers["cpus"] = resources["CPU"]
    if float(resources.get("GPU", 0.0)).is_integer():
        workers["gpus"] = resources.get("GPU", 0.0)
    training = {"seed": config.seed} | ({"global_batch": global_batch} if global_batch else {})
    known: dict[str, Any] = {
        "name": name,
        "task": {"name": GUEST},
        "workers": workers,
        "training": training,
        **_known_settings(config),
    }
    while True:
        try:
            return JobSpec.model_validate(known)
        except ValidationError as error:
            refused = {problem["loc"][:2] for problem in error.errors()}
            if not refused or ("name",) in refused or () in refused:
                raise
            rest = _leave_out(known, refused)
            if rest == known:
                raise
            known = rest


def _known_settings(config: Config) -> dict[str, Any]:
    low, high = (dict(level.options) for level in _ends_of_ladder(config))
    detector, window = config.detector, config.detector.window_in_force
    local = {} if config.local_steps is None else {"local_steps": asdict(config.local_steps)}
    return {
        **local,
        "compression": {
            "method": config.method,
            "low": low,
            "high": high,
            "buckets_per_exchange": config.buckets_per_exchange,
            "warm_up": config.warm_up and asdict(config.warm_up),
        },
        "policy": {
            "name": config.policy,
            "threshold": detector.threshold,
            "window": {key: value for key, value in asdict(window).items() if value is not None},
            "lr_drop": detector.lr_drop,
            "statistic": detector.statistic,
            "options": dict(config.policy_options),
        },
    }


def _leave_out(known: Mapping[str, Any], refused: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Return a spec without the given `(section,)` or `(section, field)` entries."""
    rest = {
        section: dict(value) if isinstance(value, dict) else value
        for section, value in known.items()
    }
    for section, *field_name in refused:
        if field_name and field_name[0] in rest.get(section, {}):
            del rest[section][field_name[0]]
        else:
            rest.pop(section, None)
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """Session, optimizers and settings of `attach` on one rank."""

    session: Session
    optimizer: Optimizers
    parameters: int
    """Number of trained values."""
    steps_per_epoch: int | None = None
    """Steps after which an epoch ends; None if epochs end with `ray.train.report`."""
    resumed_from: str | None = None
    """Name of the checkpoint whose state the session has loaded; None if it has loaded none."""

    def rate(self) -> float:
        """Return the learning rate of the first optimizer's first group."""
        rate = list_optimizers(self.optimizer)[0].param_groups[0].get("lr")
        return float(rate or 0.0)  # None in some Adafactors


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of a session since the start of the run."""

    bytes: Bytes = field(default_factory=Bytes)
    steps: int = 0
    skipped_steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase since `attach`."""

    def since(self, before: Totals) -> Totals:
        """Return what was counted after another moment."""
        return replace(
            self,
            bytes=self.bytes.since(before.bytes),
            steps=self.steps - before.steps,
            skipped_steps=self.skipped_steps - before.skipped_steps,
            seconds={
                phase: value - before.seconds.get(phase, 0.0)
                for phase, value in self.seconds.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEpoch:
    """An epoch that has ended on all ranks."""

    epoch: int
    decision: Decision
    """Decision in force at the end of the epoch."""
    switch: Switch
    """The switch to the decision of the next epoch."""
    lr: float
    """Learning rate of the last step."""
    totals: Totals
    """Counts of the session at the end of the epoch."""


def build_started_record(attached: Attached, before: GuestState, *, now: float) -> Started:
    """Return the record that a worker group begins with, given what the group before it left."""
    session = attached.session
    cause: Literal["start", "resize", "recovery"] = "start"
    if before.world_size:
        is_resized = session.world_size > before.world_size and not before.failed
        cause = "resize" if is_resized else "recovery"
    return Started(
        world_size=session.world_size,
        epoch=session.epoch,
        step=session.steps,
        resumed_from=attached.resumed_from,
        steps_per_epoch=attached.steps_per_epoch or 0,
        layers=session.layers,
        parameters=attached.parameters,
        cause=cause,
        previous_world_size=before.world_size,
        seconds_lost=max(0.0, now - before.stepped_at) if before.stepped_at else 0.0,
        steps_rolled_back=max(0, before.step - session.steps),
    )


def keep_finite_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among the metrics of `ray.train.report`."""
    given = {str(name): value for name, value in metrics.items() if isinstance(value, Real)}
    numbers = {
        name: _to_float(value) for name, value in given.items() if not isinstance(value, bool)
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def find_loss(metrics: Mapping[str, float]) -> float | None:
    """Return the training loss among the metrics, by its name; None without one."""
    return next((metrics[name] for name in _LOSS_METRICS if name in metrics), None)


def is_last_failure(failures: int, max_failures: int) -> bool:
    """Return whether Ray Train gives up after one more failure than were recorded.

    Ray Train counts failures that were never recorded, too, so it may give up earlier than this
    says.
    """
    return 0 <= max_failures <= failures


def read_totals(session: Session, seconds: Mapping[str, float]) -> Totals:
    """Return what the session has counted so far."""
    return Totals(
        bytes=Bytes(**session.ledger.summarize()),
        steps=session.steps,
        skipped_steps=session.skipped_steps,
        seconds=dict(seconds),
    )


def _ends_of_ladder(config: Config) -> tuple[Any, Any]:
    ladder = config.ladder()
    return ladder[0], ladder[-1]


def _to_float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
