"""Feeds: one job's unreadable row ends no other job's streams, and progress never runs back."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from threading import Event
from typing import cast

from service.api.feeds import Feed, FeedHub, Frame, StreamPage, follow_feed
from service.store.repository import Repository


class _Versions:
    def __init__(self) -> None:
        self.by_job = {"good": 1, "bad": 1}

    def versions(self, _job_ids: set[str]) -> dict[str, int]:
        return dict(self.by_job)


class _Job:
    """Reads one frame per version, or fails."""

    def __init__(self, job_id: str, *, is_readable: bool = True) -> None:
        self.job_id = self.key = job_id
        self._is_readable = is_readable

    def read(self, after: int) -> StreamPage:
        if not self._is_readable:
            raise KeyError("attempt")
        frames = tuple(
            Frame(number=number, text=f"frame {number}") for number in range(after + 1, 3)
        )
        return StreamPage(version=2, newest=2, frames=frames, progress="newer")


def test_a_job_that_cannot_be_read_ends_only_its_own_streams() -> None:
    async def watch() -> tuple[bool, bool]:
        versions = _Versions()
        hub = FeedHub(cast("Repository", versions), Event())
        now = StreamPage(version=1, newest=1)
        good, bad = _Job("good"), _Job("bad", is_readable=False)
        with hub.subscribe(good, now) as fine, hub.subscribe(bad, now) as broken:
            changed = fine.changed, broken.changed
            versions.by_job = {"good": 2, "bad": 2}
            async with asyncio.timeout(10):
                for change in changed:
                    await change.wait()
            return fine.is_closed, broken.is_closed

    assert asyncio.run(watch()) == (False, True)


def test_progress_of_a_stream_that_catches_up_does_not_run_back() -> None:
    async def read() -> list[str]:
        feed = Feed(_Job("good"), StreamPage(version=1, newest=2, progress="older"))
        async with aclosing(follow_feed(feed, 0, keepalive_s=0.01)) as stream:
            return [await anext(stream) for _ in range(5)]

    found = asyncio.run(read())
    assert [text for text in found if text in ("older", "newer")] == ["older"]
