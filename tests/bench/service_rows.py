"""What is measured of a service: one function per row."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from accordion_client import Client
from accordion_service.domain.capacity.allocation import plan_allocations
from accordion_service.domain.capacity.queue import AllocatedJob, PendingJob, QueueRules, plan_queue
from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from tests.bench.service_load import API, submit_jobs, time_requests, watch_events
from tests.bench.service_stage import Stage

SUBMISSIONS = 200
BURST_CLIENTS, BURST_S = 16, 20.0
LIST_PAGES = 200
"""Pages of each list that are read."""
REQUESTS = 100
COMMANDS = 5
RUNNING_JOBS, WATCHED_JOBS, WATCHERS = 500, 20, 1000
LONG_EPOCH_S = 30.0
MEASURE_S = 30.0
PLANS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was measured on one database."""

    text: str
    met: bool
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table."""

    name: str
    title: str
    reach: str
    measure: Callable[[Stage], Outcome]


def _measure_lists(stage: Stage) -> Outcome:
    queries: list[dict[str, Any]] = [
        {},
        {"status": "FAILED"},
        {"status": "RUNNING"},
        {"owner": "user-7"},
        {"name": "sweep-77"},
        {"name_prefix": "sweep-7"},
        {"name_prefix": "nothing"},
        {"label": "team:a"},
        {"label": "run:77"},
        {"kind": "guest"},
        {"created_before": "2020-01-01T00:00:00Z"},
        {"reason": "NEVER_FITS"},
        {"desired": "PAUSE"},
        {"priority": "99"},
        {"workers": "7"},
        {"method": "topk"},
        {"ended_after": "2020-01-01T00:00:00Z"},
        {"started_before": "2020-01-01T00:00:00Z"},
        {"name_prefix": "sweep", "status": "RUNNING"},
        {"owner": "user-7", "status": "FAILED", "label": "team:b"},
        {"status": "SUCCEEDED", "method": "topk"},
        {"status": "SUCCEEDED", "priority": "99"},
        {"status": "SUCCEEDED", "ended_after": "2099-01-01T00:00:00Z"},
        {"status": "SUCCEEDED", "name_prefix": "nothing"},
        {"status": "SUCCEEDED", "name": "sweep-77"},
        {"status": "CANCELLED", "owner": "user-7"},
        {"status": "SUCCEEDED", "owner": "user-7", "name": "sweep-77"},
        {"status": "SUCCEEDED", "label": "team:a", "method": "topk"},
        {"label": "team:a", "method": "topk"},
        {"label": "team:a", "priority": "99"},
        {"label": "team:a", "ended_after": "2099-01-01T00:00:00Z"},
        {"archived": "true"},
        {"archived": "true", "name": "sweep-70"},
        {"archived": "any"},
        {"archived": "any", "owner": "user-7"},
        {"archived": "any", "status": "FAILED"},
    ]
    p99 = {urlencode(query) or "all": _percentile(_read_pages(stage, query)) for query in queries}
    slowest = max(p99, key=lambda query: p99[query])
    return Outcome(
        text=f"p99 {_ms(p99[slowest])} ({slowest})",
        met=p99[slowest] < 0.05,
        details={query: round(seconds, 4) for query, seconds in p99.items()},
    )


def _read_pages(stage: Stage, query: dict[str, Any]) -> list[float]:
    """Read pages of 50 jobs one after the other, from the first one again after the last."""
    seconds: list[float] = []
    connection, cursor = stage.target.connect(), None
    for _ in range(LIST_PAGES):
        page = {"cursor": cursor} if cursor else {}
        path = f"{API}/jobs?{urlencode({**query, **page, 'limit': 50})}"
        started = time.perf_counter()
        cursor = stage.target.request(connection, "GET", path)["next_cursor"]
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds


def _measure_show(stage: Stage) -> Outcome:
    seconds = [stage.time_command("show", "template") for _ in range(COMMANDS)]
    median = statistics.median(seconds)
    return Outcome(text=f"{median:.2f} s", met=median < 0.5, details={"seconds": seconds})


def _measure_pages(stage: Stage) -> Outcome:
    paths = ("/metrics", f"{API}/cluster", "/readyz")
    # The service is only ready while a scheduler runs.
    with stage.run_jobs(1):
        p99 = {path: _percentile(time_requests(stage.target, path, REQUESTS)) for path in paths}
    text = ", ".join(f"`{path.removeprefix(API)}` {_ms(p99[path])}" for path in paths)
    return Outcome(text=f"p99 {text}", met=max(p99.values()) < 0.1, details=p99)


def _measure_jobs(stage: Stage) -> Outcome:
    found = _follow_jobs(stage, epoch_s=LONG_EPOCH_S)
    p99 = _percentile(found["turns"])
    return Outcome(text=_describe_turns(found), met=p99 < 0.25, details=_count_measured(found))


def _measure_reports(stage: Stage) -> Outcome:
    found = _follow_jobs(stage, epoch_s=1.0)
    lag = _percentile(found["lags"])
    text = f"lag p50 {statistics.median(found['lags']):.2f} s, p99 {lag:.2f} s"
    return Outcome(
        text=f"{text}; {_describe_turns(found)}", met=lag < 2.0, details=_count_measured(found)
    )


def _follow_jobs(stage: Stage, *, epoch_s: float) -> dict[str, list[float]]:
    with stage.run_jobs(RUNNING_JOBS, epoch_s=epoch_s) as (scheduler, _):
        scheduler.take_measured()
        time.sleep(MEASURE_S)
        return scheduler.take_measured()


def _describe_turns(found: dict[str, list[float]]) -> str:
    turns = found["turns"]
    return f"turn p50 {_ms(statistics.median(turns))}, p99 {_ms(_percentile(turns))}"


def _count_measured(found: dict[str, list[float]]) -> dict[str, int]:
    return {"turns": len(found["turns"]), "records": len(found["lags"])}


def _measure_streams(stage: Stage) -> Outcome:
    spawn = multiprocessing.get_context("spawn")
    results, sender = spawn.Pipe(duplex=False)
    with stage.run_jobs(WATCHED_JOBS) as (_, job_ids):
        paths = [f"{API}/jobs/{job_ids[n % WATCHED_JOBS]}/events?last=0" for n in range(WATCHERS)]
        watchers = spawn.Process(
            target=watch_events,
            args=(stage.target, paths, sender),
            kwargs={"duration_s": MEASURE_S},
        )
        watchers.start()
        sender.close()
        results.recv()
        others: list[float] = []
        while not results.poll():
            for path in (f"jobs/{job_ids[0]}", "jobs?limit=50"):
                others += time_requests(stage.target, f"{API}/{path}", 10)
        ages = results.recv()
        watchers.join()
    age, other = _percentile(ages), _percentile(others)
    return Outcome(
        text=f"age p99 {age:.2f} s; other requests p99 {_ms(other)}",
        met=age < 1.5 and other < 0.1,
        details={"events": len(ages), "age_p50": statistics.median(ages), "others": len(others)},
    )


def _measure_submission(stage: Stage) -> Outcome:
    seconds = []
    with Client(stage.target.url, stage.target.token) as client:
        for number in range(SUBMISSIONS):
            started = time.perf_counter()
            client.submit({"name": f"one-{number}", "task": {"name": "digits-mlp"}})
            seconds.append(time.perf_counter() - started)
    p50 = statistics.median(seconds)
    return Outcome(
        text=f"p50 {_ms(p50)}, p99 {_ms(_percentile(seconds))}",
        met=p50 <= 0.005,
        details={"submissions": len(seconds)},
    )


def _measure_burst(stage: Stage) -> Outcome:
    found = submit_jobs(stage.target, clients=BURST_CLIENTS, duration_s=BURST_S)
    rate, p99 = len(found.accepted) / found.took_s, _percentile(found.seconds)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(
            submit_jobs, stage.target, clients=BURST_CLIENTS, duration_s=BURST_S / 2
        )
        time.sleep(BURST_S / 4)
        stage.kill_api()
        stage.start_api()
        around = killed.result()
    accepted = [*found.accepted, *around.accepted]
    lost = len(accepted) - stage.known_jobs(accepted)
    return Outcome(
        text=f"{rate:.0f}/s, p99 {_ms(p99)}; {lost} lost",
        met=rate >= 300 and p99 < 0.2 and lost == 0,
        details={"accepted": len(accepted), "without_response": found.failed + around.failed},
    )


def _measure_plan(_: Stage) -> Outcome:
    """Time the pure rules, which use no database."""
    draw = random.Random(0)
    nodes = [Resources(cpus=7, gpus=0, node=f"node-{n}") for n in range(256)]
    running = [
        AllocatedJob(
            id=f"running-{n}",
            request=ResourceRequest(min=8, max=32, cpus=1, gpus=0),
            allocated_workers=16,
            placed=tuple(f"node-{(16 * n + worker) % 256}" for worker in range(16)),
            priority=draw.choice([20, 50, 80]),
        )
        for n in range(100)
    ]
    waiting = [
        PendingJob(
            id=f"waiting-{n}",
            request=ResourceRequest(
                min=draw.choice([4, 8, 16]), max=32, cpus=draw.choice([1, 2, 4]), gpus=0
            ),
            priority=draw.choice([20, 50, 80]),
        )
        for n in range(1000)
    ]
    waiting.sort(key=lambda job: -job.priority)
    seconds = {}
    for may_pause in (False, True):
        rules, taken = QueueRules(may_pause=may_pause), []
        for _ in range(PLANS):
            started = time.perf_counter()
            plan_queue(waiting, nodes, running, rules=rules)
            plan_allocations(running, waiting, nodes, rules=rules)
            taken.append(time.perf_counter() - started)
        seconds["may pause" if may_pause else "may not pause"] = statistics.median(taken)
    worst = max(seconds.values())
    return Outcome(text=_ms(worst), met=worst < 0.2, details=seconds)


def _percentile(seconds: Sequence[float], part: float = 0.99) -> float:
    """Return the value below which this part of the values lies."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


