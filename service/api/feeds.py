"""Shares what streams read: one task follows all watched jobs, so watchers cost no queries of their
own.

The task compares the versions of the watched jobs in one query, and reads what is new once per
feed. Streams are cursors into a feed's newest frames. One that falls behind these reads pages from
the database until it has caught up; it holds up neither the task nor other streams, and a feed's
memory does not depend on who reads it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Protocol

import anyio
import structlog

from service.store.repository import Repository

POLL_S = 0.2
"""Interval between two queries for the versions of the watched jobs."""
RETRY_MS = 1000
"""How long a client waits before it reconnects."""
MAX_FEED_CHARS = 1 << 20
"""Characters of frames that a feed keeps; a stream that needs older ones reads the database."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One numbered event in the wire format."""

    number: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a job found."""

    version: int | None
    """Version of the job's row; None if the row is gone."""
    newest: int
    """Number of the newest item that the job has; `frames` may be a page that ends before it."""
    frames: tuple[Frame, ...] = ()
    has_ended: bool = False
    """Whether no item will follow the newest."""
    closing: str = ""
    """Frame without a number that follows the newest item of an ended job."""
    progress: str = ""
    """Frame without a number that may be skipped; only the newest counts."""


class Reader(Protocol):
    """Reads one kind of stream of one job."""

    @property
    def job_id(self) -> str:
        """Job that is watched."""

    @property
    def key(self) -> Hashable:
        """Equal for two readers whose streams have the same frames."""

    def look(self, after: int) -> Look:
        """Read the items above that number; runs in a thread."""


class Feed:
    """The newest frames of one stream; used on the event loop only."""

    def __init__(self, reader: Reader, first: Look) -> None:
        self.reader = reader
        self.newest_look = first
        self.num_streams = 0
        self.is_closed = False
        self.changed = asyncio.Event()
        """Set at the next change, which replaces it."""
        self._frames: deque[Frame] = deque()
        self._num_chars = 0
        self._base = first.newest
        """Number of the item before the first frame that is kept."""

    @property
    def position(self) -> int:
        """Number of the newest frame."""
        return self._frames[-1].number if self._frames else self._base

    def add(self, look: Look) -> None:
        """Append the frames of a look after `position`, and wake the streams."""
        self.newest_look = look
        for frame in look.frames:
            self._frames.append(frame)
            self._num_chars += len(frame.text)
        while self._num_chars > MAX_FEED_CHARS:
            oldest = self._frames.popleft()
            self._base, self._num_chars = oldest.number, self._num_chars - len(oldest.text)
        self._wake()

    def since(self, after: int) -> Sequence[Frame] | None:
        """Frames above that number; None if older ones are needed than the feed keeps."""
        return (
            None
            if after < self._base
            else [frame for frame in self._frames if frame.number > after]
        )

    def close(self) -> None:
        """End all streams; their clients reconnect."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()


class FeedHub:
    """All feeds of one api process, and the task that reads for them while there are any."""

    def __init__(self, repository: Repository, draining: Event) -> None:
        self._repository = repository
        self._draining = draining
        self._feeds: dict[Hashable, Feed] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, reader: Reader, now: Look) -> Iterator[Feed]:
        """Hold the feed of this reader inside the block; `now` is the state from which a new feed
        starts.
        """
        feed = self._feeds.get(reader.key)
        if feed is None or feed.is_closed:
            feed = self._feeds[reader.key] = Feed(reader, now)
        feed.num_streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield feed
        finally:
            feed.num_streams -= 1
            if feed.num_streams == 0 and self._feeds.get(reader.key) is feed:
                del self._feeds[reader.key]

    async def _watch(self) -> None:
        while self._feeds and not self._draining.is_set():
            try:
                news = await anyio.to_thread.run_sync(self._read_news, list(self._feeds.values()))
            except Exception:  # noqa: BLE001  # clients reconnect and are told what is wrong
                _log.exception("streams")
                break
            for feed, look in news:
                if look is None:
                    feed.close()
                else:
                    feed.add(look)
            await anyio.sleep(POLL_S)
        for feed in self._feeds.values():
            feed.close()

    def _read_news(self, feeds: Sequence[Feed]) -> list[tuple[Feed, Look | None]]:
        """New looks by feed; None for a job that cannot be read."""
        versions = self._repository.versions({feed.reader.job_id for feed in feeds})
        return [
            (feed, _look_safely(feed))
            for feed in feeds
            if not feed.is_closed
            and (
                versions.get(feed.reader.job_id) != feed.newest_look.version
                or feed.position < feed.newest_look.newest
            )
        ]


def _look_safely(feed: Feed) -> Look | None:
    """Read what is new for a feed; None if that fails, so that no other job's streams end."""
    try:
        return feed.reader.look(feed.position)
    except Exception:  # noqa: BLE001  # clients reconnect and are told what is wrong
        _log.exception("stream", job=feed.reader.job_id)
        return None


async def follow(feed: Feed, after: int, *, keepalive_s: float) -> AsyncIterator[str]:
    """Yield what comes after a number, until nothing will follow or the feed is closed."""
    yield f"retry: {RETRY_MS}\n\n"
    progress = ""
    while not feed.is_closed:
        changed, look, frames = feed.changed, feed.newest_look, feed.since(after)
        if frames is None:
            look = await anyio.to_thread.run_sync(feed.reader.look, after)
            frames = look.frames
        for frame in frames:
            yield frame.text
            after = frame.number
        if look.has_ended and after >= look.newest:
            if look.closing:
                yield look.closing
            return
        # A page is newer than the feed's newest look: its progress would come before older
        # progress.
        if feed.newest_look.progress != progress:
            progress = feed.newest_look.progress
            yield progress
        if not frames and not await _wait(changed, keepalive_s):
            yield ": still here\n\n"


async def _wait(changed: asyncio.Event, limit_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await changed.wait()
    return changed.is_set()
