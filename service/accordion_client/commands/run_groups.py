"""Runs of one spec with several seeds, or a single job: what each learned and sent, and the mean by
epoch; pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from accordion_client.commands.compared_history import ComparedEpoch, ComparedHistory
from accordion_client.commands.comparison import choose_metric
from accordion_service.schemas.format import format_metric, format_number, is_accuracy
from accordion_workers.spec.public_records import Bytes

_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantiles of Student's t distribution for an interval of 95 %, from one degree of freedom on."""
_NORMAL_QUANTILE = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What one run learned and sent."""

    seed: int
    status: str
    epochs: int
    metric: float | None
    """Value after the newest epoch that was evaluated."""
    loss: float | None
    """Training loss of the newest epoch."""
    wire: int
    """Bytes that a worker sent on the wire."""
    dense_wire: int
    """Bytes that it would have sent there without compression."""
    payload: int
    wire_by_method: Mapping[str, int]
    """Parts of `wire`, as in a record of bytes."""
    payload_by_method: Mapping[str, int]
    """Parts of `payload`, under the same names."""
    seconds: float
    """Seconds of training, in which simulated workers took turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """An epoch, as a mean over the seeds that finished it.

    Each `_half` is half of the 95 % interval of the mean; None for fewer than two values.
    """

    epoch: int
    metric: float | None
    metric_half: float | None
    loss: float | None
    loss_half: float | None
    lr: float
    wire: float
    wire_half: float | None
    layers_by_level: Mapping[str, float]
    """Mean number of layers at each level at its end."""
    local_steps: float
    """Steps of a round at its end; 1 if gradients are exchanged in every step."""
    agreement: float | None
    """Agreement of the workers in its last window."""
    global_batch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of one simulation, each with its own seed, or one job."""

    name: str
    workers: int
    metric_name: str | None
    seeds: Sequence[SeedResult]
    epochs: Sequence[EpochResult]

    @classmethod
    def of_histories(
        cls,
        name: str,
        histories: Sequence[ComparedHistory],
        *,
        workers: int,
        metric: str | None = None,
    ) -> RunGroup:
        """Return the group of runs; without a metric, by the one that tells most."""
        chosen = metric or choose_metric(histories, None)
        numbers = sorted({row.epoch for one in histories for row in one.epochs})
        return cls(
            name=name,
            workers=workers,
            metric_name=chosen,
            seeds=[_summarize(one, chosen) for one in histories],
            epochs=[
                _average_epoch(
                    [row for one in histories for row in one.epochs if row.epoch == number], chosen
                )
                for number in numbers
            ],
        )

    @property
    def whole(self) -> list[SeedResult]:
        """Runs that trained to their end."""
        return [one for one in self.seeds if one.status == "SUCCEEDED"]

    @property
    def counted(self) -> list[SeedResult]:
        """Runs of which means are taken: those that trained to their end; if there are none, those
        with an epoch.
        """
        return self.whole or [one for one in self.seeds if one.epochs]

    def average_methods(self) -> dict[str, tuple[float, float]]:
        """Return the mean payload and wire bytes of a run by method."""
        counted = self.counted
        names = dict.fromkeys(name for one in counted for name in one.payload_by_method)
        return {
            name: (
                fmean(one.payload_by_method.get(name, 0) for one in counted),
                fmean(one.wire_by_method.get(name, 0) for one in counted),
            )
            for name in names
        }


def compute_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of independent values, and half of its interval of 95 % by Student's t."""
    if len(values) < 2:
        return fmean(values), math.inf
    freedom = len(values) - 1
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL_QUANTILE
    return fmean(values), quantile * stdev(values) / math.sqrt(len(values))


def format_interval(values: Iterable[float | None], metric: str) -> str:
    """Return the mean of a metric over seeds with its interval of 95 %; `-` without values."""
    mean, half = _average(values)
    if mean is None or half is None:
        return format_metric(metric, mean)
    if is_accuracy(metric) and mean <= 1:
        return f"{100 * mean:.1f} ±{100 * half:.1f} %"
    return f"{format_number(mean)} ±{half:.2g}"


def _summarize(history: ComparedHistory, metric: str | None) -> SeedResult:
    job, epochs = history.job, history.epochs
    values = [row.metrics[metric] for row in epochs if metric and metric in row.metrics]
    training, sent = job.spec.get("training"), Bytes.add_up(row.bytes for row in epochs)
    return SeedResult(
        seed=training.get("seed", 0) if isinstance(training, Mapping) else 0,
        status=job.status.value,
        epochs=len(epochs),
        metric=values[-1] if values else None,
        loss=epochs[-1].loss if epochs else None,
        wire=sent.wire,
        dense_wire=sent.dense_wire,
        payload=sent.payload,
        wire_by_method=sent.wire_by_method,
        payload_by_method=sent.payload_by_method,
        seconds=sum(sum(row.seconds_by_phase.values()) for row in epochs),
    )


def _average_epoch(rows: Sequence[ComparedEpoch], metric: str | None) -> EpochResult:
    levels: Counter[str] = Counter()
    for row in rows:
        levels.update(row.layers_by_level)
    value, value_half = _average(row.metrics.get(metric) for row in rows if metric)
    loss, loss_half = _average(row.loss for row in rows)
    return EpochResult(
        epoch=rows[0].epoch,
        metric=value,
        metric_half=value_half,
        loss=loss,
        loss_half=loss_half,
        lr=fmean(row.lr for row in rows),
        wire=fmean(row.bytes.wire for row in rows),
        wire_half=_average(row.bytes.wire for row in rows)[1],
        layers_by_level={name: count / len(rows) for name, count in sorted(levels.items())},
        local_steps=fmean(row.local_steps for row in rows),
        agreement=_average(row.agreement for row in rows)[0],
        global_batch=fmean(row.global_batch for row in rows),
    )


def _average(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Return the mean of the known values and half of its interval; None where there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None, None
    mean, half = compute_interval(known)
    return mean, half if math.isfinite(half) else None
