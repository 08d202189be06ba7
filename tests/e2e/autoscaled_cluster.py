"""A Ray cluster on this machine whose own autoscaler starts and ends nodes, each a raylet.

`ray.cluster_utils.AutoscalingCluster` does that as well, but it ends all of Ray on the machine, and
reads a file that Ray's packages do not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FakeMultiNodeProvider,
)

from tests.elastic.nodes import QUICK_DEATHS, Cluster

IDLE_S = 6
"""Time after which a node that nothing needs is ended."""
_HEAD_TYPE = "ray.head.default"
_OBJECT_STORE_BYTES = 80_000_000
_EMPTY_LISTS = (
    "cluster_synced_files",
    "head_setup_commands",
    "head_start_ray_commands",
    "initialization_commands",
    "setup_commands",
    "worker_setup_commands",
    "worker_start_ray_commands",
)
"""Fields of the configuration that the autoscaler reads, and that only clouds need."""


@dataclass(frozen=True, kw_only=True)
class FakeNodeType:
    """Kind of node that the autoscaler may start."""

    cpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    max_nodes: int = 1

    def describe(self) -> dict[str, Any]:
        """Return it as the autoscaler's configuration has it."""
        return {
            "resources": {"CPU": self.cpus, "object_store_memory": _OBJECT_STORE_BYTES},
            "labels": dict(self.labels),
            "node_config": {},
            "max_workers": self.max_nodes,
        }


def autoscaled_cluster(
    folder: Path, *, version: Literal[1, 2], **node_types: FakeNodeType
) -> Cluster:
    """Return a cluster of a head without CPUs, to which the autoscaler adds nodes of these types.
    Its configuration is written to the folder.
    """
    path = folder / f"autoscaler-{version}.json"

    def configure(address: str) -> Sequence[str]:
        path.write_text(json.dumps(_build_config(address, node_types, version)))
        return [f"--autoscaling-config={path}"]

    settings = {**QUICK_DEATHS, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    if version == 2:
        settings |= {
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
            # As `ray up` sets it.
            "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
        }
    return Cluster(settings=settings, head_options=configure)


def _build_config(
    address: str, node_types: Mapping[str, FakeNodeType], version: int
) -> dict[str, Any]:
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    provider = {
        # The type `fake_multinode` has defaults in a file that Ray's packages lack.
        "type": "external",
        "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "gcs_address": address,
        "head_node_id": FAKE_HEAD_NODE_ID,
        "launch_multiple": version == 2,
    }
    return {
        "cluster_name": "autoscaled",
        "max_workers": sum(kind.max_nodes for kind in node_types.values()),
        "provider": provider,
        "available_node_types": {
            _HEAD_TYPE: head,
            **{name: kind.describe() for name, kind in node_types.items()},
        },
        "head_node_type": _HEAD_TYPE,
        "idle_timeout_minutes": IDLE_S / 60,
        "upscaling_speed": 1.0,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        **{name: [] for name in _EMPTY_LISTS},
    }
