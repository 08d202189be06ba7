"""What a job will do in its epochs, as `accordion plan` shows it; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from accordion_client.commands.cli_support import create_table
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.schemas.format import format_number, format_rounded

if TYPE_CHECKING:
    from rich.table import Table


def describe_runs(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yield the tables of a job's epochs, each with a line before and after it."""
    for run in answer["runs"]:
        yield ""
        assumed = f", with {run['assumed']}" if run["assumed"] else ""
        yield f"the job from its start to its end{assumed}"
        yield _tabulate_epochs(run)
        yield _describe_total(run)
    if len(answer["runs"]) > 1:
        yield "what is assumed is decided in the job, which sends something between these"
    if answer["runs"]:
        whose = "worker" if answer["shard_bytes"] is None else "replica"
        yield (
            f"sent: bytes of one {whose} on the wire, without decisions, acknowledgements and"
            " running statistics"
        )


def _tabulate_epochs(run: Mapping[str, Any]) -> Table:
    table = create_table(
        "EPOCHS", "RATE", "BATCH", "STEPS", "LAYERS BY LEVEL", "LOCAL STEPS", "EXCHANGES", "SENT"
    )
    for row in run["epochs"]:
        levels = (f"{name} {count}" for name, count in row["layers_by_level"].items())
        table.add_row(
            _format_range(str(row["epoch"]), str(row["epoch"] + row["epochs"] - 1)),
            _format_range(format_number(row["lr"], 3), format_number(row["last_lr"], 3)),
            str(row["global_batch"]),
            str(row["steps"]),
            ", ".join(levels) or "any",
            ", then ".join(map(str, row["local_steps"])),
            str(row["exchanges"]),
            format_bytes(row["sent_bytes"]),
        )
    return table


def _format_range(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _describe_total(run: Mapping[str, Any]) -> str:
    sent, dense, control = run["sent_bytes"], run["uncompressed_bytes"], run["control_bytes"]
    if not sent:
        return "nothing is sent"
    return (
        f"{format_bytes(sent)} in all, {format_rounded(dense / sent)} times fewer than without"
        f" compression in every step; {format_bytes(control)} of it are signals and sums of windows"
    )
