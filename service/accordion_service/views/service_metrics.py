"""Metrics of the whole service: jobs, queue, scheduler, records and webhooks, from the database.

All api processes export the same values. What belongs to one of them is in
`api/process_metrics.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from accordion_service.domain.capacity.autoscaling import read_autoscaler_record
from accordion_service.domain.capacity.cluster_snapshot import find_available_nodes, name_of_node
from accordion_service.domain.capacity.nodes import NodeState, find_states
from accordion_service.domain.jobs.statuses import Kind, Reason, Status
from accordion_service.domain.webhooks.retries import DeliveryState
from accordion_service.store.engine.database import Database
from accordion_service.store.engine.database_errors import ErrorKind
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.metrics import read_deliveries, read_queue_starts
from accordion_service.store.tables.models import LeaseRow
from accordion_service.store.writes.nodes import NodeStore
from accordion_service.store.writes.scheduler_counts import (
    AUTOSCALER_REQUESTS,
    DATABASE_ERRORS,
    ERRORS,
    RECORD_DELAYS,
    SUM,
    TURN_SECONDS,
    WEBHOOK_ATTEMPTS,
    Counts,
    ErrorScope,
    bucket_labels,
)
from accordion_service.views.metric_samples import Family, Sample

SERVICE_FAMILIES: Mapping[str, Family] = {
    "accordion_jobs": Family(
        "gauge", "Jobs by state, including ended ones, without guest runs (accordion_guests)."
    ),
    "accordion_guests": Family("gauge", "Guest runs by state, including ended ones."),
    "accordion_queue_jobs": Family("gauge", "Queued jobs."),
    "accordion_queue_age_seconds": Family(
        "gauge",
        "Seconds for which the job that waits longest has waited, by reason; 0 if none waits."
        " Without jobs whose start_at has not come.",
    ),
    "accordion_scheduler_heartbeat_timestamp_seconds": Family(
        "gauge", "Time at which the scheduler last renewed its lease."
    ),
    "accordion_scheduler_lease_changes_total": Family(
        "counter", "Times that another scheduler process took the lease, also after a restart."
    ),
    "accordion_scheduler_turn_duration_seconds": Family(
        "histogram", "Seconds that each turn of the scheduler took, also of those that failed."
    ),
    "accordion_scheduler_errors_total": Family(
        "counter",
        "Unexpected errors of the scheduler: those that ended a turn, and those that ended its"
        " work on one job in a turn.",
    ),
    "accordion_scheduler_database_errors_total": Family(
        "counter", "Database errors of the scheduler, by kind; stored once it can write again."
    ),
    "accordion_cluster_reachable": Family(
        "gauge", "1 if the scheduler reaches the Ray cluster, otherwise 0."
    ),
    "accordion_autoscaler_bundles": Family(
        "gauge",
        "Parts of the request to Ray's autoscaler: workers of waiting jobs, and capacity that is"
        " held; 0 without an autoscaler.",
    ),
    "accordion_autoscaler_requests_total": Family(
        "counter", "Requests to Ray's autoscaler that were sent, and exchanges with it that failed."
    ),
    "accordion_nodes": Family(
        "gauge", "Nodes that could take workers, by whether they do: see GET /nodes."
    ),
    "accordion_node_failures": Family(
        "gauge", "Failures within the last hour that may be the fault of a node, by its name."
    ),
    "accordion_record_delay_seconds": Family(
        "histogram",
        "Seconds from the time at which a worker made a record, by its own clock, until the record"
        " was in the database.",
    ),
    "accordion_webhook_deliveries": Family(
        "gauge", "Messages to webhooks that wait for an attempt, and those that were given up."
    ),
    "accordion_webhook_overdue_seconds": Family(
        "gauge",
        "Seconds for which the message that waits longest should have been sent; 0 if none should.",
    ),
    "accordion_webhook_attempts_total": Family(
        "counter",
        "Attempts to deliver a message, by the state after them: PENDING if another one follows.",
    ),
}
_FAILURES_S = 3600.0
"""Age of the oldest failure that is counted against a node here, in seconds."""
_QUEUE_REASONS = (
    Reason.SUBMITTED,
    Reason.WAITING_FOR_ROOM,
    Reason.WAITING_FOR_NODE,
    Reason.WAITING_FOR_QUOTA,
    Reason.WAITING_FOR_SECRET,
    Reason.NEVER_FITS,
    Reason.NOT_PLACED,
    Reason.START_TIMED_OUT,
    Reason.WORKERS_LOST,
    Reason.CLUSTER_UNREACHABLE,
    Reason.PREEMPTED,
    Reason.SERVICE_STOPPED,
    Reason.RESUMED,
    Reason.RETRIED,
)
"""Reasons for which a job waits; each is exported from the start, so that alerts have a value."""

_COUNTERS: Sequence[tuple[str, str, str, Sequence[str]]] = (
    ("accordion_scheduler_errors_total", "scope", ERRORS, get_args(ErrorScope)),
    ("accordion_scheduler_database_errors_total", "kind", DATABASE_ERRORS, [*ErrorKind]),
    ("accordion_webhook_attempts_total", "outcome", WEBHOOK_ATTEMPTS, [*DeliveryState]),
    ("accordion_autoscaler_requests_total", "outcome", AUTOSCALER_REQUESTS, ("sent", "failed")),
)
"""Name and label of each counter, what the scheduler counts for it, and all values of the label:
each is exported from the start, since a counter that appears with an event has no rate.
"""


def service_samples(database: Database, now: float) -> Iterator[Sample]:
    """Yield the samples of the service at a time, in seconds since 1970."""
    jobs, cluster_reads = JobReads(database), ClusterReads(database)
    counts = jobs.count_by_status()
    for status, count in counts.items():
        yield Sample("accordion_jobs", count, {"state": status})
    for status, count in jobs.count_by_status(Kind.GUEST).items():
        yield Sample("accordion_guests", count, {"state": status})
    yield Sample("accordion_queue_jobs", counts[Status.QUEUED], {})
    began = read_queue_starts(database)
    for reason in dict.fromkeys([*_QUEUE_REASONS, *began]):
        age_s = max(0.0, now - began.get(reason, now))
        yield Sample("accordion_queue_age_seconds", age_s, {"reason": reason})
    cluster = cluster_reads.get()
    reachable = float(cluster is not None and cluster.reachable)
    yield Sample("accordion_cluster_reachable", reachable, {})
    record = read_autoscaler_record(cluster.autoscaler if cluster else None)
    for kind, number in {"waiting": record.num_waiting, "held": record.num_held}.items():
        yield Sample("accordion_autoscaler_bundles", number, {"kind": kind})
    yield from _node_samples(database, cluster.nodes if cluster else [], now)
    yield from _scheduler_samples(cluster_reads.scheduler_lease())
    waiting = read_deliveries(database, now)
    for state, count in waiting.count_by_state.items():
        yield Sample("accordion_webhook_deliveries", count, {"state": state})
    overdue_s = 0.0 if waiting.due_since is None else now - waiting.due_since
    yield Sample("accordion_webhook_overdue_seconds", overdue_s, {})


def _node_samples(
    database: Database, nodes: Sequence[Mapping[str, Any]], now: float
) -> Iterator[Sample]:
    store, names = NodeStore(database, lambda: now), find_available_nodes(nodes)
    states = find_states(store.read_records(names), names, now)
    by_state = Counter(states[name] for name in names)
    for state in NodeState:
        yield Sample("accordion_nodes", by_state[state], {"state": state})
    failures = store.count_failures(last_s=_FAILURES_S)
    alive = {name_of_node(node) for node in nodes if node["alive"]}
    for name in sorted(alive | failures.keys()):
        yield Sample("accordion_node_failures", failures.get(name, 0), {"node": name})


def _scheduler_samples(lease: LeaseRow | None) -> Iterator[Sample]:
    counts: Counts = lease.counts if lease else {}
    if lease is not None:
        name = "accordion_scheduler_heartbeat_timestamp_seconds"
        yield Sample(name, lease.renewed_at, {})
        yield Sample("accordion_scheduler_lease_changes_total", lease.token - 1, {})
    yield from _histogram_samples("accordion_scheduler_turn_duration_seconds", TURN_SECONDS, counts)
    yield from _histogram_samples("accordion_record_delay_seconds", RECORD_DELAYS, counts)
    for name, label, source, values in _COUNTERS:
        for value in values:
            yield Sample(name, counts.get(source, {}).get(value, 0.0), {label: value})


def _histogram_samples(name: str, source: str, counts: Counts) -> Iterator[Sample]:
    counted, total = counts.get(source, {}), 0.0
    for label in bucket_labels(source):
        total += counted.get(label, 0.0)
        yield Sample(name, total, {"le": label}, "_bucket")
    yield Sample(name, total, {}, "_count")
    yield Sample(name, counted.get(SUM, 0.0), {}, "_sum")
