"""Metrics of one api process: its streams, its slots and the errors of its database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anyio import CapacityLimiter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from accordion_service.api.app_state import AppState
from accordion_service.views.metric_samples import Family, Sample, build_metrics

PROCESS_FAMILIES: Mapping[str, Family] = {
    "accordion_api_database_errors_total": Family(
        "counter", "Database errors of this api process, by kind."
    ),
    "accordion_api_streams": Family("gauge", "Open event streams of this api process."),
    "accordion_api_slots_used": Family(
        "gauge",
        "Client connections, threads for requests, and slots for requests that write, which this"
        " api process uses now. The scrape itself uses a thread.",
    ),
    "accordion_api_slots_limit": Family("gauge", "Maximum number of each kind of slot."),
}


class ProcessMetrics(Collector):
    """A collector of what the process does at the moment; `threads` limits its routes."""

    def __init__(self, state: AppState, threads: CapacityLimiter) -> None:
        self._state = state
        self._threads = threads

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics for prometheus_client."""
        return build_metrics(PROCESS_FAMILIES, self._collect_samples())

    def _collect_samples(self) -> Iterator[Sample]:
        state = self._state
        for kind, count in state.database.errors.count_by_kind().items():
            yield Sample("accordion_api_database_errors_total", count, {"kind": kind})
        yield Sample("accordion_api_streams", state.feeds.num_streams, {})
        for kind, used, limit in (
            ("connection", state.connections.num_open, state.connections.limit),
            ("thread", self._threads.borrowed_tokens, self._threads.total_tokens),
            ("write", state.write_slots.num_used, state.write_slots.num_slots),
        ):
            yield Sample("accordion_api_slots_used", used, {"kind": kind})
            yield Sample("accordion_api_slots_limit", limit, {"kind": kind})
