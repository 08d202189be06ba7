"""The only use of Ray's private API, for Ray 2.60; a test fails when Ray changes it."""

from __future__ import annotations


def get_draining_nodes() -> frozenset[str]:
    """Ids of the nodes that will be taken away: drained by people or by an autoscaler, or announced
    by a cloud.

    Needs a connection to Ray.

    Raises:
        ray.exceptions.RaySystemError: the cluster does not answer.
    """
    from ray._private.state import state

    return frozenset(state.get_draining_nodes())


def get_free_resources() -> dict[str, dict[str, float]]:
    """Resources that no program has reserved, by node id; what is used up is missing. Ray updates
    them with a delay.

    Needs a connection to Ray.

    Raises:
        ray.exceptions.RaySystemError: the cluster does not answer.
    """
    from ray._private.state import available_resources_per_node

    return dict(available_resources_per_node())
