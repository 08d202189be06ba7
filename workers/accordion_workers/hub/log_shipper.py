"""Sends what a process prints or logs, in bounded batches, without delaying a step.

`capture_output` collects the lines and a thread of `LogShipper` sends them. Lines that come faster
than they leave are dropped and counted.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TextIO

from accordion_workers.common.plain_text import clean_text
from accordion_workers.common.secret_mask import SecretMask
from accordion_workers.hub.actor_client import ActorClient, ActorTimeoutError
from accordion_workers.hub.actor_messages import estimate_line_bytes
from accordion_workers.hub.journal import Clock
from accordion_workers.records.contract import LogLine

BATCH_BYTES = 64 * 1024
BATCH_PAUSE_S = 0.5
"""Pause between batches; with `BATCH_BYTES` a process sends at most 128 KB/s."""
BUFFER_BYTES = 512 * 1024
"""Maximum size of unsent lines: four seconds at the highest rate."""
LINE_BYTES = 8 * 1024
"""Maximum size of a line; the rest is cut."""
REDRAW_S = 10.0
"""Seconds between two states of a progress bar."""
SEND_TIMEOUT_S = 10.0
LOG_FLUSH_S = 3.0
"""How long an ending process waits to send its last log lines."""

_PIECES = re.compile(r"[^\r\n]+|[\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """Process that wrote a log line."""

    job_id: str
    attempt: int
    rank: int | None
    """Rank of a worker; None for the supervisor."""


class LogShipper:
    """Sends lines to the Accordion actor, without the secrets that `mask` knows. Any thread may
    write.
    """

    def __init__(
        self,
        source: LogSource,
        client: ActorClient,
        clock: Clock,
        *,
        mask: SecretMask | None = None,
    ) -> None:
        self._source = source
        self._client = client
        self._clock = clock
        self._mask = mask or SecretMask()
        self._lines: list[LogLine] = []
        self._bytes = 0
        self._dropped = 0
        self._busy = False
        self._hurried = False
        """Whether `flush` waits for all lines to be sent."""
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)

    def start(self) -> None:
        """Start the sending thread."""
        self._thread.start()

    def write(self, text: str) -> None:
        """Add the lines of a text; returns at once."""
        source, now = self._source, self._clock()
        text = self._mask.apply(text)
        for line in text.splitlines() or [text]:
            self._add_line(
                LogLine(attempt=source.attempt, rank=source.rank, time=now, text=_clean_line(line))
            )

    def flush(self, timeout_s: float) -> bool:
        """Send all lines now; return False if that takes longer than the timeout."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._lines and not self._busy, timeout_s)
            finally:
                self._hurried = False

    def close(self) -> None:
        """Stop sending; lines that were not flushed are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add_line(self, line: LogLine) -> None:
        with self._changed:
            if self._bytes + estimate_line_bytes(line) > BUFFER_BYTES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._bytes += estimate_line_bytes(line)
            self._changed.notify_all()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._send_batch(batch)
            except Exception:  # noqa: BLE001  # the job's log itself is broken
                traceback.print_exc(file=sys.__stderr__)
            with self._changed:
                self._changed.wait_for(lambda: self._hurried or self._closed, BATCH_PAUSE_S)

    def _next_batch(self) -> list[LogLine]:
        """Wait for lines and return one batch; empty when the shipper is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            if self._closed:
                return []
            count, size = 0, 0
            while (
                count < len(self._lines)
                and (size := size + estimate_line_bytes(self._lines[count])) <= BATCH_BYTES
            ):
                count += 1
            batch, self._lines = self._lines[:count], self._lines[count:]
            self._bytes -= sum(map(estimate_line_bytes, batch))
            self._busy = True
            return batch

    def _send_batch(self, batch: list[LogLine]) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        lost = dropped + len(batch)
        try:
            with suppress(ActorTimeoutError):
                self._client("log", self._source.job_id, batch, dropped, timeout_s=SEND_TIMEOUT_S)
                lost = 0
        finally:
            self._finish_batch(lost)

    def _finish_batch(self, lost: int) -> None:
        with self._changed:
            self._dropped += lost
            self._busy = False
            self._changed.notify_all()


