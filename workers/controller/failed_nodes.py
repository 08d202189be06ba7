"""Finds the nodes that may have caused a failure, for the scheduler to count; pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

from workers.error_kinds import is_device_error, is_process_death, is_storage_outage
from workers.errors import ProcessCrashed, StorageError


def find_failed_nodes(
    errors: Mapping[int, BaseException],
    node_by_rank: Mapping[int, str],
    *,
    leaving: Set[str] = frozenset(),
) -> tuple[str, ...]:
    """Return the nodes whose fault the failure of a worker group may be, sorted.

    A dead process breaks its peers' collectives, so other errors count only if none died. A crash
    or `os._exit` of a process's own code does not count, and neither does a node that was being
    drained. If all nodes of a group on several nodes failed at once, none is to blame.

    Args:
        errors: errors by rank.
        node_by_rank: Ray's IDs of the nodes of all members.
        leaving: nodes that were being drained.
    """
    everywhere = set(node_by_rank.values())
    dead = {rank for rank, error in errors.items() if may_be_killed(error)}
    broken = {rank for rank, error in errors.items() if is_device_error(error)}
    found = _nodes_of(dead or broken, node_by_rank)
    if not found:
        away = {rank for rank, error in errors.items() if _is_storage_error(error)}
        found = _nodes_of(away, node_by_rank)
        # Only a node that has lost what others still reach is to blame.
        found = found if found < everywhere else set()
    is_everywhere = len(everywhere) > 1 and found == everywhere
    return () if is_everywhere else tuple(sorted(found - leaving))


def may_be_killed(error: BaseException) -> bool:
    """Return whether a process was killed or lost, rather than ended by the code in it."""
    return is_process_death(error) and not isinstance(error, ProcessCrashed)


def _is_storage_error(error: BaseException) -> bool:
    return isinstance(error, StorageError) or is_storage_outage(error)


def _nodes_of(ranks: Set[int], node_by_rank: Mapping[int, str]) -> set[str]:
    return {node_by_rank[rank] for rank in ranks if node_by_rank.get(rank)}


__all__ = ["find_failed_nodes", "may_be_killed"]
