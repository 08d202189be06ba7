"""Do the Grafana dashboards show something? Four questions, in the order in which they find
faults.

1. lint: is every panel complete (description, unit, queries, the chosen data source, no overlap)?
2. parse: is every expression PromQL?
3. names: does every expression name a metric that the service exports, and is every exported metric
    used somewhere?
4. live: does a Prometheus that scrapes a running service with a job in it answer every query with
    numbers?

    python -m tests.e2e.dashboard_check http://127.0.0.1:8080 JOB_ID

runs all four against a running service; the job has to run long enough for two evaluations.
ACCORDION_ADMIN_TOKEN is sent where it is set.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import promql_parser
import yaml

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
JOB_DASHBOARD = DASHBOARDS / "job.json"
RULES = ROOT / "deploy/prometheus/rules/accordion.yml"
SCRAPE_S = 1
RATE_INTERVAL = f"{4 * SCRAPE_S}s"
"""What Grafana fills in for `$__rate_interval` at this scrape interval."""
SUFFIXES = ("_bucket", "_count", "_sum")
READY_S = 120.0
"""Limit that only ends a failed check; a pass over all panels takes long on a busy machine."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One query of one panel."""

    panel: str
    expr: str


def main(base_url: str, job_id: str) -> int:
    """All four questions against a running service; the number of faults."""
    token = os.environ.get("ACCORDION_ADMIN_TOKEN")
    faults = check(read_dashboards(), base_url, job_id, token=token)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults) or "every panel has data\n")
    return len(faults)


def read_dashboards() -> list[dict[str, Any]]:
    """All dashboards, as Grafana loads them."""
    return [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]


def check(
    boards: Sequence[dict[str, Any]], base_url: str, job_id: str, *, token: str | None = None
) -> list[str]:
    """Faults of the dashboards, one sentence each; a later question is asked only when the ones
    before found nothing.
    """
    faults = [fault for board in boards for fault in (*lint(board), *parse_faults(board))]
    faults = faults or check_names(boards, base_url, token)
    if faults:
        return faults
    with prometheus("prometheus", base_url, token=token) as prometheus_url:
        return [fault for board in boards for fault in live_faults(board, prometheus_url, job_id)]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels but the rows' headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: dict[str, Any]) -> list[Target]:
    """All queries of all panels."""
    return [
        Target(panel=panel["title"], expr=query["expr"])
        for panel in panels(board)
        for query in panel.get("targets", [])
    ]


def annotations(board: dict[str, Any]) -> list[Target]:
    """Queries that mark moments on all panels."""
    return [Target(panel=mark["name"], expr=mark["expr"]) for mark in board["annotations"]["list"]]


def lint(board: dict[str, Any]) -> list[str]:
    """What is missing or overlaps."""
    faults = [
        f"panel {panel['title']!r} has no {what}"
        for panel in panels(board)
        for what in _missing(panel)
    ]
    rates = [target for target in targets(board) if re.search(r"\b(rate|increase)\(", target.expr)]
    faults += [
        f"{rate.panel!r} takes a rate over a fixed time"
        for rate in rates
        if "[$__rate_interval]" not in rate.expr
    ]
    return faults + [
        f"{a['title']!r} and {b['title']!r} overlap" for a, b in _overlaps(board["panels"])
    ]


def _missing(panel: dict[str, Any]) -> Iterator[str]:
    queries = panel.get("targets", [])
    sources = [panel.get("datasource"), *(query.get("datasource") for query in queries)]
    if not panel.get("description"):
        yield "description"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield "unit"
    if not queries or not all(query.get("expr") for query in queries):
        yield "query"
    if any(source is None or source["uid"] != "${datasource}" for source in sources):
        yield "choice of data source"


def _overlaps(placed: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for index, first in enumerate(placed):
        for second in placed[index + 1 :]:
            if _meet(first["gridPos"], second["gridPos"]):
                yield first, second


def _meet(a: dict[str, int], b: dict[str, int]) -> bool:
    across = a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"]
    down = a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]
    return across and down


def filled(expr: str, job_id: str = "some-job") -> str:
    """The expression as Grafana sends it."""
    values = {"$__rate_interval": RATE_INTERVAL, "$__interval": RATE_INTERVAL, "$job_id": job_id}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


def parse_faults(board: dict[str, Any]) -> list[str]:
    """Expressions that are no PromQL."""
    faults = []
    for target in (*targets(board), *annotations(board)):
        try:
            promql_parser.parse(filled(target.expr))
        except ValueError as error:
            faults.append(f"{target.panel!r} asks {target.expr!r}, which is no PromQL: {error}")
    return faults


