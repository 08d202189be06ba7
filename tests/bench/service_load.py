"""Clients of a service: those that make requests one after the other, and watchers of streams."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

API = "/api/v1"
_TIMEOUT_S = 60.0
_CONNECTS_AT_A_TIME = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Address of a service, and a token."""

    url: str
    token: str

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, which is kept alive."""
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=_TIMEOUT_S)

    def request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None
    ) -> Any:
        """Return the response as JSON, or as text.

        Raises:
            RuntimeError: the response is an error.
        """
        headers = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = None if body is None else json.dumps(body)
        connection.request(method, path, body=content, headers=headers)
        response = connection.getresponse()
        found = response.read().decode()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {found}")
        is_json = "json" in (response.getheader("Content-Type") or "")
        return json.loads(found) if is_json else found


def time_requests(target: Target, path: str, count: int) -> list[float]:
    """Return the seconds of each of `count` requests over one connection."""
    connection, seconds = target.connect(), []
    for _ in range(count):
        started = time.perf_counter()
        target.request(connection, "GET", path)
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds


@dataclass
class Submitted:
    """Submissions of several clients."""

    accepted: list[str] = field(default_factory=list)
    """IDs of the jobs that the service confirmed."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each."""
    failed: int = 0
    """Requests without a response."""
    took_s: float = 0.0


def submit_jobs(target: Target, *, clients: int, duration_s: float) -> Submitted:
    """Submit with several clients at once, each one job after the other."""
    end, started = time.perf_counter() + duration_s, time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda n: _submit_until(target, end, f"client-{n}"), range(clients)))
    return Submitted(
        accepted=[job_id for one in found for job_id in one.accepted],
        seconds=[seconds for one in found for seconds in one.seconds],
        failed=sum(one.failed for one in found),
        took_s=time.perf_counter() - started,
    )


def _submit_until(target: Target, end: float, name: str) -> Submitted:
    spec = {"name": name, "task": {"name": "digits-mlp"}, "training": {"epochs": 4}}
    connection, found = target.connect(), Submitted()
    while time.perf_counter() < end:
        started = time.perf_counter()
        try:
            job = target.request(connection, "POST", f"{API}/jobs", spec)
        except (OSError, http.client.HTTPException):  # the service was killed
            found.failed += 1
            connection.close()
            time.sleep(0.05)
            continue
        found.seconds.append(time.perf_counter() - started)
        found.accepted.append(job["id"])
    connection.close()
    return found


def watch_events(
    target: Target, paths: Sequence[str], results: Connection, *, duration_s: float
) -> None:
    """Open a stream of events for each path, and send when all are open, as a time, and then the
    age of each later event on its arrival.
    """
    asyncio.run(_watch_all(target, paths, results, duration_s))


async def _watch_all(
    target: Target, paths: Sequence[str], results: Connection, duration_s: float
) -> None:
    ages: list[tuple[float, float]] = []
    streams, slots = [], asyncio.Semaphore(_CONNECTS_AT_A_TIME)

    async def watch(path: str) -> None:
        async with slots:
            reader, writer = await _open_stream(target, path)
        streams.append(writer)
        async for line in reader:
            if line.startswith(b"data: ") and (at := _event_time(line)) is not None:
                ages.append((at, time.time() - at))
        raise RuntimeError(f"the stream {path} ended")

    tasks = [asyncio.create_task(watch(path)) for path in paths]
    while len(streams) < len(paths):
        await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
        _raise_errors(tasks)
    all_open = time.time()
    results.send(all_open)
    await asyncio.wait(tasks, timeout=duration_s, return_when=asyncio.FIRST_EXCEPTION)
    _raise_errors(tasks)
    results.send([age for at, age in ages if at > all_open])
    for task in tasks:
        task.cancel()


def _raise_errors(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


async def _open_stream(
    target: Target, path: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {target.token}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    )
    writer.write(request.encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"GET {path}: {status.decode().strip()}")
    return reader, writer


def _event_time(line: bytes) -> float | None:
    """Return when the event happened; None for progress."""
    event = json.loads(line.removeprefix(b"data: "))
    return datetime.fromisoformat(event["time"]).timestamp() if "seq" in event else None
