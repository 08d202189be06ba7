"""Describes what a worker group needs and why the whole cluster does not hold it, with the changes
that would help; pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.domain.resources import ResourceRequest, Resources

_GB = 1e9


def describe_misfit(request: ResourceRequest, nodes: Sequence[Resources], most: int) -> str:
    """Explain why the smallest group of a job does not fit; `most` workers do."""
    return (
        f"needs {describe_group(request)}, but the whole cluster ({describe_total(nodes)})"
        f"{_describe_memory(request, nodes)} holds at most {most};"
        f" {_suggest_change(request, nodes, most)}"
    )


def list_misfit_remedies(
    request: ResourceRequest, nodes: Sequence[Resources], most: int
) -> tuple[str, ...]:
    """Return changes of which each one would let a job fit the cluster, like the sentence of
    `describe_misfit`.
    """
    if _lacks_labels(request, nodes):
        return ("a clone with other workers.node_labels", f"nodes with {_name_labels(request)}")
    if missing := _list_missing(request, nodes):
        return ("a clone with other workers.resources", f"nodes with {' and '.join(missing)}")
    largest_gb = math.floor(10 * _largest_memory(nodes) / _GB) / 10
    if request.memory > _largest_memory(nodes):
        less = (f"a clone with workers.memory of {largest_gb} GB or less",) if largest_gb else ()
        return (*less, "larger nodes")
    return (*describe_fewer(most), "a clone whose workers take less", "more nodes")


def describe_fewer(most: int) -> tuple[str, ...]:
    """Return the remedy that a job asks for so many workers at least; none if not even one fits."""
    if not most:
        return ()
    return (f"a minimum of {most} worker{'s' if most > 1 else ''}: it then fits the cluster",)


def describe_group(request: ResourceRequest) -> str:
    """Describe the smallest group of a job, such as `2 workers of 1 CPU and 1 GPU each`."""
    each = f"{request.cpus:g} CPU" + (f" and {request.gpus:g} GPU" if request.gpus else "")
    each += f" and {request.memory / _GB:.1f} GB" if request.memory else ""
    each += "".join(f" and {amount:g} {name}" for name, amount in request.custom)
    group = f"{request.min} workers of {each} each" if request.min > 1 else f"1 worker of {each}"
    return f"{group}, on nodes with {_name_labels(request)}" if request.labels else group


def describe_total(nodes: Sequence[Resources]) -> str:
    """Describe the capacity of the cluster, such as `8 CPU on 2 nodes`."""
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return (
        f"{cpus:g} CPU"
        + (f", {gpus:g} GPU" if gpus else "")
        + f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    )


def _suggest_change(request: ResourceRequest, nodes: Sequence[Resources], limit: int) -> str:
    if _lacks_labels(request, nodes):
        return f"no node has {_name_labels(request)}: change workers.node_labels, or add such nodes"
    if missing := _list_missing(request, nodes):
        return f"no node has {' or '.join(missing)}: change workers.resources, or add such nodes"
    if request.memory > _largest_memory(nodes):
        return "lower workers.memory, or add larger nodes"
    fewer = "workers.min or " if limit else ""
    return f"lower {fewer}what each worker takes, or add nodes"


def _lacks_labels(request: ResourceRequest, nodes: Sequence[Resources]) -> bool:
    return bool(request.labels) and not any(request.labels <= node.labels for node in nodes)


def _list_missing(request: ResourceRequest, nodes: Sequence[Resources]) -> list[str]:
    """List the custom resources that no node has."""
    found = {name for node in nodes for name, _ in node.custom}
    return [name for name, _ in request.custom if name not in found]


def _name_labels(request: ResourceRequest) -> str:
    return " and ".join(f"{name}={value}" for name, value in sorted(request.labels))


def _describe_memory(request: ResourceRequest, nodes: Sequence[Resources]) -> str:
    """Describe the memory of the largest node, if the job limits its memory."""
    return (
        f", whose largest node has {_largest_memory(nodes) / _GB:.1f} GB," if request.memory else ""
    )


def _largest_memory(nodes: Sequence[Resources]) -> float:
    return max(node.memory for node in nodes)
