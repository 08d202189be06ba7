"""Rows of panels of the dashboard *Service*: the health of the control plane.

Metrics from the database are the same in all API processes, so their queries drop `instance` with
`max`; metrics of the processes themselves are added up, or shown by `instance`.
"""

from __future__ import annotations

from collections.abc import Mapping

from panels import RATE, YES_NO, Panel, Query, Row, one_query

from accordion_service.domain.jobs.status_table import STATUS_TABLE, UNFINISHED, Phase

_GUEST_STATES = "|".join(status for status in UNFINISHED if STATUS_TABLE[status].is_for_guests)
_GUESTS = f'accordion_guests{{state=~"{_GUEST_STATES}"}}'
_TRAINING = "|".join(
    status for status, traits in STATUS_TABLE.items() if traits.phase is Phase.TRAINING
)
_REQUESTS = "accordion_api_request_duration_seconds"
_TURNS = "accordion_scheduler_turn_duration_seconds"
_DELAYS = "accordion_record_delay_seconds"
_PERCENTILES = (("median", 0.5), ("95th percentile", 0.95), ("99th percentile", 0.99))


def of_service(name: str) -> str:
    """Build the query for a metric from the database, from any API process."""
    return f"max without (instance) ({name})"


def rate_of_service(name: str) -> str:
    """Build the query for the rate per second of a counter from the database."""
    return f"max without (instance) (rate({name}{RATE}))"


def _percentiles(buckets: str) -> tuple[Query, ...]:
    return tuple(
        Query(expr=f"histogram_quantile({fraction}, sum by (le) ({buckets}))", legend=legend)
        for legend, fraction in _PERCENTILES
    )


