"""Private names of Ray that ray_nodes.py, actor_client.py and error_kinds.py use: fails when Ray
changes them.
"""

from __future__ import annotations

import inspect

import pytest
import ray.exceptions
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray._private.state import GlobalState, available_resources_per_node

from workers.error_kinds import _SIGNS_OF_DEATH
from workers.hub import actor_client


@pytest.mark.parametrize("name", sorted(_SIGNS_OF_DEATH))
def test_the_errors_by_which_we_know_a_dead_process_are_rays(name: str) -> None:
    assert issubclass(getattr(ray.exceptions, name), ray.exceptions.RayError)


def test_the_nodes_that_are_being_drained_can_be_asked_for() -> None:
    assert "hex ids of nodes that are being drained" in inspect.getdoc(
        GlobalState.get_draining_nodes
    )


def test_the_heads_node_is_known_by_a_resource() -> None:
    assert HEAD_NODE_RESOURCE_NAME == actor_client.HEAD


def test_the_free_resources_of_each_node_can_be_asked_for() -> None:
    assert "mapping node hex id to available resources" in inspect.getdoc(
        available_resources_per_node
    )
