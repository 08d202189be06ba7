"""Which workers hold a model together, and where they are."""

from __future__ import annotations

import pytest

from accordion_workers.training.worker_mesh import list_warnings


@pytest.mark.parametrize("hosts", [["a", "a", "b", "b"], ["a"] * 4])
def test_replicas_of_one_node_each_are_as_they_should_be(hosts):
    assert list(list_warnings(hosts, 2)) == []


def test_a_single_replica_is_told_that_nothing_is_compressed():
    [said] = list_warnings(["a", "a"], 2)
    assert said.startswith("all 2 workers hold one model together (parallelism.shard): nothing is")


def test_a_replica_on_several_nodes_is_told_with_the_way_out():
    [said] = list_warnings(["a", "a", "b", "c"], 2)
    assert said.startswith("ranks 2 to 3 hold one model together on 2 nodes (b, c)")
    assert "room for a multiple of parallelism.shard, which is 2" in said
