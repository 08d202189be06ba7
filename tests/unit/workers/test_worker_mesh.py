"""Which workers hold a model together, and where they are."""

from __future__ import annotations

import pytest

from accordion_workers.training.worker_mesh import explain_split


@pytest.mark.parametrize("hosts", [["a", "a", "b", "b"], ["a"] * 4, ["a", "a"]])
def test_replicas_of_one_node_each_are_as_they_should_be(hosts):
    assert explain_split(hosts, 2) == ""


def test_a_replica_on_several_nodes_is_told_with_the_way_out():
    said = explain_split(["a", "a", "b", "c"], 2)
    assert said.startswith("warning: ranks 2 to 3 hold one model together on 2 nodes (b, c)")
    assert "room for a multiple of parallelism.shard, which is 2" in said
