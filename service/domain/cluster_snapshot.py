"""Reads the cluster's snapshot, which the scheduler stores for the api; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.domain.resources import Resources, sort_custom


def read_cluster_snapshot(
    nodes: Sequence[Mapping[str, Any]],
) -> tuple[list[Resources], list[Resources]]:
    """Schedulable nodes of a stored snapshot (alive, not draining), and what other programs use of
    each node.
    """
    usable = [node for node in nodes if node["alive"] and not node.get("draining", False)]
    foreign = [
        (node["id"], node.get("cpus_foreign", 0.0), node.get("gpus_foreign", 0.0)) for node in nodes
    ]
    return (
        [
            Resources(
                cpus=node["cpus"],
                gpus=node["gpus"],
                memory=node["memory_bytes"],
                custom=sort_custom(node.get("custom", {})),
                labels=frozenset(node.get("labels", {}).items()),
                node=node["id"],
            )
            for node in usable
        ],
        [
            Resources(cpus=cpus, gpus=gpus, node=node)
            for node, cpus, gpus in foreign
            if cpus or gpus
        ],
    )
