"""Feeds: one job's unreadable row ends no other job's streams, and progress never runs back."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from threading import Event
from typing import cast

import pytest

from accordion_service.api.feeds import Feed, FeedHub, Frame, StreamPage, follow_feed
from accordion_service.store.reads.jobs import JobReads


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

    def format_gap(self, first: int, last: int) -> str:
        return f"gap {first} to {last}, "


def test_a_job_that_cannot_be_read_ends_only_its_own_streams() -> None:
    async def watch() -> tuple[bool, bool]:
        versions = _Versions()
        hub = FeedHub(cast("JobReads", versions), Event())
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
            return [await anext(stream) for _ in range(4)]

    found = "".join(asyncio.run(read()))
    assert found.count("older") == 1
    assert "newer" not in found


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (2, "frame 3, gap 4 to 8, frame 9, frame 10, "),
        (3, "gap 4 to 8, frame 9, frame 10, "),
        (6, "gap 7 to 8, frame 9, frame 10, "),
        (9, "frame 10, "),
    ],
)
def test_each_stream_is_told_of_the_items_that_it_lacks(after: int, told: str) -> None:
    async def read() -> str:
        feed = Feed(_Job("good"), StreamPage(version=1, newest=2))
        async with aclosing(follow_feed(feed, after, keepalive_s=60)) as stream:
            retry = await anext(stream)
            # Items 4 to 8 are removed before the feed has read them.
            for numbers in ((3,), (9, 10)):
                frames = tuple(Frame(number=one, text=f"frame {one}, ") for one in numbers)
                feed.add(StreamPage(version=2, newest=10, frames=frames))
            assert retry.startswith("retry: ")
            return await anext(stream)

    assert asyncio.run(read()) == told
