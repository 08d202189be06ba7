"""Sends records to the database: journaled at once, sent by a thread, kept until confirmed.

Used by rank 0 and by the supervisor. Callers never wait for the actor, which may take seconds to
restart.
"""

from __future__ import annotations

import logging
import threading
import time

from accordion_workers.hub.actor_client import ActorClient, ActorTimeoutError
from accordion_workers.hub.actor_messages import Fenced, FencingToken, PostResponse
from accordion_workers.hub.journal import Journal, read_records, record_key
from accordion_workers.records.contract import Cursor, Payload, Progress, Record

TICK_S = 0.25
"""Pause between two calls while records are unsent or unconfirmed; longer if the actor asks."""
HURRIED_TICK_S = 0.01
"""Pause between two calls during a flush."""
POST_LIMIT = 1000
"""Maximum records in one call: a few megabytes, so that a long history does not time out."""
POST_TIMEOUT_S = 5.0
"""Timeout of a post; the actor restarts within 1 s after its process was killed."""

_DROPPABLE = frozenset({"epoch", "decision", "acks"})
"""Kinds of records that may be dropped, oldest first, above the limit."""

log = logging.getLogger(__name__)


class RecordSender:
    """Posts records in order until they are confirmed; any thread may add one.

    Args:
        job_id: the job.
        journal: where records are kept.
        client: client of the Accordion actor.
        limit: number of unconfirmed records above which the oldest epochs and decisions are
            dropped, also from the journal, which then holds at most twice as many. With a limit,
            older records that cannot be read are left out. None keeps all.
    """

    def __init__(
        self, job_id: str, journal: Journal, client: ActorClient, *, limit: int | None = None
    ) -> None:
        self.token = FencingToken(journal.attempt, journal.generation)
        self._job_id = job_id
        self._journal = journal
        self._client = client
        self._limit = limit
        self._pending: list[Record] = []
        self._sent = 0
        """Number of pending records that the actor holds."""
        self._on_disk = 0
        """Number of records in the journal."""
        self._has_history = False
        """Whether the records of older generations were read."""
        self._progress: Progress | None = None
        self._confirmed = Cursor()
        """Newest record that the database held; older ones are in the journal only."""
        self._incarnation: str | None = None
        """Id of the actor's memory that holds the sent records; None if none is known."""
        self._hurried = False
        """Whether `flush` waits for all records to be sent."""
        self._pause_s = TICK_S
        self._closed = False
        self._changed = threading.Condition()
        self.superseded = False
        """Whether a newer worker group runs the job."""
        self._thread = threading.Thread(target=self._run, name="record-sender", daemon=True)

    def start(self) -> None:
        """Start sending, first the unconfirmed records of older generations."""
        self._thread.start()

    def put(self, payload: Payload) -> None:
        """Add a record; on return it is in the journal.

        Raises:
            OSError: the storage cannot be written.
        """
        with self._changed:
            self._pending.append(self._journal.write(payload))
            self._on_disk += 1
            self._changed.notify_all()

    def put_progress(self, progress: Progress) -> None:
        """Replace the progress to be sent."""
        with self._changed:
            self._progress = progress
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the actor holds all records; return False after the timeout or if fenced."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.superseded or self._all_sent(), timeout_s)
            self._hurried = False
            return self._all_sent()

    def close(self) -> None:
        """Stop sending; unconfirmed records stay in the journal."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _all_sent(self) -> bool:
        return self._has_history and self._sent == len(self._pending) and self._progress is None

    def _read_history(self) -> bool:
        """Read the records of older generations that are not confirmed; return whether that is
        done.
        """
        confirmed = self._fetch_confirmed()
        if confirmed is None:
            return False
        try:
            records = read_records(self._journal.storage, confirmed)
        except OSError:
            if self._limit is None:
                raise
            log.exception("records of earlier worker groups could not be read")
            records = []
        with self._changed:
            self._confirmed = confirmed
            mine = {record_key(record) for record in self._pending}
            self._pending[:0] = [record for record in records if record_key(record) not in mine]
            self._on_disk = len(self._pending)
            self._has_history = True
        return True

    def _fetch_confirmed(self) -> Cursor | None:
        """Return the newest confirmed record that the actor knows; None if it did not answer, or
        a newer worker group runs the job. With a limit, all records of the journal are held in
        memory, so the actor is not asked.
        """
        if self._limit is not None:
            return Cursor()
        answer = self._post(())
        if isinstance(answer, Fenced):
            with self._changed:
                self.superseded = True
                self._changed.notify_all()
            return None
        if answer is None:
            return None
        self._incarnation = answer.incarnation
        return answer.confirmed

    def _run(self) -> None:
        while self._wait_for_records():
            try:
                if self._has_history or self._read_history():
                    self._post_records()
                    self._limit_records()
            except Exception:
                log.exception("records could not be sent; retrying")
            self._pause_between_posts()

    def _pause_between_posts(self) -> None:
        """Pause so that records gather; a flush shortens the pause."""
        deadline = time.monotonic() + self._pause_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurried or self._closed, deadline - time.monotonic()
            )
        time.sleep(max(0.0, min(HURRIED_TICK_S, deadline - time.monotonic())))

    def _wait_for_records(self) -> bool:
        """Wait for unsent or unconfirmed records; return False when the sender is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._pending
                    or self._progress is not None
                    or not self._has_history
                )
            )
            return not (self._closed or self.superseded)

    def _post_records(self) -> None:
        with self._changed:
            new, progress = (
                tuple(self._pending[self._sent : self._sent + POST_LIMIT]),
                self._progress,
            )
        answer = self._post(new, progress)
        if answer is not None:
            with self._changed:
                self._handle_response(answer, sent=len(new), progress=progress)
                self._changed.notify_all()

    def _post(
        self, records: tuple[Record, ...], progress: Progress | None = None
    ) -> PostResponse | Fenced | None:
        """Return the actor's answer; None if it gave none in time."""
        reported = {"progress": progress, "incarnation": self._incarnation}
        try:
            answer: PostResponse | Fenced = self._client(
                "post", self._job_id, self.token, records, **reported, timeout_s=POST_TIMEOUT_S
            )
        except ActorTimeoutError:
            return None
        return answer

    def _handle_response(
        self, answer: PostResponse | Fenced, *, sent: int, progress: Progress | None
    ) -> None:
        if isinstance(answer, Fenced):
            self.superseded = True
            return
        forgot = self._incarnation is not None and self._incarnation != answer.incarnation
        self._incarnation = answer.incarnation
        self._pause_s = max(TICK_S, answer.pause_s)
        self._sent = 0 if forgot else self._sent + sent
        self._progress = None if self._progress is progress else self._progress
        newest = record_key(answer.confirmed)
        if forgot and record_key(Cursor()) < newest < record_key(self._confirmed):
            self._has_history = False  # The database was restored from a backup.
        else:
            self._drop_confirmed(answer.confirmed)

    def _drop_confirmed(self, confirmed: Cursor) -> None:
        self._confirmed = max(self._confirmed, confirmed, key=record_key)
        kept = [record for record in self._pending if record_key(record) > record_key(confirmed)]
        self._sent = max(0, self._sent - (len(self._pending) - len(kept)))
        self._pending = kept

    def _limit_records(self) -> None:
        """Drop the oldest records above the limit; only the sending thread calls this."""
        if self._limit is None:
            return
        with self._changed:
            if (num_excess := len(self._pending) - self._limit) > 0:
                kinds = [record.payload.kind for record in self._pending]
                dropped = {n for n, kind in enumerate(kinds) if kind in _DROPPABLE}
                dropped = set(sorted(dropped)[:num_excess])
                self._sent -= sum(n < self._sent for n in dropped)
                self._pending = [
                    record for n, record in enumerate(self._pending) if n not in dropped
                ]
            if self._on_disk - len(self._pending) >= self._limit:
                self._on_disk = len(self._pending)
                self._journal.compact({record_key(record) for record in self._pending})
