"""One worker of `tests.bench.accuracy`, alone on its host: `accuracy_worker.py RANK ADDRESS`.

Commands come as JSON lines on standard input, answers leave on standard output as JSON lines behind
an `@`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from accordion_workers.common.errors import LossNotFinite
from accordion_workers.data import Data
from accordion_workers.records.contract import JobSpec, Launch, Payload
from accordion_workers.tasks.base import Task
from accordion_workers.training.context import NoLink, WorkerContext
from accordion_workers.training.loop import train_job
from accordion_workers.training.sampler import (
    batch_at,
    derive_seed,
    epoch_order,
    even_counts,
    loss_weight,
    micro_batches,
    rank_shard,
)
from accordion_workers.training.schedule import build_schedule
from accordion_workers.training.train_state import load_task_data, seeded_generators
from tests.bench.accuracy_peers import PEERS, Peer, Place
from tests.distributed.loop_jobs import RecordingLink
from tests.netlab.lab import address

PATIENCE = timedelta(seconds=120)
CODE = Path("deploy/recipes/cpu/code")
"""Tasks of the recipes."""
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
Parts = tuple[Task, Data, Data]


class EpochLink(RecordingLink):
    """Notes when each epoch ended and what this host had sent, without the evaluations' time."""

    def __init__(self, metric: str) -> None:
        super().__init__()
        self._metric, self._evaluated_s = metric, 0.0
        self._started, self._sent = time.perf_counter(), _read_sent()
        self.epochs: list[dict[str, Any]] = []

    def post(self, payload: Payload) -> None:
        """Keep the figures of an epoch's record."""
        super().post(payload)
        if payload.kind == "epoch":
            self._evaluated_s += payload.seconds_by_phase["evaluate"]
            self.epochs.append(
                {
                    "seconds": time.perf_counter() - self._started - self._evaluated_s,
                    "sent": _read_sent() - self._sent,
                    "metric": payload.metrics.get(self._metric),
                    "local_steps": payload.local_steps,
                }
            )


