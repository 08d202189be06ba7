"""Describes what a worker group needs and why the whole cluster does not hold it, with the changes
that would help; pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from accordion_service.domain.capacity.resources import ResourceRequest, Resources
from accordion_workers.common.node_selectors import node_matches

_GB = 1e9
_NAMED_NODES = 2
"""Nodes that are named in one message; more are counted."""


def describe_misfit(request: ResourceRequest, nodes: Sequence[Resources], most: int) -> str:
    """Explain why the smallest group of a job does not fit; `most` workers do."""
    matching = _list_matching(request, nodes)
    return (
        f"needs {describe_group(request)}, but the whole cluster ({describe_total(nodes)})"
        f"{_describe_nodes(request, matching, nodes)} holds at most {most};"
        f" {_suggest_change(request, matching, request.whole(most))}"
    )


def list_misfit_remedies(request: ResourceRequest, nodes: Sequence[Resources]) -> tuple[str, ...]:
    """Return changes, besides fewer workers, of which each one would let a job fit the cluster,
    like the sentence of `describe_misfit`.
    """
    nodes = _list_matching(request, nodes)
    labels = [_describe_selector(request)] if request.selector else []
    if not nodes:
        return ("a clone with other workers.node_labels", f"nodes with {labels[0]}")
    if missing := _list_missing(request, nodes):
        needed = " and ".join([*missing, *labels])
        return ("a clone with other workers.resources", f"nodes with {needed}")
    such = "".join(f" with {text}" for text in labels)
    largest_gb = math.floor(10 * _largest_memory(nodes) / _GB) / 10
    if request.memory > _largest_memory(nodes):
        less = (f"a clone with workers.memory of {largest_gb} GB or less",) if largest_gb else ()
        return (*less, f"larger nodes{such}")
    return ("a clone whose workers take less", f"more nodes{such}")


def describe_fewer(request: ResourceRequest, most: int) -> tuple[str, ...]:
    """Return the remedy that a job asks for fewer workers at least, of which so many fit; none if
    it cannot start with them.
    """
    most = request.whole(most)
    if not most:
        return ()
    return (f"a minimum of {describe_workers(most)}: it then fits the cluster",)


def describe_workers(number: int) -> str:
    """Describe a number of workers, such as `1 worker`."""
    return f"{number} worker{'s' if number > 1 else ''}"


def describe_group(request: ResourceRequest) -> str:
    """Describe the smallest group of a job, such as `2 workers of 1 CPU and 1 GPU each`."""
    each = f"{request.cpus:g} CPU" + (f" and {request.gpus:g} GPU" if request.gpus else "")
    each += f" and {request.memory / _GB:.1f} GB" if request.memory else ""
    each += "".join(f" and {amount:g} {name}" for name, amount in request.custom)
    group = f"{request.min} workers of {each} each" if request.min > 1 else f"1 worker of {each}"
    return f"{group}, on nodes with {_describe_selector(request)}" if request.selector else group


def _describe_selector(request: ResourceRequest) -> str:
    """Describe the labels that the nodes of a job must have, such as `zone=a and disk!=hdd`."""
    return " and ".join(condition.describe() for condition in sorted(request.selector))


def describe_total(nodes: Sequence[Resources]) -> str:
    """Describe the capacity of the cluster, such as `8 CPU on 2 nodes`."""
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return (
        f"{cpus:g} CPU"
        + (f", {gpus:g} GPU" if gpus else "")
        + f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    )


def _suggest_change(request: ResourceRequest, nodes: Sequence[Resources], limit: int) -> str:
    if not nodes:
        lacks = f"no node has {_describe_selector(request)}"
        return f"{lacks}: submit a job with other workers.node_labels, or add such nodes"
    such = " with these labels" if request.selector else ""
    if missing := _list_missing(request, nodes):
        lacks = f"no node{such} has {' or '.join(missing)}"
        return f"{lacks}: submit a job with other workers.resources, or add such nodes"
    if request.memory > _largest_memory(nodes):
        return f"lower workers.memory, or add larger nodes{such}"
    fewer = "workers.min or " if limit else ""
    return f"lower {fewer}what each worker takes, or add nodes{such}"


def _list_matching(request: ResourceRequest, nodes: Sequence[Resources]) -> list[Resources]:
    """List the nodes whose labels are those that a job needs."""
    return [node for node in nodes if node_matches(request.selector, node.labels)]


def _list_missing(request: ResourceRequest, nodes: Sequence[Resources]) -> list[str]:
    """List the custom resources that no node has."""
    found = {name for node in nodes for name, _ in node.custom}
    return [name for name, _ in request.custom if name not in found]


def _describe_nodes(
    request: ResourceRequest, matching: Sequence[Resources], nodes: Sequence[Resources]
) -> str:
    """Name the nodes that have the labels of a job, if others do not; then describe the memory of
    the largest node, if the job limits its memory.
    """
    is_part = 0 < len(matching) < len(nodes)
    largest = f"{_largest_memory(matching or nodes) / _GB:.1f} GB"
    notes = [f"of which only {_name_nodes(matching)} these labels"] if is_part else []
    if request.memory:
        notes.append(f"with {largest} at most" if is_part else f"whose largest node has {largest}")
    return f", {', '.join(notes)}," if notes else ""


def _name_nodes(nodes: Sequence[Resources]) -> str:
    """Name the first nodes, with the verb, such as `a, b and 2 more have`."""
    names = sorted(node.name or node.node for node in nodes)
    more = len(names) - _NAMED_NODES
    shown = [*names[:_NAMED_NODES], *([f"{more} more"] if more > 0 else [])]
    text = f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
    return f"{text} {'have' if len(names) > 1 else 'has'}"


def _largest_memory(nodes: Sequence[Resources]) -> float:
    return max(node.memory for node in nodes)
