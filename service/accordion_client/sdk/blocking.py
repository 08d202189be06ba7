"""Runs asynchronous code without an event loop: its transport blocks, so that it never waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import httpx2

Answer = TypeVar("Answer")


def run_coroutine(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine that never waits, and return its result.

    Raises:
        RuntimeError: it waits for an event loop.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    coroutine.close()
    raise RuntimeError(f"{coroutine} waits for an event loop; give AsyncClient what it waits for")


def iterate_blocking(items: AsyncGenerator[Answer, None]) -> Iterator[Answer]:
    """Iterate over an asynchronous generator that never waits."""
    try:
        while True:
            try:
                item = run_coroutine(_read_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run_coroutine(_close_generator(items))


async def _read_next(items: AsyncGenerator[Answer, None]) -> Answer:
    return await anext(items)


async def _close_generator(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


class BlockingTransport(httpx2.AsyncBaseTransport):
    """Asynchronous interface of a transport that blocks."""

    def __init__(self, transport: httpx2.BaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the response; reading its body blocks too."""
        response = self._transport.handle_request(request)
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _BlockingStream(response.stream)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        self._transport.close()


class _BlockingStream(httpx2.AsyncByteStream):
    """Asynchronous interface of a body that blocks."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        self._stream.close()
