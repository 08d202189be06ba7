"""The actor that runs one attempt of a job.

It is detached and named after installation, job and attempt (`names.py`), so it outlives api and
scheduler. Ray restarts it when its process dies; it then continues from the newest checkpoint, or
finds the end file and stops.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from accordion_workers.checkpoint.lineage import Lineage
from accordion_workers.checkpoint.storage import storage_advice
from accordion_workers.common.error_kinds import is_raised_by_storage
from accordion_workers.common.errors import EngineUnavailable, PackagesError, WorkerError
from accordion_workers.common.names import NAMESPACE, SupervisorName, supervisor_name
from accordion_workers.common.plain_text import clean_text
from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.controller.attempt import Attempt
from accordion_workers.controller.failure_policy import FailureCounts
from accordion_workers.controller.package_resolution import (
    ResolutionHost,
    ResolutionStopped,
    resolve_packages,
)
from accordion_workers.controller.worker_pool import WorkerPool, choose_engine, create_worker_pool
from accordion_workers.hub.actor_client import (
    HEAD_NODE,
    ActorClient,
    ActorTimeoutError,
    RayActorClient,
)
from accordion_workers.hub.journal import (
    Journal,
    claim_generation,
    read_end,
    read_records,
    write_end,
)
from accordion_workers.hub.journal_summary import extend_summary, read_milestones
from accordion_workers.hub.log_shipper import LogSource, ship_logs
from accordion_workers.hub.order_watcher import OrderWatcher
from accordion_workers.hub.record_sender import RecordSender
from accordion_workers.records.contract import (
    Cursor,
    DesiredState,
    EndRecord,
    FailureRecord,
    Launch,
    PackagesRecord,
    PausedRecord,
    Progress,
    Record,
    Started,
)
from accordion_workers.training.context import PreviousGroup

MAX_RESTARTS = 100
"""How often Ray restarts a supervisor; each restart continues from the newest checkpoint."""
TRY_AGAIN_S = 5.0
"""Pause after an error of the supervisor itself, usually a full or unreachable storage."""
ASK_TIMEOUT_S = 5.0
FLUSH_S = 10.0
"""How long the last records may take to reach the actor; they are in the journal in any case."""

log = logging.getLogger(__name__)
Phase = Literal["starting", "resolving", "running", "waiting", "ended"]
"""`resolving`: no worker process is requested before the packages of the job are resolved;
`waiting`: a worker group, or the supervisor itself, waits for the storage of the job.
"""


class Supervisor:
    """Runs one attempt in a thread of its own, so that `state` answers at once.

    Args:
        launch: the attempt as JSON.
        create_pool: creates the attempt's worker pool.
        client: client of the Accordion actor; by default the one in this process's Ray cluster.
        pause: sleeps for the given seconds.
    """

    def __init__(
        self,
        launch: str,
        *,
        create_pool: Callable[[Launch], WorkerPool] = create_worker_pool,
        client: ActorClient | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._launch, self._warning = choose_engine(Launch.model_validate_json(launch))
        self._mask = SecretMask(self._launch.list_secret_values())
        self._storage = Path(self._launch.storage)
        self._create_pool = create_pool
        self._client = client or RayActorClient(self._launch.installation)
        self._pause = pause
        self._watcher = OrderWatcher(self._launch.job_id, self._client)
        self._state: tuple[Phase, str] = ("starting", "the supervisor begins")
        self._placed: tuple[str, ...] | None = None
        self._avoided: tuple[str, ...] = ()
        self._has_placed = False
        """Whether this process has requested workers; a group recorded before was another's."""
        self._loss = FailureRecord(
            cause="infrastructure",
            rank=None,
            message="the supervisor's process is gone, and its workers with it",
        )
        """How the worker groups that this process finds recorded were lost."""
        threading.Thread(target=self._run, name="supervisor", daemon=True).start()

    def state(self) -> tuple[Phase, str, tuple[str, ...] | None, tuple[str, ...]]:
        """Return the phase, the current activity in one sentence, the nodes of the worker
        processes, and those on which no process is started for now, because it could not start.

        One node id per placed process, the most useful process first; None before any was
        requested.
        """
        return (*self._state, self._placed, self._avoided)

    def _run(self) -> None:
        source = LogSource(job_id=self._launch.job_id, attempt=self._launch.attempt, rank=None)
        with ship_logs(source, self._client, self._mask):
            self._watcher.start()
            while not self._try_attempt():
                self._pause(TRY_AGAIN_S)
            self._watcher.close()
        self._state = ("ended", "the attempt is over")

    def _try_attempt(self) -> bool:
        """Run the rest of the attempt; return False if that must be retried."""
        try:
            self._wait_for_records()
            if read_end(self._storage, retried_attempt=self._launch.retried_attempt) is None:
                self._publish_end(self._find_recorded_end() or self._run_attempt())
        except Exception as error:
            # Nothing else would end the job, so the supervisor retries until the storage is back.
            log.exception("the supervisor cannot continue")
            self._publish_loss(error)
            return False
        return True

    def _publish_loss(self, error: Exception) -> None:
        """Publish why no worker group runs; the next try records that if it ended one."""
        why, is_storage = f"{type(error).__name__}: {error}", False
        if isinstance(error, OSError) and is_raised_by_storage(error):
            # Without the file's name, which differs with each try.
            cause = error.strerror or str(error)
            why = f"it cannot use {self._storage} ({cause}); {storage_advice(error)}"
            is_storage = True
        why = f"the supervisor cannot continue: {why}"
        if self._has_placed:
            self._loss = FailureRecord(
                cause="infrastructure", rank=None, message=why, is_storage=is_storage
            )
        if is_storage:
            self._placed = ()
        self.publish_status(f"{why}; it retries every {TRY_AGAIN_S:g} s", is_waiting=is_storage)

    def _wait_for_records(self) -> None:
        """Wait while a job that has saved steps finds no record of a group in its directory: that
        is not mounted, or another one. An attempt that is to stop meanwhile stops by itself.

        Nothing is written meanwhile, so the generations of the right directory stay the newest.
        """
        launch = self._launch
        if not launch.saved_step or launch.spec.checkpoint.storage is not None:
            return
        if self._has_group_records():
            return
        why = (
            f"this job has saved {launch.saved_step} steps, and nothing of it is in"
            f" {launch.storage}; mount its storage. If it is elsewhere now, set ACCORDION_STORAGE,"
            " then pause and resume the job; a clone trains from the beginning"
        )
        self._watcher.fetch(ASK_TIMEOUT_S)
        log.warning("%s", why)
        self._publish("waiting", why)
        while self.desired_state().stop is None and not self._has_group_records():
            self._pause(TRY_AGAIN_S)

    def _has_group_records(self) -> bool:
        return any(row.started for row in read_milestones(self._storage))

    def _run_attempt(self) -> EndRecord | PausedRecord:
        """Run worker groups until the attempt ends; record how it ended."""
        failures = FailureCounts.restore(record.payload for record in self._read_own_records())
        self._watcher.fetch(ASK_TIMEOUT_S)
        try:
            pool = self._create_pool(self._launch)
            self._prepare_packages()
        except (EngineUnavailable, PackagesError) as error:
            return self._record_failed_start(error)
        log.info("engine: %s", self._launch.spec.workers.engine)
        if self._warning:
            log.warning("%s", self._warning)
        attempt = Attempt(
            launch=self._launch,
            pool=pool,
            host=self,
            failures=failures,
            previous_group=self._record_lost_workers(),
            has_trained=bool(self._launch.saved_step) or self._has_group_records(),
        )
        try:
            end = attempt.run()
        except EngineUnavailable as error:
            return self._record_failed_start(error)
        self._open_journal().write(end)
        return end

    def _prepare_packages(self) -> None:
        """Resolve the packages of the job; an attempt that is to stop meanwhile stops by itself."""
        if not self._launch.spec.pip:
            return
        host = ResolutionHost(
            is_stopping=lambda: self.desired_state().stop is not None,
            publish_status=lambda message: self._publish("resolving", message),
            write_record=self._write_packages,
        )
        with suppress(ResolutionStopped):
            resolve_packages(self._launch, host)

    def _write_packages(self, record: PackagesRecord) -> None:
        journal = self._open_journal()
        journal.write(record)
        self._send_records(journal)

    def _record_failed_start(self, error: WorkerError) -> EndRecord:
        end = EndRecord(status="FAILED", reason="START_FAILED", message=str(error))
        self._open_journal().write(end)
        return end

    def _publish_end(self, end: EndRecord | PausedRecord) -> None:
        """Write the end file and send all records; the end is already in the journal."""
        if isinstance(end, EndRecord):
            end = self._mask.apply_to_record(end)
            write_end(self._storage, end)
            log.info("the job ends: %s %s", end.reason, end.message)
        self._send_records(self._open_journal())

    def claim_generation(self) -> int:
        """Claim a new generation."""
        generation = claim_generation(self._storage)
        # Only reading takes longer without it.
        with suppress(OSError):
            extend_summary(self._storage)
        return generation

    def record_failure(self, failure: FailureRecord) -> None:
        """Record the failure in a generation of its own, which fences off the failed group."""
        journal = self._open_journal()
        journal.write(failure)
        self._send_records(journal)

    def has_progressed(self, generation: int) -> bool:
        """Return whether the group recorded a checkpoint, an epoch or a start from memory beyond
        those of all earlier groups.
        """
        rows = read_milestones(self._storage)
        before = max((row.safe_step for row in rows if row.generation < generation), default=0)
        return any(row.safe_step > before for row in rows if row.generation == generation)

    def has_started(self, generation: int) -> bool:
        """Return whether the group began to train."""
        rows = read_milestones(self._storage)
        return any(row.started for row in rows if row.generation == generation)

    def publish_placement(self, nodes: tuple[str, ...], avoided: frozenset[str]) -> None:
        """Publish these nodes to the scheduler."""
        self._placed, self._avoided = nodes, tuple(sorted(avoided))
        self._has_placed = True

    def saved_step(self) -> int:
        """Return how many steps the job's newest checkpoint holds."""
        return Lineage.of_milestones(read_milestones(self._storage)).saved_step

    def publish_status(self, message: str, *, is_waiting: bool = False) -> None:
        """Publish what the attempt does, or what its worker group waits for."""
        self._publish("waiting" if is_waiting else "running", message)

    def _publish(self, phase: Phase, message: str) -> None:
        self._state = (phase, self._mask.apply(clean_text(message)))

    def desired_state(self) -> DesiredState:
        """Return the newest desired state that was received."""
        return self._watcher.orders

    def requested_stop(self) -> Literal["cancel", "pause"]:
        """Return the request for which a group stopped; a pause if it is no longer known."""
        return self._watcher.fetch(ASK_TIMEOUT_S).stop or "pause"

    def _open_journal(self) -> Journal:
        return Journal(
            self._storage,
            attempt=self._launch.attempt,
            generation=self.claim_generation(),
            clock=time.time,
            mask=self._mask,
        )

    def _send_records(self, journal: Journal) -> None:
        sender = RecordSender(self._launch.job_id, journal, self._client)
        sender.start()
        sender.flush(FLUSH_S)
        sender.close()

    def _record_lost_workers(self) -> PreviousGroup | None:
        """Record the workers lost with an earlier try or process; return their last step."""
        ours = self._read_own_records()
        groups = [record.payload for record in ours if isinstance(record.payload, Started)]
        if not groups:
            return None
        step = max(getattr(record.payload, "step", None) or 0 for record in ours)
        seen_at = max(record.time for record in ours)
        progress = self._fetch_progress()
        if progress is not None and progress.attempt == self._launch.attempt:
            step, seen_at = max(step, progress.step), max(seen_at, progress.time)
        self.record_failure(self._loss.model_copy(update={"step": step}))
        return PreviousGroup(
            cause="recovery", world_size=groups[-1].world_size, step=step, time=seen_at
        )

    def _fetch_progress(self) -> Progress | None:
        try:
            progress: Progress | None = self._client(
                "progress", self._launch.job_id, timeout_s=ASK_TIMEOUT_S
            )
        except ActorTimeoutError:
            return None
        return progress

    def _find_recorded_end(self) -> EndRecord | PausedRecord | None:
        """Return the end that an earlier process recorded but did not publish."""
        payloads = [record.payload for record in self._read_own_records()]
        ends = [one for one in payloads if isinstance(one, EndRecord | PausedRecord)]
        return next(iter(ends), None)

    def _read_own_records(self) -> list[Record]:
        """Return the records of this attempt, in order."""
        attempt = self._launch.attempt
        records = read_records(self._storage, Cursor(attempt=attempt))
        return [record for record in records if record.attempt == attempt]


def start_supervisor(launch: Launch) -> Any:
    """Start the attempt's supervisor, or return the running one."""
    import ray

    name = supervisor_name(SupervisorName(launch.installation, launch.job_id, launch.attempt))
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    limits = {
        "max_restarts": MAX_RESTARTS,
        "max_task_retries": -1,
        "max_concurrency": 8,
        "num_cpus": 0,
    }
    return (
        ray.remote(Supervisor)
        .options(**options, **limits, resources=HEAD_NODE)
        .remote(launch.model_dump_json())
    )
