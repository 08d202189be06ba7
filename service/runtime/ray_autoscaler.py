"""Ray's autoscaler: what it reports, and the standing request of its cluster.

Ray has two versions of it. Version 1 reads the request from Ray's key-value store, and serves
what it can of it. Version 2 gets it from GCS, drops it if any part is impossible, and reports that.
Neither reports its node types; only the autoscalers of some platforms do.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import structlog
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.core.generated.autoscaler_pb2 import ClusterConfig, GetClusterStatusReply, NodeStatus

from service.domain.capacity_request import NodeType
from service.domain.resources import Resources, sort_custom
from service.runtime.protocol import AutoscalerReport
from workers.workers_spec import BUILT_IN_RESOURCES

LOOK_INTERVAL_S = 5.0
"""Seconds between two exchanges with an autoscaler, which itself looks for requests every 5 s."""
SEARCH_INTERVAL_S = 60.0
"""Seconds between two looks for an autoscaler where there was none."""
RESEND_INTERVAL_S = 60.0
"""Seconds until a request is sent again: Ray may have been restarted, or another program may have
replaced it.
"""
CALL_TIMEOUT_S = 10.0
"""Timeout of a call to GCS; no turn of the scheduler waits for it."""
_UNNAMED_TYPE = "node_"
"""Begin of the node types that version 1 gives to nodes which nobody but a person started."""
_REPLACED = (
    "another program, such as Ray Data or a second installation, has replaced the request to the"
    " autoscaler; it is sent again every minute"
)
_MAX_ERROR_LENGTH = 200
_log = structlog.get_logger()

Bundle = dict[str, float]
"""Amounts of Ray's resources by name."""
Selector = dict[str, str]
"""Labels that a node must have."""
_Parts = Counter[tuple[frozenset[tuple[str, float]], frozenset[tuple[str, str]]]]
"""Parts of a request with their labels, in a form that can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    """What the autoscaler and GCS report."""

    exists: bool
    node_types: tuple[NodeType, ...]
    standing: _Parts | None = None
    """Request that GCS holds; None if it does not say."""
    version: int = 0
    """Version of the cluster's state in which that was read."""
    judged_version: int = 0
    """Version that the autoscaler had read when it last reported."""
    is_impossible: bool = False
    """Whether it then could not serve the request."""


def request_resources(bundles: list[Bundle], selectors: list[Selector]) -> None:
    """Replace the standing request of the cluster that this process is connected to."""
    # These imports take a second, and most clusters have no autoscaler.
    from ray.autoscaler import sdk
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    is_autoscaler_v2(fetch_from_server=True)  # Ray remembers this of the cluster before
    sdk.request_resources(bundles=bundles, bundle_label_selectors=selectors)


class RayAutoscaler:
    """Exchanges requests and reports with the autoscaler, in a thread at a time.

    Args:
        clock: monotonic.
        connect: creates a client of the GCS at an address.
        send: replaces the standing request.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str], Any] = lambda address: ray._raylet.GcsClient(address=address),
        send: Callable[[list[Bundle], list[Selector]], None] = request_resources,
    ) -> None:
        self._clock = clock
        self._connect = connect
        self._send = send
        self._thread: threading.Thread | None = None
        self._began_at: float | None = None
        self._report = AutoscalerReport()
        """Replaced as a whole, since the scheduler reads it while the thread runs."""
        self._sender: int | None = None
        """Sender of the last request."""
        self._sent_at = 0.0
        self._sent_version = 0
        """Version of the cluster's state that had the last request first."""

    def exchange(
        self, address: str, bundles: Sequence[Resources], *, sender: int, always: bool
    ) -> AutoscalerReport:
        """Start an exchange if one is due, and return what the last one found."""
        now, report = self._clock(), self._report
        is_busy = self._thread is not None and self._thread.is_alive()
        is_rare = report.exists is False and not always
        interval_s = SEARCH_INTERVAL_S if is_rare else LOOK_INTERVAL_S
        if is_busy or (self._began_at is not None and now - self._began_at < interval_s):
            return report
        self._began_at = now
        self._thread = threading.Thread(
            target=self._try_exchange,
            args=(address, tuple(bundles)),
            kwargs={"sender": sender, "always": always},
            name="autoscaler",
            daemon=True,
        )
        self._thread.start()
        return report

    def wait(self, timeout_s: float) -> bool:
        """Wait for the exchange that was started last; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _try_exchange(
        self, address: str, bundles: tuple[Resources, ...], *, sender: int, always: bool
    ) -> None:
        before = self._report
        try:
            report = self._exchange(address, bundles, sender=sender, always=always)
        except Exception as error:  # noqa: BLE001  # Ray's errors are of many types
            problem = f"the autoscaler could not be asked ({_describe_error(error)})"
            report = replace(
                self._report, is_possible=None, problem=problem, num_failed=before.num_failed + 1
            )
        if report.problem != before.problem:
            _log.warning("autoscaler", problem=report.problem or "solved")
        self._report = replace(report, num_exchanges=before.num_exchanges + 1)

    def _exchange(
        self, address: str, bundles: tuple[Resources, ...], *, sender: int, always: bool
    ) -> AutoscalerReport:
        gcs = self._connect(address)
        status = _read_status(gcs)
        report = replace(
            self._report, exists=status.exists, node_types=status.node_types, problem=""
        )
        if not (status.exists or always):
            return replace(report, sent=None, is_possible=None)
        parts = [(_to_bundle(part), dict(part.labels)) for part in bundles]
        is_new = self._sender != sender or report.sent != bundles
        is_lost = status.standing is not None and bool(parts) and not status.standing
        is_old = bool(parts) and self._clock() - self._sent_at >= RESEND_INTERVAL_S
        if is_new or is_lost or is_old:
            self._send([bundle for bundle, _ in parts], [selector for _, selector in parts])
            self._sender, self._sent_at = sender, self._clock()
            report = replace(report, sent=bundles, num_sent=report.num_sent + 1)
            status = _read_status(gcs)
            if is_new or is_lost:
                self._sent_version = status.version
        if status.standing is not None and status.standing != _count_parts(parts):
            return replace(report, is_possible=None, problem=_REPLACED)
        is_judged = status.judged_version > self._sent_version
        return replace(report, is_possible=not status.is_impossible if is_judged else None)


def _describe_error(error: Exception) -> str:
    """Return the type and the first line of an error; Ray adds the stack to some."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first[:_MAX_ERROR_LENGTH]}"


