"""Rank 0's road to the Accordion actor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accordion.base.messages import Override
from accordion.decide.controller import Controller
from accordion_workers.hub import order_watcher as orders
from accordion_workers.hub.journal import SupersededError
from accordion_workers.hub.log_shipper import LogShipper, LogSource
from accordion_workers.records.contract import DesiredState
from accordion_workers.spec.compression import CompressionSpec
from accordion_workers.spec.job import BatchSpec
from accordion_workers.spec.local_steps_spec import LocalStepsSpec
from accordion_workers.worker import actor_link as link_module
from accordion_workers.worker.actor_link import ActorLink
from tests.unit.workers.test_accordion_actor import controller, progress, report
from tests.unit.workers.world import (
    JOB,
    LAYERS,
    SPEC,
    STARTED,
    FakeCluster,
    journal,
    launch,
    note,
    token,
    until,
)

LONG_S = 20.0
CANCEL = DesiredState(version=1, stop="cancel")
Open = Callable[..., ActorLink]


@pytest.fixture
def opened(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Starts the link of a new generation's rank 0."""
    monkeypatch.setattr(link_module, "DECIDE_TIMEOUT_S", LONG_S)
    monkeypatch.setattr(orders, "PAUSE_S", 0.01)
    made: list[ActorLink] = []

    def start(**spec: Any) -> ActorLink:
        shipper = LogShipper(LogSource(job_id=JOB, attempt=1, rank=0), cluster, lambda: 0.0)
        made.append(
            ActorLink(launch(tmp_path, **spec), journal(tmp_path), client=cluster, shipper=shipper)
        )
        made[-1].start()
        return made[-1]

    yield start
    for link in made:
        link.close()


def decisions(link: ActorLink, of: Any, epochs: range) -> list[Any]:
    """What holds after each epoch; `of` is rank 0's controller."""
    return [
        link.decide(report(epoch), of.decide(report(epoch)), of.state_dict()) for epoch in epochs
    ]


def undisturbed(epochs: int) -> list[Any]:
    alone = controller()
    return [alone.decide(report(epoch)) for epoch in range(epochs)]


def test_decisions_come_from_the_actor(opened: Open, cluster: FakeCluster) -> None:
    link, local = opened(), controller()
    link.started(STARTED, local.state_dict())
    assert decisions(link, local, range(4)) == undisturbed(4)
    assert [cluster.calls.count(method) for method in ("register", "decide")] == [1, 4]


def test_an_actor_that_was_killed_in_mid_run_gives_the_same_decisions(
    opened: Open, cluster: FakeCluster
) -> None:
    link, local = opened(), controller()
    link.started(STARTED, local.state_dict())
    made = decisions(link, local, range(2))
    cluster.kill_actor()
    made += decisions(link, local, range(2, 5))
    assert made == undisturbed(5)
    assert cluster.calls.count("register") == 2


@pytest.mark.parametrize("road", ["silent", "deaf"])
def test_rank_0_decides_while_the_actor_is_silent_and_the_actor_adopts_the_decision(
    opened, cluster, road
) -> None:
    link, local = opened(), controller()
    link.started(STARTED, local.state_dict())
    setattr(cluster, road, {"decide", "register"})
    made = decisions(link, local, range(2))
    setattr(cluster, road, set())
    assert made + decisions(link, local, range(2, 5)) == undisturbed(5)


def test_an_actor_that_is_silent_at_the_start_is_told_with_the_first_decision(
    opened: Open, cluster
) -> None:
    cluster.silent = {"register"}
    link, local = opened(), controller()
    link.started(STARTED, local.state_dict())
    cluster.silent = set()
    assert decisions(link, local, range(2)) == undisturbed(2)


def test_overrides_reach_the_actors_controller_with_the_next_decision(
    opened: Open, cluster: FakeCluster
) -> None:
    link, local = opened(), controller()
    link.started(STARTED, local.state_dict())
    local.override([Override(id="by-hand", level="low")], epoch=0, step=1)
    proposal = local.decide(report(0))
    assert set(proposal.override_by_layer.values()) == {"by-hand"}
    assert link.decide(report(0), proposal, local.state_dict()) == proposal
    assert decisions(link, local, range(1, 2))[0].override_by_layer == proposal.override_by_layer


def test_an_override_of_the_batch_alone_reaches_it_too(opened: Open) -> None:
    levels = SPEC.model_copy(update={"batch": BatchSpec(low=64, high=512)})
    link, local = opened(batch=levels.batch), Controller(levels.config(), LAYERS)
    link.started(STARTED, local.state_dict())
    local.override([Override(id="by-hand", target="batch", level=128)], epoch=0, step=1)
    (made,) = decisions(link, local, range(1))
    assert (made.global_batch, made.batch_override) == (128, "by-hand")


