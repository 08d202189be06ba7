"""From a `Launch` to a running worker group: Ray Train on the supervisor's side, the loop on every rank's."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers.asking import RayAsk
from workers.context import Link, NoLink, WorkerContext
from workers.contract import Launch
from workers.journal import Journal
from workers.link import ActorLink
from workers.reservations import free_orphans
from workers.scaling import LeanTrainer
from workers.telemetry import LogShipper, Source, captured

TRAIN_ENVIRONMENT: Mapping[str, str] = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "15",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "60",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Ray Train reads these where `fit` is called and hands them on. They notice a dead worker in 0.2 s instead of 2, and
leave out what we do ourselves."""
LOG_FLUSH_S = 3.0
"""How long an ending process waits for its last log lines to leave."""

log = logging.getLogger(__name__)


def fit(launch: Launch, generation: int) -> str:
    """Train in one worker group from the newest checkpoint on; returns `completed` or `stopped`.

    Raises:
        ray.train.TrainingFailedError: a worker raised or died.
    """
    os.environ.update(TRAIN_ENVIRONMENT)
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    # what a group of a killed supervisor had reserved may be just what this one needs.
    free_orphans()

    workers = launch.spec.workers
    resources = {"CPU": workers.cpus} | ({"GPU": workers.gpus} if workers.gpus else {})
    trainer = LeanTrainer(
        _train,
        train_loop_config={"launch": launch.model_dump_json(), "generation": generation},
        scaling_config=ScalingConfig(
            num_workers=launch.workers, use_gpu=workers.gpus > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=f"generation-{generation}",
            storage_path=str(Path(launch.storage).absolute() / "ray"),
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    return str(trainer.fit().return_value)


def _train(config: Mapping[str, Any]) -> str:
    """What Ray Train runs in every worker process."""
    import ray.train

    from workers.group import device_of, process_group

    launch = Launch.model_validate_json(config["launch"])
    place = ray.train.get_context()
    rank, world_size, device = place.get_world_rank(), place.get_world_size(), device_of(launch.spec.workers)
    with _link(launch, config["generation"], rank) as link, process_group(rank, world_size, device=device):
        context = WorkerContext(
            launch=launch,
            generation=config["generation"],
            rank=rank,
            world_size=world_size,
            device=device,
            link=link,
        )
        return _run(context)


def _run(context: WorkerContext) -> str:
    """Run the loop; what it raises goes to the log with its traceback."""
    from workers.errors import WorkerError
    from workers.loop import train

    log.info("rank %d of %d trains on %s", context.rank, context.world_size, context.device)
    try:
        return train(context)
    except WorkerError:
        raise
    except Exception:
        log.exception("rank %d ends", context.rank)
        raise


@contextmanager
def _link(launch: Launch, generation: int, rank: int) -> Iterator[Link]:
    """The rank's road to the world while the block runs; what the rank prints travels on it."""
    ask = RayAsk()
    with shipping(Source(job_id=launch.job_id, attempt=launch.attempt, rank=rank), ask) as shipper:
        if rank != 0:
            yield NoLink(shipper.write)
            return
        journal = Journal(Path(launch.storage), attempt=launch.attempt, generation=generation, clock=time.time)
        link = ActorLink(launch, journal, ask=ask, shipper=shipper)
        link.start()
        try:
            yield link
        finally:
            link.close()


@contextmanager
def shipping(source: Source, ask: Callable[..., Any]) -> Iterator[LogShipper]:
    """Send what this process prints or logs inside the block to the job's log."""
    shipper = LogShipper(source, ask, time.time)
    shipper.start()
    try:
        with captured(shipper.write):
            yield shipper
    finally:
        shipper.flush(LOG_FLUSH_S)
        shipper.close()
