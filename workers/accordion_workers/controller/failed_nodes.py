"""Finds the nodes that may have caused a failure, for the scheduler to count; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from accordion_workers.common.error_kinds import may_be_killed
from accordion_workers.common.errors import PeerUnfit, StorageNotShared, WorkerError

_HARDWARE_FAULT = re.compile(
    r"uncorrectable (ECC|NVLink) error|hardware failure|GPU has fallen off the bus|GPU is lost",
    re.IGNORECASE,
)


def find_failed_nodes(
    errors: Mapping[int, BaseException], node_by_rank: Mapping[int, str]
) -> tuple[str, ...]:
    """Return the nodes whose fault the failure of a worker group may be, sorted.

    A dead process breaks its peers' collectives, so other errors count only if none died. An error
    that the code of any rank raised, a crash or `os._exit` explains the failure. If all nodes of a
    group on several nodes failed at once, none is to blame.

    Args:
        errors: errors by rank.
        node_by_rank: Ray's IDs of the nodes of all members.
    """
    if any(_is_own_error(error) for error in errors.values()):
        return ()
    everywhere = set(node_by_rank.values())
    dead = {rank for rank, error in errors.items() if may_be_killed(error)}
    broken = {rank for rank, error in errors.items() if _is_hardware_fault(error)}
    found = _nodes_of(dead or broken, node_by_rank)
    if not found:
        blind = {rank for rank, error in errors.items() if isinstance(error, StorageNotShared)}
        found = _nodes_of(blind, node_by_rank)
        # Only a node that does not see what others see is to blame.
        found = found if found < everywhere else set()
    is_everywhere = len(everywhere) > 1 and found == everywhere
    return () if is_everywhere else tuple(sorted(found))


def _is_own_error(error: BaseException) -> bool:
    """Return whether an error is the job's own, and not that of a node or of a peer."""
    if _is_hardware_fault(error) or isinstance(error, PeerUnfit | StorageNotShared):
        return False
    return isinstance(error, WorkerError) and not may_be_killed(error)


def _is_hardware_fault(error: BaseException) -> bool:
    """Whether a GPU is broken. Any other error of a GPU may be the fault of the code: a faulty
    kernel reads outside its memory, asserts, or uses it up.
    """
    return bool(_HARDWARE_FAULT.search(str(error)))


def _nodes_of(ranks: Set[int], node_by_rank: Mapping[int, str]) -> set[str]:
    return {node_by_rank[rank] for rank in ranks if node_by_rank.get(rank)}


__all__ = ["find_failed_nodes"]
