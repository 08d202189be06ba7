"""Reads the cluster's snapshot, which the scheduler stores for the api; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accordion_service.domain.capacity.resources import Resources, sort_custom


def name_of_node(node: Mapping[str, Any]) -> str:
    """Name of a node, which it keeps when Ray restarts on it: the one given to Ray, or else its
    address.
    """
    return str(node.get("name") or node["address"])


def find_available_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Names of the nodes that could take workers, and whether each has GPUs: alive, not draining,
    and not without CPUs and GPUs, as the head often is.
    """
    found = [node for node in nodes if node["alive"] and not node.get("draining", False)]
    return {name_of_node(one): one["gpus"] > 0 for one in found if one["cpus"] or one["gpus"]}


def list_unschedulable(nodes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Ray's IDs of the nodes that are alive and on which no workers are placed, sorted."""
    return tuple(
        sorted(node["id"] for node in nodes if node["alive"] and node.get("unschedulable"))
    )


def read_placements(nodes: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Nodes of each job's worker processes, by job id; Ray's IDs, as far as they are known."""
    placed: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for job_id, count in node.get("workers", {}).items():
            placed[job_id] = placed.get(job_id, ()) + (node["id"],) * count
    return placed


def read_avoided(nodes: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """Nodes on which workers of a job cannot start for now, by job id; Ray's IDs."""
    avoided: dict[str, frozenset[str]] = {}
    for node in nodes:
        for job_id in node.get("avoided_by", ()):
            avoided[job_id] = avoided.get(job_id, frozenset()) | {node["id"]}
    return avoided


def read_cluster_snapshot(
    nodes: Sequence[Mapping[str, Any]],
) -> tuple[list[Resources], list[Resources]]:
    """Nodes of a stored snapshot that are alive and not draining, and what other programs use of
    each node.
    """
    usable = [node for node in nodes if node["alive"] and not node.get("draining", False)]
    foreign = [
        Resources(
            cpus=node.get("cpus_foreign", 0.0),
            gpus=node.get("gpus_foreign", 0.0),
            memory=node.get("memory_bytes_foreign", 0.0),
            custom=sort_custom(node.get("custom_foreign", {})),
            node=node["id"],
        )
        for node in nodes
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
                unschedulable=node.get("unschedulable", ""),
                name=str(node.get("name") or node.get("address", "")),
            )
            for node in usable
        ],
        [size for size in foreign if size.cpus or size.gpus or size.memory or size.custom],
    )
