"""Node states from Ray's private API (2.60); a test fails when Ray changes it."""

from __future__ import annotations


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
