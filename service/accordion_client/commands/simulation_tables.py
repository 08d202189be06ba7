"""What simulated runs learned and sent, by seed and by epoch; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from accordion_client.commands.cli_support import create_table
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.domain.performance.metric_goals import choose_main_metric
from accordion_service.schemas.format import format_duration, format_metric, format_number

if TYPE_CHECKING:
    from rich.table import Table

    from accordion_workers.records.contract import EpochRecord
    from accordion_workers.simulation.simulated_runs import SimulatedRun

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
    seconds: float
    """Seconds of training, in which the workers took turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """An epoch, as a mean over the seeds that finished it."""

    epoch: int
    metric: float | None
    loss: float | None
    lr: float
    wire: float
    layers_by_level: Mapping[str, float]
    """Mean number of layers at each level at its end."""
    local_steps: float
    """Steps of a round at its end; 1 if gradients are exchanged in every step."""
    agreement: float | None
    """Agreement of the workers in its last window."""
    global_batch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationView:
    """Runs of one simulation."""

    name: str
    workers: int
    metric_name: str | None
    seeds: Sequence[SeedResult]
    epochs: Sequence[EpochResult]

    @classmethod
    def of_runs(cls, runs: Sequence[tuple[SimulatedRun, Sequence[EpochRecord]]]) -> SimulationView:
        """Return the view of runs with their epochs."""
        first = runs[0][0]
        names = dict.fromkeys(name for _, rows in runs for row in rows for name in row.metrics)
        metric = choose_main_metric(names, first.spec)
        rows = {row.epoch for _, epochs in runs for row in epochs}
        return cls(
            name=first.name,
            workers=first.workers,
            metric_name=metric,
            seeds=[_summarize(run, epochs, metric) for run, epochs in runs],
            epochs=[
                _average_epoch(
                    [one for _, all_ in runs for one in all_ if one.epoch == row], metric
                )
                for row in sorted(rows)
            ],
        )

    def tables(self) -> Iterator[Table | str]:
        """Yield the tables of epochs and seeds, with a line before and after; nothing if no seed
        has trained an epoch.
        """
        if not any(row.epochs for row in self.seeds):
            return
        yield f"{self.name}, {self.workers} simulated worker{'s' if self.workers > 1 else ''}"
        if self.epochs:
            yield self._tabulate_epochs()
            yield ""
        yield self._tabulate_seeds()
        yield "sent: bytes of one worker on the wire; against none: how many times fewer"

    def _tabulate_epochs(self) -> Table:
        table = create_table(
            "EPOCH", *self._metric_header(), "TRAINING LOSS", "RATE", "BATCH", "LAYERS BY LEVEL",
            "AGREEMENT", "LOCAL STEPS", "SENT",
        )  # fmt: skip
        for row in self.epochs:
            levels = (f"{name} {count:g}" for name, count in row.layers_by_level.items())
            table.add_row(
                str(row.epoch),
                *self._metric_cell(row.metric),
                format_number(row.loss),
                format_number(row.lr, 3),
                f"{row.global_batch:g}",
                ", ".join(levels),
                format_number(row.agreement, 2),
                f"{row.local_steps:g}",
                format_bytes(row.wire),
            )
        return table

    def _tabulate_seeds(self) -> Table:
        table = create_table(
            "SEED", "EPOCHS", *self._metric_header(), "TRAINING LOSS", "SENT", "AGAINST NONE",
            "PAYLOAD", "TIME",
        )  # fmt: skip
        for row in self.seeds:
            table.add_row(
                str(row.seed),
                str(row.epochs),
                *self._metric_cell(row.metric),
                format_number(row.loss),
                format_bytes(row.wire),
                _format_ratio(row),
                format_bytes(row.payload),
                format_duration(row.seconds),
            )
        whole = [row for row in self.seeds if row.status == "SUCCEEDED"]
        if len(whole) > 1:
            name = self.metric_name
            cells = [format_interval([row.metric for row in whole], name)] if name else []
            table.add_row(
                "mean",
                "",
                *cells,
                format_interval([row.loss for row in whole], "loss"),
                format_bytes(fmean(row.wire for row in whole)),
                "",
                format_bytes(fmean(row.payload for row in whole)),
                "",
            )
        return table

    def _metric_header(self) -> list[str]:
        return [] if self.metric_name is None else [self.metric_name.upper()]

    def _metric_cell(self, value: float | None) -> list[str]:
        return [] if self.metric_name is None else [format_metric(self.metric_name, value)]


def compute_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of independent values, and half of its interval of 95 % by Student's t."""
    if len(values) < 2:
        return fmean(values), math.inf
    freedom = len(values) - 1
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL_QUANTILE
    return fmean(values), quantile * stdev(values) / math.sqrt(len(values))


def format_interval(values: Sequence[float | None], metric: str) -> str:
    """Return the mean of a metric over seeds with its interval of 95 %; `-` without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, half = compute_interval(known)
    if math.isinf(half):
        return format_metric(metric, mean)
    if metric == "accuracy":
        return f"{100 * mean:.1f} ±{100 * half:.1f} %"
    return f"{format_number(mean)} ±{half:.2g}"


def _summarize(run: SimulatedRun, epochs: Sequence[EpochRecord], metric: str | None) -> SeedResult:
    values = [row.metrics[metric] for row in epochs if metric in row.metrics]
    return SeedResult(
        seed=run.seed,
        status=run.status,
        epochs=len(epochs),
        metric=values[-1] if values else None,
        loss=epochs[-1].loss if epochs else None,
        wire=sum(row.bytes.wire for row in epochs),
        dense_wire=sum(row.bytes.dense_wire for row in epochs),
        payload=sum(row.bytes.payload for row in epochs),
        seconds=sum(sum(row.seconds_by_phase.values()) for row in epochs),
    )


def _average_epoch(rows: Sequence[EpochRecord], metric: str | None) -> EpochResult:
    levels = Counter(level for row in rows for level in row.level_by_layer.values())
    return EpochResult(
        epoch=rows[0].epoch,
        metric=_mean([row.metrics.get(metric) for row in rows] if metric else []),
        loss=_mean([row.loss for row in rows]),
        lr=fmean(row.lr for row in rows),
        wire=fmean(row.bytes.wire for row in rows),
        layers_by_level={name: count / len(rows) for name, count in sorted(levels.items())},
        local_steps=fmean(row.local_steps for row in rows),
        agreement=_mean([row.agreement for row in rows]),
        global_batch=fmean(row.global_batch for row in rows),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _format_ratio(row: SeedResult) -> str:
    return f"{row.dense_wire / row.wire:.3g}x" if row.wire else "-"
