"""Nodes of the cluster; their states are from Ray's private API (2.60), and a test fails when that
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accordion_workers.common.node_selectors import node_matches, read_selector


def get_draining_nodes() -> frozenset[str]:
    """Return the ids of nodes drained by a user, an autoscaler or a cloud.

    Needs a connection to Ray.

    Raises:
        ray.exceptions.RaySystemError: the cluster does not answer.
    """
    from ray._private.state import state

    return frozenset(state.get_draining_nodes())


def get_free_resources() -> dict[str, dict[str, float]]:
    """Return the unreserved resources by node id, without exhausted ones. Ray updates them with a
    delay.

    Needs a connection to Ray.

    Raises:
        ray.exceptions.RaySystemError: the cluster does not answer.
    """
    from ray._private.state import available_resources_per_node

    return dict(available_resources_per_node())


def find_nodes(nodes: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> set[str]:
    """Return the ids of the live nodes that are large enough for an actor with these options.

    Args:
        nodes: what `ray.nodes()` returns.
        options: options of an actor.
    """
    needed = {
        "CPU": options.get("num_cpus", 0),
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
        **options.get("resources", {}),
    }
    selector = read_selector(options.get("label_selector", {}))
    return {
        node["NodeID"]
        for node in nodes
        if node["Alive"]
        and all(node["Resources"].get(name, 0) >= amount for name, amount in needed.items())
        and node_matches(selector, node.get("Labels", {}).items())
    }
