"""Ray's autoscaler: what it reports, and the standing request of its cluster.

Ray has two versions of it. Version 1 reads the request from Ray's key-value store, and serves
what it can of it. Version 2 gets it from GCS, drops it if any part is infeasible, and reports that.
Neither reports its node types; only the autoscalers of some platforms do.

Private parts of Ray are imported where they are used: if one is renamed, only requests fail.
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

from accordion_service.domain.capacity.requests import NodeType
from accordion_service.domain.capacity.resources import Resources, sort_custom
from accordion_service.runtime.protocol import AutoscalerReport
from accordion_workers.common.node_selectors import LabelCondition, Selector, format_selector
from accordion_workers.spec.workers import BUILT_IN_RESOURCES

POLL_INTERVAL_S = 5.0
"""Seconds between two polls; the autoscaler itself runs every 5 s."""
SEARCH_INTERVAL_S = 60.0
"""Seconds between two polls where no autoscaler was found."""
REPEAT_INTERVAL_S = 60.0
"""Seconds until a request is repeated: Ray may have been restarted, or another program may have
replaced it.
"""
CALL_TIMEOUT_S = 10.0
"""Timeout of a call to GCS; no turn of the scheduler waits for it."""
_UNNAMED_TYPE = "node_"
"""Prefix of the node type that version 1 reports for nodes started by hand."""
_REPLACED = (
    "another program, such as Ray Data or a second installation, has replaced the request to the"
    " autoscaler; ours is repeated every minute"
)
_MAX_ERROR_LENGTH = 200
_log = structlog.get_logger()

Bundle = dict[str, float]
"""Amounts of Ray's resources by name."""
_Part = tuple[Bundle, Selector]
_Parts = Counter[tuple[frozenset[tuple[str, float]], Selector]]
"""Parts of a request with their labels, in a form that can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    """What the autoscaler and GCS report."""

    exists: bool
    node_types: tuple[NodeType, ...]
    standing: _Parts | None = None
    """Request that GCS holds; None with version 1."""
    version: int = 0
    """Version of the cluster's state in which that was read."""
    judged_version: int = 0
    """Version that the autoscaler had read when it last reported."""
    is_infeasible: bool = False
    """Whether the request was then infeasible."""


