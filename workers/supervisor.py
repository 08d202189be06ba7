"""The actor that runs one attempt of one job: worker groups one after the other, until the job is over.

Detached and named `job-{id}.{attempt}`, it outlives api and scheduler. Ray restarts it when its process dies; it then
begins again from the newest checkpoint, or finds the end file and has nothing left to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from workers.actor import NAMESPACE
from workers.asking import PLACE, ActorSilentError, Ask, RayAsk
from workers.contract import EndRecord, FailureRecord, Launch, Orders, Payload
from workers.failure import Failures, GiveUp, Retry, failure_of, fatal_reason, next_move
from workers.journal import Journal, claim_generation, read_end, read_records, write_end
from workers.launch import fit, shipping
from workers.outbox import Outbox
from workers.telemetry import Source

MOST_RESTARTS = 100
"""Of the supervisor's process by Ray; each begins from the newest checkpoint."""
TRY_AGAIN_S = 5.0
"""Pause after an error that is nobody's training: mostly storage that is full or away."""
ASK_TIMEOUT_S = 5.0
FLUSH_S = 10.0
"""How long the last records may take to reach the actor; they are in the journal in any case."""

log = logging.getLogger(__name__)
Phase = Literal["starting", "running", "ended"]
_Kind = TypeVar("_Kind", EndRecord, FailureRecord)


