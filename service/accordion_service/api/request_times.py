"""Response times of the api by route: the only metric kept in the process."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import Histogram, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNMATCHED = "unmatched"
"""Route label of unknown paths, so that guessed paths add no series."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""Method label of other methods, so that they add no series."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds."""


class RequestTimes(Collector):
    """A collector of the requests that `TimedRequests` saw."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._seconds = Histogram(
            "accordion_api_request_duration_seconds",
            "Seconds from request to first byte of the response, by method, route and status.",
            ("method", "route", "status"),
            buckets=BUCKETS,
            registry=None,
        )

    def observe(self, seconds: float, *, method: str, route: str, status: int) -> None:
        """Record one request."""
        self._seconds.labels(method, route, str(status)).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Collect the histogram for prometheus_client."""
        yield from self._seconds.collect()


class TimedRequests:
    """ASGI middleware; a stream counts up to its first byte, since it ends with its client."""

    def __init__(self, app: ASGIApp, times: RequestTimes) -> None:
        self._app = app
        self._times = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - started
                method = scope["method"] if scope["method"] in METHODS else OTHER
                self._times.observe(
                    seconds, method=method, route=_route_path(scope), status=message["status"]
                )
            await send(message)

        await self._app(scope, receive, timed)


def _route_path(scope: Scope) -> str:
    # The route of a router that FastAPI includes with a prefix has a path without that prefix.
    included = scope.get("fastapi", {}).get("effective_route_context")
    return getattr(included or scope.get("route"), "path", UNMATCHED)
