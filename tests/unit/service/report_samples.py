"""Jobs and their histories for tests of reports and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from accordion.base.messages import Decision, Level
from accordion_service.api.dashboard.report_content import ReportSource
from accordion_service.domain.performance.elasticity import ElasticityStats
from accordion_service.schemas.jobs import (
    AttemptView,
    BatchSchedule,
    DecisionView,
    EpochView,
    JobView,
    LayerSchedule,
    ScheduleView,
)
from accordion_service.schemas.overrides import OverrideView
from accordion_service.schemas.why import WhyView

BEGIN = datetime(2026, 11, 25, 12, tzinfo=UTC)
LAYERS = ("fc1.weight", "fc2.weight")
STEPS = 23
"""Steps of an epoch."""
EPOCH_S = 2.0
SPEC: dict[str, Any] = {
    "name": "digits",
    "task": {"name": "digits-mlp", "options": {"hidden": 512}},
    "training": {"epochs": 20, "optimizer": {"name": "sgd", "lr": 0.1}},
    "compression": {"method": "powersgd", "low": {"rank": 4}, "high": {"rank": 1}},
    "policy": {"name": "two_level", "threshold": 0.5},
    "labels": {"team": "vision"},
}


def make_epoch(number: int, **changes: Any) -> EpochView:
    sent = {"payload": 1000, "wire": 2000, "dense": 8000, "fp16": 4000}
    record = {
        "epoch": number,
        "step": STEPS * (number + 1),
        "world_size": 2,
        "loss": 1.0 / (number + 1),
        "metrics": {"loss": 1.1 / (number + 1), "accuracy": 1.0 - 0.5 / (number + 1)},
        "lr": 0.1,
        "global_batch": 64,
        "samples": 1437,
        "seconds_by_phase": {"compute": 0.75 * EPOCH_S, "communicate": 0.25 * EPOCH_S},
        "bytes": sent,
        "regime_by_layer": dict.fromkeys(LAYERS, "stable"),
        "level_by_layer": dict.fromkeys(LAYERS, "high"),
        "attempt": 1,
        "generation": 1,
    }
    return EpochView.model_validate({**record, **changes})


def make_decision(epoch: int, **changes: Any) -> DecisionView:
    decision: dict[str, Any] = {
        "epoch": epoch,
        "step": STEPS * epoch,
        "cause": "window",
        "reason": "no layer changed",
        "regime_by_layer": dict.fromkeys(LAYERS, "stable"),
        "level_by_layer": dict.fromkeys(LAYERS, Level(name="high", method="powersgd")),
        "change_by_layer": dict.fromkeys(LAYERS, 0.25),
    }
    return DecisionView(
        attempt=1, generation=1, time=BEGIN, decision=Decision(**{**decision, **changes})
    )


def make_job(epochs: int, **changes: Any) -> JobView:
    """A job that has succeeded after so many epochs."""
    sizes = {"payload": 1000, "wire": 2000, "dense": 8000, "dense_wire": 8000}
    sent = {name: epochs * size for name, size in sizes.items()}
    progress = {
        "epoch": epochs,
        "epochs": epochs,
        "step": STEPS * epochs,
        "steps": STEPS * epochs,
        "samples_per_s": 700.0,
        "eta_s": 0.0,
        "loss": 0.1,
        "lr": 0.1,
        "bytes": sent,
        "updated_at": BEGIN,
    }
    job = {
        "id": "00000000-0000-7000-8000-000000000001",
        "name": "digits",
        "owner": "ada",
        "status": "SUCCEEDED",
        "desired": "RUN",
        "reason": "COMPLETED",
        "message": "",
        "spec": SPEC,
        "labels": SPEC["labels"],
        "priority": 50,
        "attempt": 1,
        "world_size": 0,
        "workers": 0,
        "min_workers": 1,
        "max_workers": 2,
        "tally": ElasticityStats(),
        "metrics": {},
        "progress": progress if epochs else None,
        "created_at": BEGIN,
        "started_at": BEGIN,
        "ended_at": BEGIN + timedelta(seconds=90),
    }
    return JobView.model_validate({**job, **changes})


def make_override(number: int, **changes: Any) -> OverrideView:
    override = {
        "id": f"00000000-0000-7000-8000-0000000000a{number}",
        "number": number,
        "target": "compression",
        "level": "low",
        "layers": ["*"],
        "apply_at": "next_step",
        "until": None,
        "reason": "the loss jumped",
        "requested_by": "bob",
        "state": "APPLIED",
        "message": "",
        "epoch": 1,
        "step": 30,
        "world_size": 2,
        "acks": 0,
        "ack_list": [],
        "created_at": BEGIN,
        "applied_at": BEGIN,
    }
    return OverrideView.model_validate({**override, **changes})


def make_attempt(**changes: Any) -> AttemptView:
    attempt = {
        "number": 1,
        "workers": 2,
        "reason": "COMPLETED",
        "message": "",
        "tally": ElasticityStats(),
        "created_at": BEGIN,
        "started_at": BEGIN,
        "ended_at": BEGIN,
    }
    return AttemptView.model_validate({**attempt, **changes})


def make_event(kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": 1, "type": kind, "time": BEGIN.isoformat(), "data": data}


def make_schedule(layers: Sequence[str] = LAYERS) -> ScheduleView:
    batch = BatchSchedule(
        global_batch=64, level="low", policy_level="low", low=64, high=512, said_by="policy"
    )
    rows = [
        LayerSchedule(
            layer=name,
            shape=(8, 8),
            regime="stable",
            level="high",
            method="powersgd",
            options={"rank": 1},
            policy_level="high",
            said_by="policy",
        )
        for name in layers
    ]
    return ScheduleView(epoch=0, step=0, layers=rows, batch=batch)


def make_source(count: int = 3, /, **changes: Any) -> ReportSource:
    """What a report of a job with so many epochs is made of."""
    source = {
        "job": make_job(count),
        "schedule": make_schedule(),
        "why": WhyView(sentence="The network holds this job up.", cause="link"),
        "epochs": [make_epoch(number) for number in range(count)],
        "num_epochs": count,
        "decisions": [make_decision(number) for number in range(count)],
        "num_decisions": count,
        "attempts": [make_attempt()],
        "written_at": BEGIN,
    }
    return ReportSource(**{**source, **changes})
