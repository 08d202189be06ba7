"""One worker of `tests.bench.mixed_workers`: trains a job with a part of a processor's time, and
prints as JSON how long the last epochs took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from accordion_workers.records.contract import JobSpec, Payload
from accordion_workers.training.loop import train_job
from tests.bench.cpu_share import cpu_share
from tests.distributed.loop_jobs import RecordingLink, context

PATIENCE = timedelta(seconds=120)


class TimedEpochs(RecordingLink):
    """Keeps when each epoch was reported."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def post(self, payload: Payload) -> None:
        super().post(payload)
        if payload.kind == "epoch":
            self.times.append(time.perf_counter())


def main(asked: str) -> None:
    told = json.loads(asked)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {told["processor"]})
    dist.init_process_group(
        "gloo",
        init_method=told["address"],
        rank=told["rank"],
        world_size=told["size"],
        timeout=PATIENCE,
    )
    job, link = JobSpec.model_validate(told["job"]), TimedEpochs()
    with cpu_share(told["share"]):
        train_job(context(told["rank"], Path(told["storage"]), job, link))
        seconds = link.times[-1] - link.times[-1 - told["last"]] if link.times else 0.0
        for line in link.lines:
            print(line, file=sys.stderr)
        print(json.dumps({"last_epochs_s": seconds}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
