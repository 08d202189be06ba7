"""The kinds of loggers, one file each. A new kind is a part of the spec
(`accordion_workers/spec/loggers.py`), a file here, a row in `SINKS`, and a row in the tests that
run over all kinds.

Only the process that serves loggers imports those files: they load heavy packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRow:
    """One kind of logger."""

    sink: str
    """Class of `accordion_service.loggers.sink.Sink`, as `module:Class`."""
    install: str
    """What `pip install` needs, if a package is missing."""
    interval_s: float
    """Seconds between two turns of a logger; the epochs of that time are sent together."""


SINKS: Mapping[str, SinkRow] = {
    "tensorboard": SinkRow(
        sink="accordion_service.loggers.tensorboard_sink:TensorboardSink",
        install="tensorboardX",
        interval_s=5.0,
    ),
    "mlflow": SinkRow(
        sink="accordion_service.loggers.mlflow_sink:MlflowSink",
        install="mlflow-skinny",
        interval_s=10.0,
    ),
    "wandb": SinkRow(
        sink="accordion_service.loggers.wandb_sink:WandbSink", install="wandb", interval_s=60.0
    ),
}
"""Kinds of loggers, by `kind` in the spec."""
