"""Reads back what loggers of each kind have, with the packages' own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accordion_service.store.tables.models import LoggerRow

LOSS = "train/loss"
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Packages that reading needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What a logger has of a job."""

    losses: list[tuple[int, float]]
    """Epochs and training losses, in the order of epochs; one that is there twice is listed twice.
    """
    params: Mapping[str, str]
    status: str
    """FINISHED, FAILED or KILLED; RUNNING before; empty where the kind has no status."""


def read_tensorboard(row: LoggerRow) -> StoredRun:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(row.location).Reload()
    [*_, table] = events.Tensors("spec/text_summary")
    lines = table.tensor_proto.string_val[0].decode().splitlines()[2:]
    params = dict(line.strip("| ").split(" | ", 1) for line in lines)
    losses = [(event.step, event.value) for event in events.Scalars(LOSS)]
    return StoredRun(losses=losses, params=params, status="")


def read_mlflow(row: LoggerRow) -> StoredRun:
    from mlflow import MlflowClient

    client = MlflowClient(row.location)
    [experiment] = [one for one in client.search_experiments() if one.name == "digits"]
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == row.run_id
    history = client.get_metric_history(run.info.run_id, LOSS)
    losses = sorted((metric.step, metric.value) for metric in history)
    return StoredRun(losses=losses, params=run.data.params, status=run.info.status)


def read_wandb(row: LoggerRow) -> StoredRun:
    from accordion_service.loggers.wandb_files import read_records

    files = sorted(Path(row.location).parent.rglob("run-*.wandb"))
    records = [record for file in files for record in read_records(file.read_bytes())]
    rows = [_values_of(record.history.item) for record in records if record.HasField("history")]
    [config, *_] = [record.run.config.update for record in records if record.HasField("run")]
    codes = [record.exit.exit_code for record in records if record.HasField("exit")]
    return StoredRun(
        losses=sorted((int(values["_step"]), float(values[LOSS])) for values in rows),
        params={item.key: item.value_json.strip('"') for item in config},
        status={0: "FINISHED", 1: "FAILED", 255: "KILLED"}[codes[-1]],
    )


READERS: dict[str, Callable[[LoggerRow], StoredRun]] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


def _values_of(items: Any) -> dict[str, str]:
    return {item.key or "/".join(item.nested_key): item.value_json for item in items}
