"""Use by other programs, computed from what our own processes hold or held."""

from __future__ import annotations

from service.domain.resources import Resources
from service.foreign_use import LAG_S, ForeignUse
from service.runtime.protocol import Node


def node(number: int, *, free: float | None, cpus: float = 4.0) -> Node:
    return Node(
        id=f"n{number}",
        address="",
        alive=True,
        cpus=cpus,
        gpus=0.0,
        memory_bytes=0,
        cpus_free=free,
        gpus_free=0.0,
    )


def worker(cpus: float, at: str = "") -> Resources:
    return Resources(cpus=cpus, gpus=0.0, node=at)


def test_used_capacity_without_a_process_of_ours_is_foreign() -> None:
    use = ForeignUse()
    use.record_survey([node(0, free=1.0), node(1, free=4.0)], [worker(1, "n0")], 0.0)
    assert use.estimate([worker(1, "n0")]) == [worker(2, "n0")]


def test_processes_without_a_known_node_explain_use_anywhere() -> None:
    use = ForeignUse()
    held = [worker(2), worker(2)]
    use.record_survey([node(0, free=2.0), node(1, free=1.0)], held, 0.0)
    assert sum(size.cpus for size in use.estimate(held)) == 1.0


def test_use_of_a_process_that_ended_counts_as_foreign_only_after_the_lag() -> None:
    use = ForeignUse()
    use.record_survey([node(0, free=0.0)], [worker(4, "n0")], 0.0)
    use.record_survey([node(0, free=0.0)], [], LAG_S)
    assert use.estimate([]) == []
    use.record_survey([node(0, free=0.0)], [], LAG_S + 1)
    assert use.estimate([]) == [worker(4, "n0")]


def test_cluster_that_does_not_tell_its_free_capacity_has_no_foreign_use() -> None:
    use = ForeignUse()
    use.record_survey([node(0, free=None)], [], 0.0)
    assert use.estimate([]) == []