class Worker:
    """This rank, with the data of the tasks that it has seen."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._parts: dict[str, Parts] = {}

    def train(
        self,
        *,
        spec: Mapping[str, Any],
        peer: str | None,
        metric: str,
        workers: int,
        port: int,
        storage: str,
    ) -> dict[str, Any]:
        """Train a job; `peer` names who trains it in place of us.

        Returns:
            By epoch its end in seconds from the start, bytes that this host sent, and the metric;
            on rank 0 for the others.
        """
        job = JobSpec.model_validate(spec)
        key = json.dumps(spec["task"], sort_keys=True)
        if key not in self._parts:
            self._parts[key] = load_task_data(job)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address(1)}:{port}",
            rank=self._rank,
            world_size=workers,
            timeout=PATIENCE,
        )
        try:
            place = Place(rank=self._rank, workers=workers, port=port + 1)
            if peer is None:
                link = EpochLink(metric)
                return self._train_ours(job, self._parts[key], place, storage=storage, link=link)
            run = PeerRun(job, self._parts[key], place, metric)
            return run.train(peer)
        finally:
            dist.destroy_process_group()

    def _train_ours(
        self, job: JobSpec, parts: Parts, place: Place, *, storage: str, link: EpochLink
    ) -> dict[str, Any]:
        before, failed = _read_sent(), ""
        context = WorkerContext(
            launch=Launch(
                job_id="accuracy", attempt=1, workers=place.workers, storage=storage, spec=job
            ),
            generation=1,
            rank=place.rank,
            world_size=place.workers,
            device="cpu",
            link=link if place.rank == 0 else NoLink(lambda _: None),
            parts=parts,
        )
        try:
            train_job(context)
        except LossNotFinite as error:  # at this learning rate nothing is learned
            failed = str(error)
        return {"epochs": link.epochs, "sent": _read_sent() - before, "failed": failed}


class PeerRun:
    """The loop of a script with a peer: same weights, samples, learning rates and evaluation as the
    loop of our jobs.
    """

    def __init__(self, job: JobSpec, parts: Parts, place: Place, metric: str) -> None:
        self._job, (self._task, self._data, self._held_out) = job, parts
        self._place, self._metric = place, metric
        self._steps = self._own_samples = 0

    def train(self, peer: str) -> dict[str, Any]:
        """Train all epochs."""
        training = self._job.training
        # As in our jobs' loop, building the model and its wrapper counts.
        epochs, begun, began = [], time.perf_counter(), _read_sent()
        with seeded_generators(derive_seed("model", training.seed), "cpu"):
            model = self._task.model()
        _adjust_batchnorm_momentum(model, self._place.workers)
        self._optimizer = _create_optimizer(model, self._job)
        self._schedule = build_schedule(training)
        trained = PEERS[peer](model, self._optimizer, self._place)
        for epoch in range(training.epochs):
            self._train_epoch(trained, epoch)
            seconds, sent = time.perf_counter() - begun, _read_sent() - began
            epochs.append({"seconds": seconds, "sent": sent, "metric": self._measure(model)})
            dist.barrier()
            # What the evaluation took does not count.
            begun, began = time.perf_counter() - seconds, _read_sent() - sent
        trained.close()
        return {"epochs": epochs, "sent": sent, "failed": ""}

    def _train_epoch(self, peer: Peer, epoch: int) -> None:
        peer.module.train()
        order = epoch_order(len(self._data), seed=self._job.training.seed, epoch=epoch)
        samples = 0
        while samples < len(order):
            batch = batch_at(
                samples, num_samples=len(order), global_batch=self._job.training.global_batch
            )
            self._train_batch(peer, epoch, order, batch)
            samples = batch.stop

    def _train_batch(self, peer: Peer, epoch: int, order: Tensor, batch: range) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.step_rate(epoch, batch.stop / len(order))
        peer.begin_step()
        pieces = micro_batches(batch, self._job.training.micro_batch)
        counts = even_counts(len(pieces), self._place.workers)
        (piece,) = rank_shard(pieces, rank=self._place.rank, counts=counts)
        seed = derive_seed("sample", self._job.training.seed, epoch, piece.start)
        with seeded_generators(seed, "cpu"):
            inputs, targets = self._data.batch(order[piece.start : piece.stop])
            loss = self._task.loss(peer.module(inputs), targets, step=self._steps)
        (loss * loss_weight(piece, batch, world_size=self._place.workers)).backward()
        peer.step()
        self._steps += 1
        self._own_samples += len(piece)

    def _average_buffers(self, model: nn.Module) -> None:
        """Weight by samples, as the loop of our jobs does; the workers go on with the means."""
        samples = torch.tensor(float(self._own_samples), dtype=torch.float64)
        own, self._own_samples = samples.clone(), 0
        dist.all_reduce(samples)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                mean = buffer.double() * own
                dist.all_reduce(mean)
                buffer.copy_(mean / samples)

    @torch.no_grad()
    def _measure(self, model: nn.Module) -> float | None:
        """Return the metric of the mean of the workers' parameters and buffers, None if it is not
        finite; the workers go on with their own parameters.
        """
        kept = [parameter.clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter.div_(self._place.workers)
        self._average_buffers(model)
        model.eval()
        pieces = micro_batches(range(len(self._held_out)), self._job.training.micro_batch)
        counts = even_counts(len(pieces), self._place.workers)
        total = torch.zeros((), dtype=torch.float64)
        for piece in rank_shard(pieces, rank=self._place.rank, counts=counts):
            inputs, targets = self._held_out.batch(torch.arange(piece.start, piece.stop))
            total += self._task.metrics(model(inputs), targets)[self._metric] * len(piece)
        dist.all_reduce(total)
        for parameter, own in zip(model.parameters(), kept, strict=True):
            parameter.copy_(own)
        mean = float(total) / len(self._held_out)
        return mean if math.isfinite(mean) else None


def _create_optimizer(model: nn.Module, job: JobSpec) -> Optimizer:
    asked = job.training.optimizer
    if asked.name == "adamw":
        return AdamW(model.parameters(), lr=asked.lr, weight_decay=asked.weight_decay)
    return SGD(
        model.parameters(), lr=asked.lr, momentum=asked.momentum, weight_decay=asked.weight_decay
    )


def _adjust_batchnorm_momentum(model: nn.Module, workers: int) -> None:
    """Remember as many micro-batches as one worker would, as the loop of our jobs does."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.momentum is not None:
            module.momentum = 1.0 - (1.0 - module.momentum) ** workers


def _read_sent() -> int:
    """Bytes that this host has put on its link, with the headers of all layers."""
    return int(SENT.read_text())


def main(rank: int) -> None:
    sys.path.insert(0, str(CODE))
    # DDP's, about an argument whose replacement the oldest supported torch does not have.
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % len(os.sched_getaffinity(0))})
    commands = {"train": Worker(rank).train}
    for line in sys.stdin:
        asked = json.loads(line)
        answer = commands[asked.pop("do")](**asked)
        print(f"@{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
