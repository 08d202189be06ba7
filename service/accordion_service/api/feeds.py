"""Shared reads for event streams: one task follows all watched jobs, so that streams read no events
of their own.

The task compares the versions of the watched jobs in one query, and reads new items once per feed.
A stream is a cursor into the newest frames of a feed. A stream that falls behind reads pages from
the database until it has caught up; it delays neither the task nor other streams, and the memory
of a feed does not depend on its streams.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from threading import Event
from typing import Protocol

import anyio
import anyio.lowlevel
import structlog

from accordion_service.store.reads.jobs import JobReads

POLL_S = 0.2
"""Interval between two queries for the versions of the watched jobs."""
RETRY_MS = 1000
"""Delay in milliseconds before a client reconnects."""
MAX_FEED_CHARS = 1 << 20
"""Characters of frames that a feed keeps. A stream that needs older ones reads the database."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One numbered event in the wire format."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPage:
    """Result of one read of a job's stream."""

    version: int | None
    """Version of the job's row; None if the row is gone."""
    newest: int
    """Number of the job's newest item; `frames` may be a page that ends before it."""
    frames: tuple[Frame, ...] = ()
    has_ended: bool = False
    """True if no item will follow the newest."""
    closing: str = ""
    """Unnumbered frame to send after the newest item of an ended job."""
    progress: str = ""
    """Unnumbered frame that may be skipped; only the newest matters."""


class Reader(Protocol):
    """Reads one kind of stream of one job."""

    @property
    def job_id(self) -> str:
        """ID of the watched job."""

    @property
    def key(self) -> Hashable:
        """Key that is equal for two readers whose streams have the same frames."""

    def read(self, after: int) -> StreamPage:
        """Read the items above a number; runs in a thread."""

    def format_gap(self, first: int, last: int) -> str:
        """Format the frame in place of items that are no longer kept; empty without one."""


class Feed:
    """Newest frames of one stream; used only on the event loop."""

    def __init__(self, reader: Reader, first: StreamPage) -> None:
        self.reader = reader
        self.newest_page = first
        self.num_streams = 0
        self.is_closed = False
        self.changed = asyncio.Event()
        """Set by the next change, which replaces it with a new event."""
        self._frames: deque[Frame] = deque()
        self._num_chars = 0
        self._base = first.newest
        """Number of the item before the oldest frame."""

    @property
    def position(self) -> int:
        """Number of the newest frame."""
        return self._frames[-1].number if self._frames else self._base

    def add(self, page: StreamPage) -> None:
        """Append frames that follow `position`, and wake the streams."""
        self.newest_page = page
        for frame in page.frames:
            self._frames.append(frame)
            self._num_chars += len(frame.text)
        while self._num_chars > MAX_FEED_CHARS:
            oldest = self._frames.popleft()
            self._base, self._num_chars = oldest.number, self._num_chars - len(oldest.text)
        self._wake()

    def since(self, after: int) -> Sequence[Frame] | None:
        """Return the frames above a number; None if the feed no longer has all of them."""
        if after < self._base:
            return None
        # From the newest: a stream that follows lacks a few of thousands.
        missing = list(takewhile(lambda frame: frame.number > after, reversed(self._frames)))
        return missing[::-1]

    def close(self) -> None:
        """End all streams; their clients reconnect."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()


class FeedHub:
    """All feeds of one API process, and the task that reads for them."""

    def __init__(self, jobs: JobReads, draining: Event) -> None:
        self._jobs = jobs
        self._draining = draining
        self._feeds: dict[Hashable, Feed] = {}
        self._task: asyncio.Task[None] | None = None
        self.num_streams = 0
        """Number of open streams."""

    @contextmanager
    def subscribe(self, reader: Reader, now: StreamPage) -> Iterator[Feed]:
        """Provide the feed of a reader inside the block. `now` is the state from which a new feed
        starts.
        """
        feed = self._feeds.get(reader.key)
        if feed is None or feed.is_closed:
            feed = self._feeds[reader.key] = Feed(reader, now)
        feed.num_streams += 1
        self.num_streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield feed
        finally:
            feed.num_streams -= 1
            self.num_streams -= 1
            if feed.num_streams == 0 and self._feeds.get(reader.key) is feed:
                del self._feeds[reader.key]

    async def _watch(self) -> None:
        while self._feeds and not self._draining.is_set():
            try:
                news = await anyio.to_thread.run_sync(self._read_news, list(self._feeds.values()))
            except Exception:  # noqa: BLE001  # clients reconnect and get the error
                _log.exception("streams")
                break
            for feed, page in news:
                if page is None:
                    feed.close()
                else:
                    feed.add(page)
                # Requests have their turn before the streams of the next feed.
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(POLL_S)
        for feed in self._feeds.values():
            feed.close()

    def _read_news(self, feeds: Sequence[Feed]) -> list[tuple[Feed, StreamPage | None]]:
        """Read all feeds that have changed; None for a job that cannot be read."""
        versions = self._jobs.versions({feed.reader.job_id for feed in feeds})
        return [
            (feed, _read_safely(feed))
            for feed in feeds
            if not feed.is_closed
            and (
                versions.get(feed.reader.job_id) != feed.newest_page.version
                or feed.position < feed.newest_page.newest
            )
        ]


def _read_safely(feed: Feed) -> StreamPage | None:
    """Read the new items of a feed; None on failure, so that the streams of other jobs continue."""
    try:
        return feed.reader.read(feed.position)
    except Exception:  # noqa: BLE001  # clients reconnect and get the error
        _log.exception("stream", job=feed.reader.job_id)
        return None


async def follow_feed(feed: Feed, after: int, *, keepalive_s: float) -> AsyncIterator[str]:
    """Yield the frames after a number until the job has ended or the feed is closed; those that are
    known at one time together, because each text is written to the connection by itself.
    """
    yield f"retry: {RETRY_MS}\n\n"
    progress = ""
    while not feed.is_closed:
        changed, page, frames = feed.changed, feed.newest_page, feed.since(after)
        if frames is None:
            page = await anyio.to_thread.run_sync(feed.reader.read, after)
            frames = page.frames
        text = format_frames(feed.reader, after, frames)
        after = frames[-1].number if frames else after
        has_ended = page.has_ended and after >= page.newest
        if has_ended:
            text += page.closing
        # A page is newer than the feed: sending its progress could put newer progress before older.
        elif feed.newest_page.progress != progress:
            progress = feed.newest_page.progress
            text += progress
        if text:
            yield text
        if has_ended:
            return
        if not frames and not await _wait_for_change(changed, keepalive_s):
            yield ": keep-alive\n\n"


def format_frames(reader: Reader, after: int, frames: Sequence[Frame]) -> str:
    """Format frames for a stream that has the items up to `after`, with the gaps before them."""
    texts = []
    for frame in frames:
        if frame.number > after + 1:
            texts.append(reader.format_gap(after + 1, frame.number - 1))
        texts.append(frame.text)
        after = frame.number
    return "".join(texts)


async def _wait_for_change(changed: asyncio.Event, limit_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await changed.wait()
    return changed.is_set()
