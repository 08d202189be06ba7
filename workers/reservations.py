"""Gives back what a dead worker group had reserved.

A group's reservation (Ray: placement group) belongs to its Train controller, and Ray keeps it when that process dies
while the driver lives that started the job's supervisor: CPUs would be lost with every supervisor that is killed. Ray
Train's own cleaner looks for dead controllers through the dashboard's state API, and waits for ever where there is no
dashboard; so we look in the GCS, which is there wherever Ray is. The only use of that private API.
"""

from __future__ import annotations

from collections.abc import Iterator

from workers.actor import NAMESPACE


def free_orphans() -> int:
    """Give back all reservations of our namespace whose controller is dead; returns how many.

    Needs a connection to Ray. May be called by anybody at any time: a controller never comes back.

    Raises:
        ray.exceptions.RaySystemError: the cluster does not answer.
    """
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    orphans = list(_orphans())
    for found in orphans:
        remove_placement_group(PlacementGroup(found))
    return len(orphans)


def _orphans() -> Iterator[object]:
    from ray import PlacementGroupID
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    for row in state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(row)
        lives = group.state != PlacementGroupTableData.REMOVED
        # one that a driver created has no actor to outlive: Ray notes that actor as dead from the start.
        ours = group.ray_namespace == NAMESPACE and group.creator_actor_id.strip(b"\xff") and not group.is_detached
        if lives and ours and group.creator_actor_dead:
            yield PlacementGroupID(group.placement_group_id)