def _read_status(gcs: Any) -> _Status:
    names, namespace = ray._raylet, ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE
    config = _read_key(gcs, names.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, namespace)
    node_types = _list_node_types(config)
    if _read_key(gcs, names.GCS_AUTOSCALER_V2_ENABLED_KEY, namespace) == b"1":
        return _read_version_2(gcs, node_types)
    status = json.loads(_read_key(gcs, DEBUG_AUTOSCALING_STATUS, None) or b"{}")
    found = (status.get("autoscaler_report") or {}).get("active_nodes") or {}
    is_named = any(not name.startswith(_UNNAMED_TYPE) for name in found)
    return _Status(exists=is_named or bool(node_types), node_types=node_types)


def _read_version_2(gcs: Any, node_types: tuple[NodeType, ...]) -> _Status:
    reply = GetClusterStatusReply.FromString(gcs.get_cluster_status(timeout_s=CALL_TIMEOUT_S))
    state, cluster = reply.autoscaling_state, reply.cluster_resource_state
    is_named = any(
        node.ray_node_type_name for node in cluster.node_states if node.status != NodeStatus.DEAD
    )
    judged = state.last_seen_cluster_resource_state_version
    standing: _Parts = Counter()
    for constraint in cluster.cluster_resource_constraints:
        for part in constraint.resource_requests:
            labels = (
                (one.label_key, value)
                for selector in part.request.label_selectors
                for one in selector.label_constraints
                for value in one.label_values
            )
            amounts = frozenset(part.request.resources_bundle.items())
            standing[amounts, frozenset(labels)] += part.count
    return _Status(
        exists=(is_named and judged > 0) or bool(node_types),
        node_types=node_types,
        standing=standing,
        version=cluster.cluster_resource_state_version,
        judged_version=judged,
        is_impossible=len(state.infeasible_cluster_resource_constraints) > 0,
    )


def _read_key(gcs: Any, key: str, namespace: str | None) -> bytes | None:
    found: bytes | None = gcs.internal_kv_get(
        key.encode(), namespace.encode() if namespace else None, timeout=CALL_TIMEOUT_S
    )
    return found


def _list_node_types(config: bytes | None) -> tuple[NodeType, ...]:
    groups = ClusterConfig.FromString(config).node_group_configs if config else ()
    return tuple(
        NodeType(name=group.name, resources=_build_capacity(dict(group.resources)))
        for group in groups
        if group.resources and group.max_count != 0
    )


def _build_capacity(amounts: Mapping[str, float]) -> Resources:
    return Resources(
        cpus=float(amounts.get("CPU", 0.0)),
        gpus=float(amounts.get("GPU", 0.0)),
        memory=float(amounts.get("memory", math.inf)),
        custom=sort_custom(
            {name: float(some) for name, some in amounts.items() if name not in BUILT_IN_RESOURCES}
        ),
    )


def _to_bundle(part: Resources) -> Bundle:
    amounts = {"CPU": part.cpus, "GPU": part.gpus, "memory": part.memory, **dict(part.custom)}
    return {name: round(some, 4) for name, some in amounts.items() if some > 0}


def _count_parts(parts: Sequence[tuple[Bundle, Selector]]) -> _Parts:
    return Counter(
        (frozenset(bundle.items()), frozenset(selector.items())) for bundle, selector in parts
    )
