"""A GCS as far as the autoscaler is concerned: keys, the standing request, and what version 2 of
the autoscaler reports.
"""

from __future__ import annotations

import json
from collections import Counter

from ray._private.ray_constants import (
    AUTOSCALER_RESOURCE_REQUEST_CHANNEL,
    DEBUG_AUTOSCALING_STATUS,
)
from ray._raylet import GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, GCS_AUTOSCALER_V2_ENABLED_KEY
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import (
    ClusterConfig,
    ClusterResourceConstraint,
    GetClusterStatusReply,
    NodeStatus,
)
from ray.core.generated.common_pb2 import LabelSelectorOperator

from accordion_service.runtime.ray_autoscaler import Bundle
from accordion_workers.common.node_selectors import read_selector


def build_constraint(
    bundles: list[Bundle], selectors: list[dict[str, str]]
) -> ClusterResourceConstraint:
    """Build the request as GCS gives it to the autoscaler."""
    requests = [
        ResourceRequestUtil.make(bundle, label_selectors=[_list_constraints(selector)])
        for bundle, selector in zip(bundles, selectors, strict=True)
    ]
    return ClusterResourceConstraint(resource_requests=ResourceRequestUtil.group_by_count(requests))


def _list_constraints(selector: dict[str, str]) -> list[tuple[str, int, list[str]]]:
    """Names, operators and values, the last ones in the other order."""
    any_of = LabelSelectorOperator.LABEL_OPERATOR_IN
    none_of = LabelSelectorOperator.LABEL_OPERATOR_NOT_IN
    return [
        (one.name, none_of if one.excludes else any_of, [*reversed(one.values)])
        for one in read_selector(selector)
    ]


class FakeGcs:
    """A GCS of its own: `connect` gives a client of it."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.requests: list[tuple[list[Bundle], list[dict[str, str]]]] = []
        """Requests that arrived."""
        self.error: Exception | None = None
        """Raised by every call."""
        self._reply = GetClusterStatusReply()
        self._version = 0

    def connect(self, _address: str) -> FakeGcs:
        """Return the client of every address."""
        return self

    def internal_kv_get(
        self, key: bytes, namespace: bytes | None, timeout: float | None = None
    ) -> bytes | None:
        """Read a key."""
        if self.error is not None:
            raise self.error
        return self.keys.get(key)

    def get_cluster_status(self, timeout_s: float | None = None) -> bytes:
        """Return the reply of a new version of the state, as bytes."""
        self._version += 1
        self._reply.cluster_resource_state.cluster_resource_state_version = self._version
        return self._reply.SerializeToString()

    def internal_kv_put(
        self, key: bytes, value: bytes, overwrite: bool, namespace: None, *, timeout: float
    ) -> None:
        """Take a request to version 1, which has no labels."""
        assert (key, overwrite) == (AUTOSCALER_RESOURCE_REQUEST_CHANNEL, True)
        bundles = json.loads(value)
        self.requests.append((bundles, [{}] * len(bundles)))

    def request_cluster_resource_constraint(
        self,
        bundles: list[Bundle],
        selectors: list[dict[str, str]],
        counts: list[int],
        *,
        timeout_s: float,
    ) -> None:
        """Take a request to version 2."""
        bundles = [one for one, count in zip(bundles, counts, strict=True) for _ in range(count)]
        selectors = [
            one for one, count in zip(selectors, counts, strict=True) for _ in range(count)
        ]
        self.requests.append((bundles, selectors))
        self.hold(build_constraint(bundles, selectors))

    def hold(self, *constraints: ClusterResourceConstraint) -> None:
        """Hold these standing requests, of which there is at most one."""
        state = self._reply.cluster_resource_state
        del state.cluster_resource_constraints[:]
        state.cluster_resource_constraints.extend(constraints)

    def report_version_1(self, *node_types: str) -> None:
        """Let version 1 of the autoscaler report active nodes of these types."""
        report = {"autoscaler_report": {"active_nodes": dict(Counter(node_types))}}
        self.keys[DEBUG_AUTOSCALING_STATUS.encode()] = json.dumps(report).encode()

    def start_version_2(self, *node_types: str) -> None:
        """Let the cluster have nodes of these types, and version 2 of the autoscaler, which has not
        reported.
        """
        self.keys[GCS_AUTOSCALER_V2_ENABLED_KEY.encode()] = b"1"
        for name in node_types:
            self._reply.cluster_resource_state.node_states.add(
                ray_node_type_name=name, status=NodeStatus.RUNNING
            )

    def judge(self, *, is_feasible: bool = True) -> None:
        """Let version 2 of the autoscaler read the state, and report whether it can serve the
        request.
        """
        self._version += 1
        state = self._reply.autoscaling_state
        state.last_seen_cluster_resource_state_version = self._version
        del state.infeasible_cluster_resource_constraints[:]
        if not is_feasible:
            state.infeasible_cluster_resource_constraints.extend(
                self._reply.cluster_resource_state.cluster_resource_constraints
            )

    def configure(self, **groups: dict[str, int]) -> None:
        """Let the autoscaler report its node types: resources by name."""
        config = ClusterConfig()
        for name, resources in groups.items():
            config.node_group_configs.add(name=name, resources=resources, max_count=4)
        self.keys[GCS_AUTOSCALER_CLUSTER_CONFIG_KEY.encode()] = config.SerializeToString()
