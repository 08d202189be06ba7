"""Calls an asynchronous client as if it blocked, for tests that run with both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from accordion_client import AsyncClient

END = object()


class InEventLoop:
    """An `AsyncClient` with the interface of `Client`; each call runs in an event loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client, self._runner = client, asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            if inspect.isasyncgen(made):
                return self._iterate(made)
            return self._runner.run(made) if inspect.iscoroutine(made) else made

        return call

    def _iterate(self, items: AsyncGenerator[Any, None]) -> Iterator[Any]:
        try:
            while (item := self._runner.run(read_next(items))) is not END:
                yield item
        finally:
            self._runner.run(close(items))

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


async def read_next(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items, END)


async def close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