ROWS = (
    Row(
        name="lists",
        title="page of 50 jobs, any filter, any page",
        reach="p99 < 50 ms",
        measure=_measure_lists,
    ),
    Row(
        name="show",
        title="`accordion show NAME`, the whole command",
        reach="< 0.5 s",
        measure=_measure_show,
    ),
    Row(
        name="pages",
        title="`/metrics`, `/cluster`, `/readyz`",
        reach="p99 < 100 ms",
        measure=_measure_pages,
    ),
    Row(
        name="plan",
        title="queue and allocation: 100 jobs of 16 workers, 256 nodes, 1,000 queued",
        reach="< 200 ms",
        measure=_measure_plan,
    ),
    Row(
        name="running",
        title="scheduler with 500 running jobs, epochs of 30 s",
        reach="turn p99 < 250 ms",
        measure=_measure_jobs,
    ),
    Row(
        name="reports",
        title="500 running jobs that end an epoch a second",
        reach="lag p99 < 2 s",
        measure=_measure_reports,
    ),
    Row(
        name="streams",
        title="1,000 watchers of 20 jobs that end an epoch a second",
        reach="age p99 < 1.5 s, other requests p99 < 100 ms",
        measure=_measure_streams,
    ),
    Row(
        name="submit",
        title="submission by one client",
        reach="p50 ≤ 5 ms",
        measure=_measure_submission,
    ),
    Row(
        name="burst",
        title="16 clients; then the api is killed while they submit",
        reach="≥ 300/s, p99 < 200 ms, none lost",
        measure=_measure_burst,
    ),
)
