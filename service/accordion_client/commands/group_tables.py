"""What groups of runs learned and sent, as texts: by epoch, by seed and by method; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from accordion_client.commands.cli_support import create_table
from accordion_client.commands.run_groups import (
    EpochResult,
    RunGroup,
    SeedResult,
    format_interval,
)
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.schemas.format import (
    METHODS_COLUMNS,
    format_duration,
    format_methods,
    format_metric,
    format_number,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Columns by name, and rows of as many texts."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_group(group: RunGroup) -> Iterator[Table | str]:
    """Yield what the terminal shows of a simulation, tables and lines between them; nothing if no
    seed has trained an epoch.
    """
    if not group.epochs:
        return
    yield f"{group.name}, {group.workers} simulated worker{'s' if group.workers > 1 else ''}"
    for table in (list_epochs(group), list_seeds(group), list_methods(group)):
        shown = create_table(*map(str.upper, table.columns))
        for row in table.rows:
            shown.add_row(*row)
        yield shown
        yield ""
    yield "sent: bytes of one worker on the wire; against none: how many times fewer"


def list_epochs(group: RunGroup) -> TextTable:
    """Return the epochs, each as a mean over its seeds."""
    return TextTable(
        columns=(
            *("Epoch", *_list_metric(group), "Training loss", "Rate", "Batch", "Layers by level"),
            *("Agreement", "Local steps", "Sent"),
        ),
        rows=[_describe_epoch(row, group.metric_name) for row in group.epochs],
    )


def _describe_epoch(row: EpochResult, metric: str | None) -> tuple[str, ...]:
    levels = (f"{name} {count:.3g}" for name, count in row.layers_by_level.items())
    return (
        str(row.epoch),
        *([] if metric is None else [format_metric(metric, row.metric)]),
        format_number(row.loss),
        format_number(row.lr, 3),
        f"{row.global_batch:g}",
        ", ".join(levels),
        format_number(row.agreement, 2),
        f"{row.local_steps:g}",
        format_bytes(row.wire),
    )


def list_seeds(group: RunGroup) -> TextTable:
    """Return the runs, and the mean of those that trained to their end if there are several."""
    rows = [_describe_seed(row, group.metric_name) for row in group.seeds]
    if len(group.whole) > 1:
        rows.append(_describe_mean(group))
    names = _list_metric(group)
    return TextTable(
        columns=(
            *("Seed", "State", "Epochs", *names, "Training loss", "Sent", "Against none"),
            *("Payload", "Time"),
        ),
        rows=rows,
    )


def _describe_seed(row: SeedResult, metric: str | None) -> tuple[str, ...]:
    return (
        str(row.seed),
        row.status,
        str(row.epochs),
        *([] if metric is None else [format_metric(metric, row.metric)]),
        format_number(row.loss),
        format_bytes(row.wire),
        f"{row.dense_wire / row.wire:.3g}x" if row.dense_wire and row.wire else "-",
        format_bytes(row.payload),
        format_duration(row.seconds),
    )


def _describe_mean(group: RunGroup) -> tuple[str, ...]:
    rows, metric = group.whole, group.metric_name
    sent, dense = fmean(row.wire for row in rows), fmean(row.dense_wire for row in rows)
    return (
        "mean",
        "",
        "",
        *([] if metric is None else [format_interval([row.metric for row in rows], metric)]),
        format_interval([row.loss for row in rows], "loss"),
        format_bytes(sent),
        f"{dense / sent:.3g}x" if sent else "-",
        format_bytes(fmean(row.payload for row in rows)),
        "",
    )


def list_methods(group: RunGroup) -> TextTable:
    """Return what each method sent, as a mean over the runs."""
    sent = group.average_methods()
    payload = {name: both[0] for name, both in sent.items()}
    wire = {name: both[1] for name, both in sent.items()}
    return TextTable(columns=METHODS_COLUMNS, rows=format_methods(payload, wire))


def _list_metric(group: RunGroup) -> list[str]:
    return [] if group.metric_name is None else [group.metric_name]
