"""The Accordion actor: decides for all jobs and passes their records to the scheduler.

Rank 0 of each job reports and requests decisions; the scheduler sets desired states and drains
records. The process may be killed at any time, since all its state can be rebuilt: controllers from
rank 0's state, records from the journals, desired states from the database. Every call may be
repeated, and calls of an older generation are fenced.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from accordion.base.errors import ReportError
from accordion.decide.controller import Controller
from accordion_workers.common.names import package_version
from accordion_workers.hub.actor_messages import (
    DecideRequest,
    DecideResponse,
    Fenced,
    FencingToken,
    NotRegistered,
    PostResponse,
    Registration,
    estimate_line_bytes,
)
from accordion_workers.hub.bounded_drain import BoundedDrain
from accordion_workers.hub.journal import RecordKey, record_key
from accordion_workers.records.contract import (
    GUEST_ATTEMPT,
    GUEST_PROTOCOL,
    Cursor,
    DesiredState,
    Drained,
    EndRecord,
    Guest,
    LogLine,
    Progress,
    Record,
)

LOG_LIMIT_BYTES = 1 << 20
"""Log text held for one job: eight seconds at the highest rate allowed."""
POSTS_PER_S = 400
"""Maximum posts of all jobs together; the actor answers 1,000 to 1,800 calls a second."""
DRAIN_LIMIT = 1000
"""Maximum records in one answer: a few megabytes."""
GUEST_SILENCE_S = 60.0
"""A guest run that has not enlisted for this long is not named as a namesake; runs enlist every few
seconds.
"""

_NO_TOKEN = FencingToken(attempt=0, generation=0)


@dataclass(slots=True)
class _Job:
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Id of this actor's memory; a new id means that the records held before are lost."""
    token: FencingToken = _NO_TOKEN
    controller: Controller | None = None
    orders: DesiredState = field(default_factory=DesiredState)
    ordered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, with every new desired state."""
    records: dict[RecordKey, Record] = field(default_factory=dict)
    confirmed: Cursor = field(default_factory=Cursor)
    progress: Progress | None = None
    logs: deque[LogLine] = field(default_factory=deque)
    logs_bytes: int = 0
    logs_dropped: int = 0
    guest: Guest | None = None
    """The guest run; None for a job of the service."""
    enlisted_at: float = 0.0
    """Time of the guest run's last registration, on the clock of `AccordionActor`."""
    has_ended: bool = False
    """Whether this generation of a guest run has recorded the run's end."""

    def check_token(self, token: FencingToken) -> Fenced | None:
        if token < self.token:
            return Fenced(newest=self.token)
        if token > self.token:
            self.token, self.controller, self.has_ended = token, None, False
        return None

    def drop_confirmed(self, cursor: Cursor) -> None:
        went_back = record_key(Cursor()) < record_key(cursor) < record_key(self.confirmed)
        if went_back and not self.has_ended:
            # The database was restored from a backup. What it lacks was dropped here, and workers
            # send it again; those of a run that has ended cannot.
            self.incarnation, self.records, self.confirmed = uuid.uuid4().hex, {}, cursor
        self.confirmed = max(self.confirmed, cursor, key=record_key)
        done = record_key(self.confirmed)
        self.records = {key: record for key, record in self.records.items() if key > done}

    def make_response(self, pause_s: float = 0.0) -> PostResponse:
        return PostResponse(confirmed=self.confirmed, incarnation=self.incarnation, pause_s=pause_s)