def test_an_override_of_local_steps_alone_reaches_it_too(opened: Open) -> None:
    parts = {"compression": CompressionSpec(method="half"), "local_steps": LocalStepsSpec(low=8)}
    rounds = SPEC.model_copy(update=parts)
    link, local = opened(**parts), Controller(rounds.config(), LAYERS)
    link.started(STARTED, local.state_dict())
    local.override([Override(id="by-hand", target="local_steps", level=2)], epoch=0, step=1)
    (made,) = decisions(link, local, range(1))
    assert (made.local_steps, made.local_steps_override) == (2, "by-hand")


def test_an_override_of_the_optimizer_alone_reaches_it_too(opened: Open) -> None:
    link, local = opened(), Controller(SPEC.config(), LAYERS)
    link.started(STARTED, local.state_dict())
    local.override([Override(id="by-hand", target="lr", level={"factor": 0.5})], epoch=0, step=1)
    (made,) = decisions(link, local, range(1))
    assert (made.optimizer, made.optimizer_overrides) == ({"lr_factor": 0.5}, {"lr": "by-hand"})


def test_the_actor_decides_by_what_a_budget_has_become(opened: Open) -> None:
    half, asked = CompressionSpec(method="half"), LocalStepsSpec(budget=50.0)
    rounds = SPEC.model_copy(update={"compression": half, "local_steps": asked.resolve(8)})
    link = opened(compression=half, local_steps=asked)
    local = Controller(rounds.config(), LAYERS)
    link.started(STARTED.model_copy(update={"local_steps": rounds.local_steps}), local.state_dict())
    local.override([Override(id="by-hand", target="local_steps", level="high")], epoch=0, step=1)
    proposal = local.decide(report(0))
    assert proposal.local_steps == 64
    assert link.decide(report(0), proposal, local.state_dict()) == proposal


def test_the_link_of_an_older_generation_learns_that_it_is_over(
    opened: Open, cluster: FakeCluster
) -> None:
    link, local = opened(), controller()
    link.started(STARTED, local.state_dict())
    cluster.call("post", JOB, token(9), [])
    with pytest.raises(SupersededError, match="generation 9 runs it"):
        decisions(link, local, range(1))
    with pytest.raises(SupersededError, match="this worker group ends"):
        link.started(STARTED, local.state_dict())


def test_orders_reach_the_callback_when_they_are_given(opened: Open, cluster: FakeCluster) -> None:
    link, heard = opened(), []
    link.on_orders(heard.append)
    cluster.call("order", JOB, CANCEL)
    until(lambda: heard == [CANCEL])


def test_orders_known_before_there_is_a_callback_reach_it_at_once(
    opened: Open, cluster: FakeCluster
) -> None:
    cluster.call("order", JOB, CANCEL)
    link, heard = opened(), []
    until(lambda: cluster.calls.count("watch") > 1)
    link.on_orders(heard.append)
    assert heard == [CANCEL]


def test_orders_are_heard_again_after_the_actor_was_silent_and_lost_its_memory(
    opened: Open, cluster
) -> None:
    cluster.silent = {"watch"}
    link, heard = opened(), []
    link.on_orders(heard.append)
    until(lambda: cluster.calls.count("watch") > 1)
    cluster.kill_actor()
    cluster.silent = set()
    cluster.call("order", JOB, CANCEL)
    until(lambda: heard == [CANCEL])


def test_orders_that_could_not_be_obeyed_do_not_keep_the_next_ones_away(
    opened: Open, cluster: FakeCluster
) -> None:
    link, heard = opened(), []

    def obey(orders: DesiredState) -> None:
        heard.append(orders.version)
        if orders.version == 1:
            raise OSError("No space left on device")

    link.on_orders(obey)
    cluster.call("order", JOB, DesiredState(version=1))
    until(lambda: heard == [1])
    cluster.call("order", JOB, DesiredState(version=2))
    until(lambda: heard == [1, 2])


def test_an_error_that_nobody_expected_does_not_end_the_listening(
    opened: Open, cluster, monkeypatch
) -> None:
    watches = cluster.actor.watch
    monkeypatch.setattr(cluster.actor, "watch", None)
    link, heard = opened(), []
    link.on_orders(heard.append)
    until(lambda: cluster.calls.count("watch") > 1)
    monkeypatch.setattr(cluster.actor, "watch", watches)
    cluster.call("order", JOB, CANCEL)
    until(lambda: heard == [CANCEL])


def test_records_progress_and_lines_arrive(opened: Open, cluster: FakeCluster) -> None:
    link = opened()
    link.post(note(1))
    link.progress(progress(3))
    assert link.flush(LONG_S)
    drained = cluster.drain()
    assert ([item.payload for item in drained.records], drained.progress) == (
        [note(1)],
        progress(3),
    )


def test_a_link_that_is_closed_keeps_nothing_of_who_listened(opened: Open) -> None:
    class Run:
        def hear(self, orders: DesiredState) -> None:
            del orders

    run, link = Run(), opened()
    gone = weakref.ref(run)
    link.on_orders(run.hear)
    link.close()
    del run
    assert gone() is None
