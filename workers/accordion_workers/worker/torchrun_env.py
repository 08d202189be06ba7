"""Ranks of a worker in the environment variables of torchrun, which scripts and frameworks read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accordion_workers.worker.process import GroupAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRanks:
    """Place of a rank among the ranks of its node, and of that node among the group's nodes."""

    local_rank: int
    local_world_size: int
    node_rank: int

    @classmethod
    def of_assignment(cls, assignment: GroupAssignment) -> LocalRanks:
        """Return the local ranks of an assignment; nodes are numbered by their lowest rank."""
        here = assignment.nodes[assignment.rank]
        return cls(
            local_rank=assignment.nodes[: assignment.rank].count(here),
            local_world_size=assignment.nodes.count(here),
            node_rank=list(dict.fromkeys(assignment.nodes)).index(here),
        )


def build_torchrun_env(assignment: GroupAssignment, device: str) -> dict[str, str]:
    """Return the environment variables in which torchrun passes a process its ranks, and the one by
    which Accelerate knows its device; it would take LOCAL_RANK for the number.

    A worker sees its own GPU only, so with GPUs LOCAL_RANK is 0: scripts use it as a device number.
    """
    ranks = LocalRanks.of_assignment(assignment)
    return {
        "RANK": str(assignment.rank),
        "WORLD_SIZE": str(assignment.world_size),
        "LOCAL_RANK": str(ranks.local_rank) if device == "cpu" else "0",
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "NODE_RANK": str(ranks.node_rank),
        "ACCELERATE_TORCH_DEVICE": device,
    }


__all__ = ["LocalRanks", "build_torchrun_env"]