class _Tee(io.TextIOBase):
    """Forwards text to a stream, and its lines to a function; the maximum length ends a line too,
    but not within a secret that `mask` knows. Of a line that is written over again and again, as
    progress bars are, one in `REDRAW_S` is passed on, and the last.
    """

    def __init__(self, stream: TextIO, take: Callable[[str], None], mask: SecretMask) -> None:
        self._stream = stream
        self._take = take
        self._mask = mask
        self._rest = ""
        self._has_returned = False
        """Whether what follows, unless that is a newline, overwrites the open line."""
        self._shown_at = -REDRAW_S
        """Time at which an overwritten line was passed on."""
        self._begun = False
        """Whether the open line has text, so that its end is not an empty line."""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        # A UTF-8 stream raises on invalid text, and a job must not end because of what it prints.
        self._stream.write(clean_text(text))
        with self._lock:
            lines = list(self._split_lines(text))
        for line in lines:
            self._take(line)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def pass_rest(self) -> None:
        """Pass on an unfinished last line."""
        if self._rest:
            self._take(self._rest)

    def _split_lines(self, text: str) -> Iterator[str]:
        for piece in _PIECES.findall(text):
            if piece == "\r":
                self._has_returned = True
            elif piece == "\n":
                if self._rest or not self._begun:
                    yield self._rest
                self._rest, self._has_returned = "", False
            else:
                yield from self._add_to_line(piece)
            self._begun = piece != "\n"

    def _add_to_line(self, piece: str) -> Iterator[str]:
        if self._has_returned and self._rest:
            if time.monotonic() >= self._shown_at + REDRAW_S:
                self._shown_at = time.monotonic()
                yield self._rest
            self._rest = ""
        self._has_returned = False
        self._rest += piece
        if len(self._rest) > LINE_BYTES + self._mask.longest:
            yield self._cut_rest()

    def _cut_rest(self) -> str:
        """Return what is held of a long line, but keep its end, which may begin a secret."""
        masked = self._mask.apply(self._rest)
        end = max(len(masked) - self._mask.longest, 0)
        self._rest = masked[end:]
        return masked[:end]

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


class _Handler(logging.Handler):
    """Passes log records as text to a function."""

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._take = take
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._take(self.format(record))


@contextmanager
def capture_output(take: Callable[[str], None], mask: SecretMask | None = None) -> Iterator[None]:
    """Pass everything that this process prints or logs inside the block to `take`, line by line. A
    line that is too long is cut into several, but not within a secret that `mask` knows.
    """
    root, handler = logging.getLogger(), _Handler(take)
    level, handlers = root.level, root.handlers
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            tee = _Tee(stream, take, mask or SecretMask())
            stack.callback(tee.pass_rest)
            stack.enter_context(redirect(tee))
        # The only handler: another one that writes to stderr would repeat every line.
        root.handlers = [handler]
        stack.callback(setattr, root, "handlers", handlers)
        root.setLevel(min(level, logging.INFO) if level else logging.INFO)
        stack.callback(root.setLevel, level)
        yield


@contextmanager
def ship_logs(
    source: LogSource, client: ActorClient, mask: SecretMask | None = None
) -> Iterator[LogShipper]:
    """Send what this process prints or logs inside the block to the job's log, without the secrets
    that `mask` knows.
    """
    shipper = LogShipper(source, client, time.time, mask=mask)
    shipper.start()
    try:
        with capture_output(shipper.write, mask):
            yield shipper
    finally:
        shipper.flush(LOG_FLUSH_S)
        shipper.close()


def _clean_line(line: str) -> str:
    """Return the line cleaned and cut to the maximum length."""
    return clean_text(line).encode()[:LINE_BYTES].decode(errors="ignore")


__all__ = ["LogShipper", "LogSource", "capture_output", "ship_logs"]
