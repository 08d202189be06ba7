"""One worker of `tests.bench.plan_accuracy`, alone on its host: `plan_worker.py RANK ADDRESS`.

It predicts the steps of a job as `accordion plan` does, and then takes them. Commands come as JSON
lines on standard input, answers leave on standard output as JSON lines behind an `@`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accordion.base.messages import Level
from accordion_workers.planning.predictions import list_levels, nominal_link, predict_steps
from accordion_workers.planning.step_measurement import StepMeasurement, measure_step
from accordion_workers.records.contract import JobSpec
from accordion_workers.training.clock import Clock
from accordion_workers.training.loop import train_batch
from accordion_workers.training.sampler import epoch_order
from accordion_workers.training.train_state import TrainState, build_train_state
from tests.bench.cpu_share import cpu_share
from tests.distributed.loop_jobs import RecordingLink, context

PATIENCE = timedelta(seconds=300)
SETTLING_STEPS, SETTLING_S = 130, 20.0
"""Steps before a level is timed, in which the exchange plan is found, and the seconds that
they may take; at least five are taken.
"""
TIMED_S = 5.0
"""Seconds that the timed steps of a level should take; at least three are taken."""


class PlanWorker:
    """Measures one worker's share first, and joins the group for the real steps."""

    def __init__(self, rank: int, address: str) -> None:
        self._rank, self._address = rank, address
        self._measured: StepMeasurement | None = None

    def predict(
        self, spec: dict[str, Any], workers: int, *, latency_s: float, bytes_per_s: float
    ) -> dict[str, dict[str, float]]:
        """Predicted seconds and payload of a step by level, as `accordion plan` gives them."""
        job = JobSpec.model_validate(spec)
        if self._measured is None:
            self._measured = measure_step(job, workers, seconds=5.0)
        link = nominal_link(workers=workers, latency_s=latency_s, bytes_per_s=bytes_per_s)
        return {
            f"{found.method} {found.level}".strip(): {
                "step_s": found.step_s,
                "sent_bytes": found.sent_bytes,
                "compute_s": self._measured.step_s,
            }
            for found in predict_steps(self._measured, job, link)
        }

    def measure(
        self, spec: dict[str, Any], workers: int, *, predicted_s: Mapping[str, float]
    ) -> dict[str, float]:
        """Seconds of a real step by level, for the levels that `predicted_s` names."""
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                init_method=self._address,
                rank=self._rank,
                world_size=workers,
                timeout=PATIENCE,
            )
        levels = list_levels(JobSpec.model_validate(spec))
        return {
            name: self._time_level(
                # A method without levels is listed as its light one.
                _at_level(spec, levels.get(name) or levels[f"{name} low"]),
                expected_s=seconds,
            )
            for name, seconds in predicted_s.items()
        }

    def _time_level(self, spec: dict[str, Any], *, expected_s: float) -> float:
        job = JobSpec.model_validate(spec)
        worker = context(self._rank, Path(), job, RecordingLink())
        state = build_train_state(worker, Clock())
        settling = max(5, min(SETTLING_STEPS, int(SETTLING_S / expected_s)))
        self._take_steps(state, settling)
        timed = max(3, int(TIMED_S / expected_s))
        dist.barrier()
        began_s = time.perf_counter()
        self._take_steps(state, timed)
        return (time.perf_counter() - began_s) / timed

    def _take_steps(self, state: TrainState, number: int) -> None:
        order = epoch_order(len(state.data), seed=0, epoch=0)
        for _ in range(number):
            if state.position.samples >= len(order):
                state.position = type(state.position)(epoch=0)
            train_batch(state, order)


def _at_level(spec: dict[str, Any], level: Level) -> dict[str, Any]:
    """The job at one level for the whole run."""
    options = dict(level.options)
    return {
        **spec,
        "compression": {"method": level.method, "low": options, "high": options},
        "policy": {"name": "fixed", "options": {"level": "low"}},
    }


def main(rank: int, address: str) -> None:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % len(os.sched_getaffinity(0))})
    worker = PlanWorker(rank, address)
    commands = {"predict": worker.predict, "measure": worker.measure}
    # With more workers than processors, each has half of one, whether it plans or trains.
    with cpu_share(float(os.environ["BENCH_CPU_SHARE"])):
        for line in sys.stdin:
            asked = json.loads(line)
            answer = commands[asked.pop("do")](**asked)
            print(f"@{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
