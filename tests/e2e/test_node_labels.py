"""On which nodes Ray places something that needs labels: those that our placement counts."""

from __future__ import annotations

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from accordion_workers.common.node_selectors import node_matches, read_selector
from tests.api.team import wait_for

pytestmark = pytest.mark.ray
ID = "ray.io/node-id"


def find_place(group: PlacementGroup) -> bool | None:
    """Whether Ray has found a node for a group; None if it has not decided."""
    row = placement_group_table(group)
    if row["state"] == "CREATED":
        return True
    return False if row["stats"]["scheduling_state"] == "INFEASIBLE" else None


def test_ray_uses_the_nodes_that_match(ray_cluster: str) -> None:
    ray.init(address=ray_cluster, log_to_driver=False, configure_logging=False)
    [labels] = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    own, other = labels[ID], "0" * len(labels[ID])
    texts = [(ID, own), (ID, other), (ID, f"!{own}"), (ID, f"!{other}"), ("zone", "a")]
    texts += [("zone", "!a"), ("zone", "in(a,b)"), ("zone", "!in(a,b)")]
    texts += [(ID, f"{no}in({other},{one})") for no in ("", "!") for one in (own, "a")]
    groups = [placement_group([{"CPU": 0.01}], bundle_label_selector=[dict([t])]) for t in texts]
    wait_for(lambda: all(find_place(group) is not None for group in groups))
    expected = [node_matches(read_selector(dict([text])), labels.items()) for text in texts]
    assert [find_place(group) for group in groups] == expected
    assert {True, False} == set(expected)
    ray.shutdown()