class RayAutoscaler:
    """Exchanges requests and reports with the autoscaler, in a thread at a time.

    Args:
        clock: monotonic.
        connect: creates a client of the GCS at an address.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str], Any] = lambda address: ray._raylet.GcsClient(address=address),
    ) -> None:
        self._clock = clock
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._began_at: float | None = None
        self._report = AutoscalerReport()
        """Replaced as a whole, since the scheduler reads it while the thread runs."""
        self._sender: int | None = None
        """Sender of the last request."""
        self._requested_at = 0.0
        self._requested_version = 0
        """Version of the cluster's state that had the last request first."""

    def exchange(
        self, address: str, bundles: Sequence[Resources] | None, *, sender: int, always: bool
    ) -> AutoscalerReport:
        """Start an exchange if one is due, and return what the last one found."""
        now, report = self._clock(), self._report
        is_busy = self._thread is not None and self._thread.is_alive()
        is_rare = report.exists is False and not always
        interval_s = SEARCH_INTERVAL_S if is_rare else POLL_INTERVAL_S
        if is_busy or (self._began_at is not None and now - self._began_at < interval_s):
            return report
        self._start(address, bundles, sender=sender, always=always)
        return report

    def clear(self, address: str, *, sender: int, timeout_s: float) -> bool:
        """Clear our own request; return whether that was done in time."""
        ends_at = time.monotonic() + timeout_s
        if not self.wait(timeout_s):
            return False
        self._start(address, (), sender=sender, always=True)
        is_done = self.wait(max(0.0, ends_at - time.monotonic()))
        return is_done and self._report.request == () and not self._report.problem

    def wait(self, timeout_s: float) -> bool:
        """Wait for the exchange that was started last; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _start(
        self, address: str, bundles: Sequence[Resources] | None, *, sender: int, always: bool
    ) -> None:
        self._began_at = self._clock()
        self._thread = threading.Thread(
            target=self._try_exchange,
            args=(address, None if bundles is None else tuple(bundles)),
            kwargs={"sender": sender, "always": always},
            name="autoscaler",
            daemon=True,
        )
        self._thread.start()

    def _try_exchange(
        self, address: str, bundles: tuple[Resources, ...] | None, *, sender: int, always: bool
    ) -> None:
        before, error = self._report, None
        try:
            report = self._exchange(address, bundles, sender=sender, always=always)
        except Exception as raised:  # noqa: BLE001  # Ray's errors are of many types
            error = raised
            problem = f"the request to the autoscaler failed ({_describe_error(error)})"
            report = replace(
                before, is_feasible=None, problem=problem, num_failed=before.num_failed + 1
            )
        if report.problem != before.problem:
            _log.warning("autoscaler", problem=report.problem or "solved", exc_info=error)
        self._report = replace(report, num_exchanges=before.num_exchanges + 1)

    def _exchange(
        self, address: str, bundles: tuple[Resources, ...] | None, *, sender: int, always: bool
    ) -> AutoscalerReport:
        gcs = self._connect(address)
        status = _read_status(gcs)
        report = replace(
            self._report,
            exists=status.exists,
            node_types=status.node_types,
            reports_feasibility=status.standing is not None and status.exists,
            problem="",
        )
        if bundles is None:
            return replace(report, is_feasible=None)
        if not (status.exists or always):
            return replace(report, request=None, is_feasible=None)
        parts = _list_parts(bundles)
        if not parts and _is_foreign(status, report.request):
            return replace(report, request=bundles, is_feasible=None)
        is_new = self._sender != sender or report.request != bundles
        is_lost = status.standing is not None and bool(parts) and not status.standing
        is_old = bool(parts) and self._clock() - self._requested_at >= REPEAT_INTERVAL_S
        if is_new or is_lost or is_old:
            _replace_request(gcs, parts, is_version_2=status.standing is not None)
            self._sender, self._requested_at = sender, self._clock()
            report = replace(report, request=bundles, num_requests=report.num_requests + 1)
            status = _read_status(gcs)
            if is_new or is_lost:
                self._requested_version = status.version
        if parts and status.standing is not None and status.standing != _count_parts(parts):
            return replace(report, is_feasible=None, problem=_REPLACED)
        is_judged = status.judged_version > self._requested_version
        return replace(report, is_feasible=not status.is_infeasible if is_judged else None)


def _is_foreign(status: _Status, request: tuple[Resources, ...] | None) -> bool:
    """Return whether the standing request is not this last one of ours. The request of an earlier
    scheduler is not known, so without a last one it counts as ours.
    """
    if status.standing is None or request is None:
        return False
    return status.standing != _count_parts(_list_parts(request))


def _replace_request(gcs: Any, parts: Sequence[_Part], *, is_version_2: bool) -> None:
    """Replace the standing request as `ray.autoscaler.sdk.request_resources` does, which has no
    timeout for version 1.
    """
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL

    if not is_version_2:
        request = json.dumps([bundle for bundle, _ in parts]).encode()
        key = AUTOSCALER_RESOURCE_REQUEST_CHANNEL
        gcs.internal_kv_put(key, request, True, None, timeout=CALL_TIMEOUT_S)
        return
    counts = _count_parts(parts)
    gcs.request_cluster_resource_constraint(
        [dict(bundle) for bundle, _ in counts],
        [format_selector(selector) for _, selector in counts],
        list(counts.values()),
        timeout_s=CALL_TIMEOUT_S,
    )


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
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS

    status = json.loads(_read_key(gcs, DEBUG_AUTOSCALING_STATUS, None) or b"{}")
    found = (status.get("autoscaler_report") or {}).get("active_nodes") or {}
    is_named = any(not name.startswith(_UNNAMED_TYPE) for name in found)
    return _Status(exists=is_named or bool(node_types), node_types=node_types)


def _read_version_2(gcs: Any, node_types: tuple[NodeType, ...]) -> _Status:
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus
    from ray.core.generated.common_pb2 import LabelSelectorOperator

    reply = GetClusterStatusReply.FromString(gcs.get_cluster_status(timeout_s=CALL_TIMEOUT_S))
    state, cluster = reply.autoscaling_state, reply.cluster_resource_state
    is_named = any(
        node.ray_node_type_name for node in cluster.node_states if node.status != NodeStatus.DEAD
    )
    judged = state.last_seen_cluster_resource_state_version
    standing: _Parts = Counter()
    for constraint in cluster.cluster_resource_constraints:
        for part in constraint.resource_requests:
            conditions = (
                LabelCondition(
                    one.label_key,
                    tuple(sorted(one.label_values)),
                    excludes=one.operator == LabelSelectorOperator.LABEL_OPERATOR_NOT_IN,
                )
                for selector in part.request.label_selectors
                for one in selector.label_constraints
            )
            amounts = frozenset(part.request.resources_bundle.items())
            standing[amounts, frozenset(conditions)] += part.count
    return _Status(
        exists=(is_named and judged > 0) or bool(node_types),
        node_types=node_types,
        standing=standing,
        version=cluster.cluster_resource_state_version,
        judged_version=judged,
        is_infeasible=len(state.infeasible_cluster_resource_constraints) > 0,
    )


def _read_key(gcs: Any, key: str, namespace: str | None) -> bytes | None:
    found: bytes | None = gcs.internal_kv_get(
        key.encode(), namespace.encode() if namespace else None, timeout=CALL_TIMEOUT_S
    )
    return found


def _list_node_types(config: bytes | None) -> tuple[NodeType, ...]:
    from ray.core.generated.autoscaler_pb2 import ClusterConfig

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


def _list_parts(bundles: Sequence[Resources]) -> list[_Part]:
    return [(_to_bundle(part), part.selector) for part in bundles]


def _count_parts(parts: Sequence[_Part]) -> _Parts:
    return Counter((frozenset(bundle.items()), selector) for bundle, selector in parts)