class AccordionActor:
    """Every method may be called at any time and repeated. Ray runs them one at a time up to their
    first `await`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._bounded = BoundedDrain(self._drain_job)
        self._claim: tuple[str, float] | None = None
        """Scheduler that holds the claim on this cluster, and when the claim expires."""

    async def register(
        self, job_id: str, token: FencingToken, registration: Registration
    ) -> PostResponse | Fenced:
        """Hold this controller for the job and replace any earlier one.

        Raises:
            StateError: the state is not one of this job's controller.
        """
        job = self._find_or_add_job(job_id)
        if fenced := job.check_token(token):
            return fenced
        controller = Controller(registration.spec.config(), registration.layers)
        controller.load_state_dict(registration.controller_state)
        job.controller = controller
        return job.make_response()

    async def decide(
        self, job_id: str, token: FencingToken, request: DecideRequest
    ) -> DecideResponse | NotRegistered | Fenced:
        """Return the decision after the report; a repeated request gets the same decision."""
        job = self._find_or_add_job(job_id)
        if fenced := job.check_token(token):
            return fenced
        if job.controller is None or request.number - job.controller.number not in (0, 1):
            return NotRegistered()
        try:
            return DecideResponse(decision=job.controller.decide(request.report))
        except ReportError:
            return NotRegistered()

    async def post(
        self,
        job_id: str,
        token: FencingToken,
        records: Sequence[Record],
        *,
        progress: Progress | None = None,
        incarnation: str | None = None,
    ) -> PostResponse | Fenced:
        """Hold records until the database has confirmed them.

        Records that continue those of another incarnation are rejected: if they were drained first,
        the database's cursor would skip the lost ones. `incarnation` is None if the records begin
        with the first unconfirmed one.
        """
        job = self._find_or_add_job(job_id)
        if fenced := job.check_token(token):
            return fenced
        if incarnation in (None, job.incarnation):
            done = record_key(job.confirmed)
            job.records |= {
                record_key(record): record for record in records if record_key(record) > done
            }
            job.has_ended = job.has_ended or any(
                isinstance(record.payload, EndRecord) for record in records
            )
        job.progress = progress or job.progress
        return job.make_response(pause_s=len(self._jobs) / POSTS_PER_S)

    async def log(self, job_id: str, lines: Sequence[LogLine], dropped: int) -> None:
        """Hold log lines until they are drained; above the limit the oldest are dropped and
        counted.
        """
        job = self._find_or_add_job(job_id)
        job.logs_dropped += dropped
        job.logs.extend(lines)
        job.logs_bytes += sum(map(estimate_line_bytes, lines))
        while job.logs_bytes > LOG_LIMIT_BYTES:
            job.logs_bytes -= estimate_line_bytes(job.logs.popleft())
            job.logs_dropped += 1

    async def watch(self, job_id: str, version: int, timeout_s: float) -> DesiredState:
        """Return the desired state once it is newer than `version`, or after the timeout."""
        job = self._find_or_add_job(job_id)
        try:
            async with asyncio.timeout(timeout_s):
                while job.orders.version <= version:
                    await job.ordered.wait()
        except TimeoutError:
            pass
        return job.orders

    async def order(self, job_id: str, orders: DesiredState) -> int:
        """Hold the desired state unless a newer one is held; return the version now held."""
        job = self._find_or_add_job(job_id)
        if orders.version > job.orders.version:
            job.orders = orders
            job.ordered.set()
            job.ordered = asyncio.Event()
        return job.orders.version

    async def drain(self, job_id: str, confirmed: Cursor) -> Drained:
        """Return the records that the database does not hold yet, and drop the others.

        Log lines are returned once; those of a lost answer are gone and not counted.
        """
        return self._drain_job(job_id, confirmed)

    async def drain_many(self, cursors: Mapping[str, Cursor]) -> dict[str, Drained]:
        """Drain several jobs in one call, by id; jobs left out of a full answer come first next
        time.
        """
        return self._bounded.drain_many(
            cursors, max_records=DRAIN_LIMIT, max_log_bytes=LOG_LIMIT_BYTES
        )

    async def guest_protocol(self) -> tuple[int, str]:
        """Return the version of the calls for guest runs, and that of the package; plain values,
        for any version.
        """
        return GUEST_PROTOCOL, package_version()

    async def enlist(self, guest: Guest) -> PostResponse | Fenced:
        """List a guest run until it is forgotten; the run repeats the call every few seconds while
        it is alive.
        """
        job = self._find_or_add_job(guest.job_id)
        if fenced := job.check_token(FencingToken(GUEST_ATTEMPT, guest.generation)):
            return fenced
        job.guest, job.enlisted_at = guest, self._clock()
        return replace(job.make_response(), namesake=self._find_namesake(guest))

    async def guests(self) -> tuple[Guest, ...]:
        """Return the guest runs that have enlisted and were not forgotten, ended and silent ones
        included.
        """
        return tuple(job.guest for job in self._jobs.values() if job.guest is not None)

    async def progress(self, job_id: str) -> Progress | None:
        """Return the job's last reported progress."""
        job = self._jobs.get(job_id)
        return job.progress if job is not None else None

    async def claim(self, scheduler: str, last_s: float) -> str:
        """Claim the cluster for a scheduler, or renew its claim; return the scheduler that now
        holds it.

        Schedulers of one database take turns by its lease, so a foreign claim means a second
        database.
        """
        now = self._clock()
        if self._claim is None or self._claim[0] == scheduler or now >= self._claim[1]:
            self._claim = (scheduler, now + last_s)
        return self._claim[0]

    async def forget(self, job_id: str) -> None:
        """Drop everything held for a job."""
        self._jobs.pop(job_id, None)

    def _drain_job(self, job_id: str, confirmed: Cursor) -> Drained:
        job = self._jobs.get(job_id)
        if job is None:
            return Drained()
        job.drop_confirmed(confirmed)
        records = tuple(job.records[key] for key in sorted(job.records)[:DRAIN_LIMIT])
        logs, dropped = tuple(job.logs), job.logs_dropped
        job.logs.clear()
        job.logs_bytes = job.logs_dropped = 0
        return Drained(
            records=records,
            progress=job.progress,
            logs=logs,
            logs_dropped=dropped,
            orders_version=job.orders.version,
            silent_s=self._clock() - job.enlisted_at if job.guest is not None else None,
        )

    def _find_namesake(self, guest: Guest) -> str | None:
        """Return the id of an older guest run of this name that is alive. Ids of guest runs grow
        with time.
        """
        for job_id, job in self._jobs.items():
            is_alive = not job.has_ended and self._clock() - job.enlisted_at < GUEST_SILENCE_S
            has_name = job.guest is not None and job.guest.name == guest.name
            if is_alive and has_name and job_id < guest.job_id:
                return job_id
        return None

    def _find_or_add_job(self, job_id: str) -> _Job:
        return self._jobs.setdefault(job_id, _Job())