def name_faults(boards: Iterable[dict[str, Any]], exported: Iterable[str]) -> list[str]:
    """Names that are asked for and not exported; names that are exported and used neither in these
    dashboards nor in an alert.
    """
    exported = set(exported)
    asked = {
        name: target.panel
        for board in boards
        for target in (*targets(board), *annotations(board))
        for name in names(filled(target.expr))
    }
    alerts = {name for expr in rule_expressions() for name in names(expr)}
    faults = [
        f"{panel!r} asks for {name}, which nothing exports"
        for name, panel in asked.items()
        if name not in exported
    ]
    faults += [
        f"an alert asks for {name}, which nothing exports" for name in sorted(alerts - exported)
    ]
    return faults + [
        f"{name} is exported and nobody looks at it"
        for name in sorted(exported - set(asked) - alerts)
    ]


def check_names(
    boards: Iterable[dict[str, Any]], base_url: str, token: str | None = None
) -> list[str]:
    """Compare names with what a running service exports now."""
    return name_faults(boards, exported_names(base_url, token))


def names(expr: str) -> set[str]:
    """Our metrics that an expression reads, histograms by their family."""
    found = re.findall(r"\baccordion_[a-z0-9_]+", re.sub(r'"[^"]*"', '""', expr))
    return {family(name) for name in found}


def family(sample: str) -> str:
    """The metric that a sample belongs to."""
    suffix = next((suffix for suffix in SUFFIXES if sample.endswith(suffix)), "")
    return sample.removesuffix(suffix)


def rule_expressions() -> list[str]:
    """Expressions of all alerts and recordings."""
    return [
        rule["expr"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    ]


def exported_names(base_url: str, token: str | None = None) -> set[str]:
    """Our metrics that the service exports now."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    text = (
        httpx2.get(f"{base_url}/metrics", headers=headers, timeout=READY_S).raise_for_status().text
    )
    return {
        family(name) for name in re.findall(r"^(accordion_[a-z0-9_]+)", text, flags=re.MULTILINE)
    }


def live_faults(
    board: dict[str, Any],
    prometheus_url: str,
    job_id: str,
    *,
    patience_s: float = READY_S,
    without: Collection[str] = (),
) -> list[str]:
    """Queries that are refused, or that find no number within the patience; of all panels but
    some.
    """
    refused = [
        mark
        for mark in annotations(board)
        if _values(prometheus_url, filled(mark.expr, job_id)) is None
    ]
    empty = [target for target in targets(board) if target.panel not in without]
    deadline = time.monotonic() + patience_s
    while empty and time.monotonic() < deadline:
        empty = [
            target
            for target in empty
            if not _has_numbers(prometheus_url, filled(target.expr, job_id))
        ]
        time.sleep(POLL_S if empty else 0)
    faults = [f"{mark.panel!r} asks {mark.expr!r}, which Prometheus refuses" for mark in refused]
    return faults + [
        f"{target.panel!r} asks {target.expr!r}, which finds nothing" for target in empty
    ]


def _has_numbers(prometheus_url: str, expr: str) -> bool:
    return any(math.isfinite(value) for value in _values(prometheus_url, expr) or ())


def _values(prometheus_url: str, expr: str) -> list[float] | None:
    """All numbers of the last minute; None where the query is refused."""
    now = time.time()
    query = {"query": expr, "start": now - 60, "end": now, "step": SCRAPE_S}
    answer = httpx2.get(f"{prometheus_url}/api/v1/query_range", params=query, timeout=READY_S)
    if answer.is_error:
        return None
    return [
        float(value) for series in answer.json()["data"]["result"] for _, value in series["values"]
    ]


@contextmanager
def prometheus(program: str, base_url: str, *, token: str | None = None) -> Iterator[str]:
    """A Prometheus of our own that scrapes the service every second; yields its address, ends with
    the block.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "prometheus.yml").write_text(yaml.safe_dump(_config(base_url, token)))
        command = [
            program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_ready(f"http://{address}")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def _config(base_url: str, token: str | None) -> dict[str, Any]:
    scrape: dict[str, Any] = {
        "job_name": "accordion",
        "static_configs": [{"targets": [urlsplit(base_url).netloc]}],
    }
    if token:
        scrape["authorization"] = {"credentials": token}
    return {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [scrape]}


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if httpx2.get(f"{url}/-/ready").is_success:
                return
        except httpx2.TransportError:
            pass
        time.sleep(POLL_S)
    raise TimeoutError(f"Prometheus at {url} was not ready within {READY_S:g} s")


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:3]), 1))