class Supervisor:
    """One attempt. All work is done by a thread of its own, so that `state` answers at once.

    Args:
        launch: the attempt as JSON.
        fit: trains in one worker group of the generation given; returns `completed` or `stopped`.
        ask: the way to the Accordion actor; by default that of the Ray cluster this process belongs to.
        pause: waits for so many seconds.
    """

    def __init__(
        self,
        launch: str,
        *,
        fit: Callable[[Launch, int], str] = fit,
        ask: Ask | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._launch = Launch.model_validate_json(launch)
        self._storage = Path(self._launch.storage)
        self._fit = fit
        self._ask = ask or RayAsk()
        self._pause = pause
        self._failures = Failures()
        self._state: tuple[Phase, str] = ("starting", "the supervisor begins")
        threading.Thread(target=self._run, name="supervisor", daemon=True).start()

    def state(self) -> tuple[Phase, str]:
        """Where the attempt is, and what it waits for in one sentence."""
        return self._state

    def _run(self) -> None:
        source = Source(job_id=self._launch.job_id, attempt=self._launch.attempt, rank=None)
        with shipping(source, self._ask):
            while not self._is_over():
                self._pause(TRY_AGAIN_S)
        self._state = ("ended", "the job is over")

    def _is_over(self) -> bool:
        """Do what is left of the attempt; False where that has to be tried again."""
        try:
            if read_end(self._storage) is None:
                self._end(self._recorded_end() or self._train())
        except Exception as error:
            # a supervisor whose storage is full or away goes on when it is back: nobody else would end the job.
            self._wait_for(f"the supervisor cannot go on: {type(error).__name__}: {error}", TRY_AGAIN_S)
            log.exception("the supervisor cannot go on")
            return False
        return True

    def _train(self) -> EndRecord:
        """Start worker groups until one of them, or their failures, or people end the job; record how."""
        self._failures = Failures.recorded(self._recorded(FailureRecord))
        end = self._run_groups()
        self._journal().write(end)
        return end

    def _run_groups(self) -> EndRecord:
        while not self._is_cancelled():
            generation = claim_generation(self._storage)
            self._state = ("running", f"worker group {generation} starts")
            try:
                outcome = self._fit(self._launch, generation)
            except Exception as error:  # noqa: BLE001  # whatever ends a group is looked at
                end = self._after(error, generation)
                if end is not None:
                    return end
                continue
            if outcome == "completed":
                return EndRecord(status="SUCCEEDED", reason="COMPLETED")
            return _cancelled("its state was saved")
        return _cancelled("no worker group was running")

    def _after(self, error: Exception, generation: int) -> EndRecord | None:
        """Record the failure; pause, or say how the job ends."""
        from workers.scaling import errors_by_rank

        by_rank = errors_by_rank(error)
        failure = failure_of(by_rank)
        progressed = self._progressed(generation)
        self._say(failure)
        self._failures, move = next_move(
            self._failures,
            failure,
            progressed=progressed,
            most_own=self._launch.spec.max_failures,
            fatal=fatal_reason(by_rank) if failure.cause == "job" else None,
        )
        match move:
            case Retry(pause_s=pause_s):
                self._wait_for(failure.message, pause_s)
                log.warning("%s; another worker group starts in %g s", failure.message, pause_s)
                self._pause(pause_s)
                return None
            case GiveUp(reason=reason, message=message):
                return EndRecord(status="FAILED", reason=reason, message=message)

    def _end(self, end: EndRecord) -> None:
        """The record is in the journal; now the file with all records, then the way to the database."""
        write_end(self._storage, end)
        log.info("the job ends: %s %s", end.reason, end.message)
        self._send(self._journal())

    def _say(self, failure: FailureRecord) -> None:
        """Record it in a generation of its own: what the dead group's zombies say from now on is refused."""
        journal = self._journal()
        journal.write(failure)
        self._send(journal)

    def _wait_for(self, why: str, pause_s: float) -> None:
        self._state = (self._state[0], f"{why}; it goes on in {pause_s:g} s")

    def _journal(self) -> Journal:
        generation = claim_generation(self._storage)
        return Journal(self._storage, attempt=self._launch.attempt, generation=generation, clock=time.time)

    def _send(self, journal: Journal) -> None:
        outbox = Outbox(self._launch.job_id, journal, self._ask)
        outbox.start()
        outbox.flush(FLUSH_S)
        outbox.close()

    def _recorded_end(self) -> EndRecord | None:
        """How the attempt ended, where the process died before it could write the end file."""
        return next(iter(self._recorded(EndRecord)), None)

    def _recorded(self, kind: type[_Kind]) -> list[_Kind]:
        """What this attempt recorded of a kind, in order."""
        ours = (record for record in read_records(self._storage) if record.attempt == self._launch.attempt)
        return [record.payload for record in ours if isinstance(record.payload, kind)]

    def _progressed(self, generation: int) -> bool:
        """Whether the group got so far that it recorded more than its start."""
        payloads: list[Payload] = [r.payload for r in read_records(self._storage) if r.generation == generation]
        return any(payload.kind != "started" for payload in payloads)

    def _is_cancelled(self) -> bool:
        try:
            orders: Orders = self._ask("watch", self._launch.job_id, -1, 0.0, timeout_s=ASK_TIMEOUT_S)
        except ActorSilentError:
            return False
        return orders.stop == "cancel"


def _cancelled(state: str) -> EndRecord:
    return EndRecord(status="CANCELLED", reason="CANCELLED_BY_USER", message=f"cancelled; {state}")


def start_supervisor(launch: Launch) -> Any:
    """Start the attempt's supervisor, or find the one that is there."""
    import ray

    name = supervisor_name(launch.job_id, launch.attempt)
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    limits = {"max_restarts": MOST_RESTARTS, "max_task_retries": -1, "max_concurrency": 8, "num_cpus": 0}
    return ray.remote(Supervisor).options(**options, **limits, label_selector=PLACE).remote(launch.model_dump_json())


def supervisor_name(job_id: str, attempt: int) -> str:
    """The actor's name; it tells the attempt without a call."""
    return f"job-{job_id}.{attempt}"


def parse_name(name: str) -> tuple[str, int] | None:
    """Job id and attempt of a supervisor's name; None for other actors."""
    job_id, dot, attempt = name.removeprefix("job-").rpartition(".")
    return (job_id, int(attempt)) if name.startswith("job-") and dot and attempt.isdecimal() else None