REQUESTS = Row(
    title="Requests",
    panels=(
        Panel(
            title="Requests per second",
            unit="reqps",
            stacked=True,
            description="Requests to all API processes, by status of the response.",
            queries=one_query(f"sum by (status) (rate({_REQUESTS}_count{RATE}))", "{{status}}"),
        ),
        Panel(
            title="Response time",
            unit="s",
            description="Time to the first byte of a response, over all routes.",
            queries=_percentiles(f"rate({_REQUESTS}_bucket{RATE})"),
        ),
        Panel(
            title="Response time by route, 95th percentile",
            unit="s",
            description="Time to the first byte of a response, by route.",
            queries=one_query(
                f"histogram_quantile(0.95, sum by (le, route) (rate({_REQUESTS}_bucket{RATE})))",
                "{{route}}",
            ),
        ),
        Panel(
            title="Slots in use",
            unit="percentunit",
            width=24,
            description=(
                "Connections, threads and write slots in use, as a fraction of their limits; at the"
                " limit, requests wait or get status 503."
            ),
            queries=one_query(
                "accordion_api_slots_used / (accordion_api_slots_limit > 0)",
                "{{kind}} of {{instance}}",
            ),
        ),
    ),
)
SCHEDULER = Row(
    title="Scheduler",
    panels=(
        Panel(
            title="Heartbeat age",
            unit="s",
            description="Seconds since the scheduler last renewed its lease, which lasts 3 s.",
            queries=one_query(
                f"time() - {of_service('accordion_scheduler_heartbeat_timestamp_seconds')}", "age"
            ),
        ),
        Panel(
            title="Duration of a turn",
            unit="s",
            description=(
                "In a turn the scheduler looks after all unfinished jobs. Starts, overrides and new"
                " records wait for the next one."
            ),
            queries=_percentiles(rate_of_service(f"{_TURNS}_bucket")),
        ),
        Panel(
            title="Turns per second",
            description=(
                "Turns per second: fewer than 4 if turns take long, and 0 if the scheduler hangs."
            ),
            queries=one_query(rate_of_service(f"{_TURNS}_count"), "turns"),
        ),
        Panel(
            title="Unexpected errors",
            width=12,
            description=(
                "Errors per minute that ended a turn, or the work on one job in a turn; the log of"
                " the scheduler shows each."
            ),
            queries=one_query(
                f"60 * {rate_of_service('accordion_scheduler_errors_total')}", "{{scope}}"
            ),
        ),
        Panel(
            title="Changes of the lease",
            width=6,
            description="Times that another scheduler process took over, also after a restart.",
            queries=one_query(of_service("accordion_scheduler_lease_changes_total"), "changes"),
        ),
        Panel(
            title="Cluster reachable",
            kind="stat",
            width=6,
            values=YES_NO,
            description=(
                "Whether the scheduler reaches the Ray cluster; Ray's dashboard shows its nodes."
            ),
            queries=one_query(of_service("accordion_cluster_reachable"), "reachable"),
        ),
    ),
)
NODES = Row(
    title="Nodes",
    panels=(
        Panel(
            title="Nodes by state",
            width=12,
            description=(
                "Nodes that could take workers. AVOIDED: workers of several jobs failed there."
                " FAILING: used although it would be avoided, because half of the nodes of its kind"
                " already are. CORDONED: by an operator."
            ),
            queries=one_query(of_service("accordion_nodes"), "{{state}}"),
        ),
        Panel(
            title="Failures by node",
            width=12,
            description=(
                "Failures of workers within the last hour that may be the fault of their node."
            ),
            queries=one_query(of_service("accordion_node_failures"), "{{node}}"),
        ),
    ),
)
RECORDS = Row(
    title="Records",
    panels=(
        Panel(
            title="Records per second",
            description="Epochs, decisions, checkpoints and other records that were stored.",
            queries=one_query(rate_of_service(f"{_DELAYS}_count"), "records"),
        ),
        Panel(
            title="Delay of records",
            unit="s",
            description=(
                "Seconds from the time at which a worker made a record until it was stored. A clock"
                " of a worker that is behind adds to it."
            ),
            queries=_percentiles(rate_of_service(f"{_DELAYS}_bucket")),
        ),
        Panel(
            title="Oldest progress reports",
            unit="s",
            description="The five training jobs whose newest progress report is oldest.",
            queries=one_query(
                f"topk(5, time() - {of_service('accordion_job_progress_timestamp_seconds')}"
                " and on (job_id) max by (job_id)"
                f' (accordion_job_state{{state=~"{_TRAINING}"}}) == 1)',
                "{{job_id}}",
            ),
        ),
    ),
)
QUEUE = Row(
    title="Queue",
    panels=(
        Panel(
            title="Jobs",
            width=12,
            description="All jobs by state, guest runs that have not ended, and queued jobs.",
            queries=(
                Query(expr=of_service("accordion_jobs"), legend="{{state}}"),
                Query(
                    expr=f"sum({of_service(_GUESTS)})",
                    legend="guest runs",
                ),
                Query(expr=of_service("accordion_queue_jobs"), legend="queue"),
            ),
        ),
        Panel(
            title="Longest wait in the queue",
            unit="s",
            width=12,
            description=(
                "Seconds for which the job that waits longest has waited, by reason; 0 if none"
                " waits."
            ),
            queries=one_query(of_service("accordion_queue_age_seconds"), "{{reason}}"),
        ),
        Panel(
            title="Request to the autoscaler",
            width=12,
            description=(
                "Parts of the standing request to Ray's autoscaler: workers of waiting jobs, and"
                " capacity that is held; 0 without an autoscaler."
            ),
            queries=one_query(of_service("accordion_autoscaler_bundles"), "{{kind}}"),
        ),
        Panel(
            title="Exchanges with the autoscaler",
            width=12,
            description=(
                "Requests per minute that were sent, also repeated ones, and exchanges that failed;"
                " accordion queue says why."
            ),
            queries=one_query(
                f"60 * {rate_of_service('accordion_autoscaler_requests_total')}", "{{outcome}}"
            ),
        ),
    ),
)
DATABASE = Row(
    title="Database",
    panels=(
        Panel(
            title="Errors of the API",
            description="Database errors per minute in all API processes, by kind.",
            queries=one_query(
                f"60 * sum by (kind) (rate(accordion_api_database_errors_total{RATE}))", "{{kind}}"
            ),
        ),
        Panel(
            title="Errors of the scheduler",
            description=(
                "Database errors per minute of the scheduler, by kind; shown once it can write"
                " again."
            ),
            queries=one_query(
                f"60 * {rate_of_service('accordion_scheduler_database_errors_total')}", "{{kind}}"
            ),
        ),
        Panel(
            title="Database reachable",
            kind="timeline",
            values=YES_NO,
            description="Whether each API process could read the database at its last scrape.",
            queries=one_query("accordion_api_database_reachable", "{{instance}}"),
        ),
    ),
)
STREAMS = Row(
    title="Streams",
    panels=(
        Panel(
            title="Open streams",
            width=12,
            description=(
                "Event streams of browsers and clients that watch a job, by API process. Each one"
                " holds a connection."
            ),
            queries=one_query("accordion_api_streams", "{{instance}}"),
        ),
        Panel(
            title="Open connections",
            width=12,
            description="Client connections by API process, and their maximum number.",
            queries=(
                Query(expr='accordion_api_slots_used{kind="connection"}', legend="{{instance}}"),
                Query(
                    expr='accordion_api_slots_limit{kind="connection"}',
                    legend="limit of {{instance}}",
                ),
            ),
        ),
    ),
)
WEBHOOKS = Row(
    title="Webhooks",
    panels=(
        Panel(
            title="Messages",
            description="Messages that wait for an attempt, and those that were given up.",
            queries=one_query(of_service("accordion_webhook_deliveries"), "{{state}}"),
        ),
        Panel(
            title="Longest overdue message",
            unit="s",
            description="Seconds for which a message should have been sent; 0 if none should.",
            queries=one_query(of_service("accordion_webhook_overdue_seconds"), "overdue"),
        ),
        Panel(
            title="Attempts per minute",
            description=(
                "Attempts to deliver a message, by the state after them; after PENDING another"
                " attempt follows."
            ),
            queries=one_query(
                f"60 * {rate_of_service('accordion_webhook_attempts_total')}", "{{outcome}}"
            ),
        ),
    ),
)
SERVICE_ANNOTATIONS: Mapping[str, tuple[str, str]] = {
    "Changes of the lease": (
        "red",
        "changes(accordion_scheduler_lease_changes_total[$__interval]) > 0",
    ),
}
SERVICE_ROWS = (REQUESTS, SCHEDULER, NODES, RECORDS, QUEUE, DATABASE, STREAMS, WEBHOOKS)
