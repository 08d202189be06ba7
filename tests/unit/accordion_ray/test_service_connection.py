"""A guest run's way to a service that comes, goes, or is not alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import ray

from accordion_ray.errors import AttachError
from accordion_ray.service_connection import (
    ServiceConnection,
    check_installations,
    find_installations,
    print_line,
)
from accordion_workers.common.names import NAMESPACE, package_version
from accordion_workers.hub.actor_client import ActorTimeoutError
from accordion_workers.records.contract import Guest, JobSpec
from tests.unit.workers.world import FakeCluster

SPEC = JobSpec.model_validate({"task": {"name": "guest"}, "workers": {"min": 2, "max": 2}})


def guest(job_id: str = "a", generation: int = 1) -> Guest:
    return Guest(
        job_id=job_id,
        name="digits",
        generation=generation,
        train_run="r",
        ray_job_id="1",
        spec=SPEC,
    )


class World:
    """A cluster and the installations that can be found on it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.found: list[str] = ["ab"]

    def connect(
        self,
        run: Guest,
        installation: str | None = None,
        *,
        show: Callable[[str], object] = lambda _: None,
    ) -> ServiceConnection:
        return ServiceConnection(
            run,
            installation=installation,
            find=lambda: self.found,
            connect=lambda _: self.cluster,
            show=show,
        )


@pytest.fixture
def world() -> Iterator[World]:
    with closing(FakeCluster()) as cluster:
        yield World(cluster)


def test_a_run_registers_with_the_only_installation(world: World) -> None:
    connection = world.connect(guest())
    connection.refresh()
    assert connection.is_registered
    assert world.cluster.call("guests") == (guest(),)


def test_a_run_registers_as_soon_as_there_is_a_service(world: World) -> None:
    world.found = []
    connection = world.connect(guest())
    connection.refresh()
    assert not connection.is_registered
    world.found = ["ab"]
    connection.refresh()
    assert connection.is_registered


def test_no_call_reaches_the_actor_before_the_run_is_registered(world: World) -> None:
    connection = world.connect(guest())
    with pytest.raises(ActorTimeoutError, match="not registered"):
        connection("progress", "a", timeout_s=1.0)
    assert world.cluster.calls == []


def test_a_run_registers_again_after_the_actor_was_killed(world: World) -> None:
    connection = world.connect(guest())
    connection.refresh()
    world.cluster.kill_actor()
    connection.refresh()
    assert world.cluster.call("guests") == (guest(),)


def test_a_service_that_is_silent_for_a_while_is_found_again(world: World) -> None:
    connection = world.connect(guest())
    world.cluster.silent.add("enlist")
    connection.refresh()
    assert not connection.is_registered
    world.cluster.silent.clear()
    connection.refresh()
    assert connection.is_registered


def test_several_installations_ask_for_a_choice(world: World) -> None:
    with pytest.raises(
        AttachError, match=r"2 Accordion installations .*'ab', 'cd'.* installation="
    ):
        check_installations(["ab", "cd"])
    check_installations(["ab"])
    world.found = ["ab", "cd"]
    undecided, decided = world.connect(guest()), world.connect(guest(), "cd")
    undecided.refresh()
    decided.refresh()
    assert (undecided.is_registered, decided.is_registered) == (False, True)


def test_a_run_keeps_to_its_installation_when_another_appears(world: World) -> None:
    connection = world.connect(guest())
    connection.refresh()
    world.found = ["ab", "cd"]
    world.cluster.silent.add("enlist")
    connection.refresh()
    world.cluster.silent.clear()
    world.cluster.kill_actor()
    connection.refresh()
    assert world.cluster.call("guests") == (guest(),)


def test_a_run_whose_name_another_has_is_registered_and_warned_once(world: World, caplog) -> None:
    first, second = world.connect(guest("a")), world.connect(guest("b"))
    with caplog.at_level(logging.WARNING):
        for connection in (first, second, first, second):
            connection.refresh()
    assert (first.is_registered, second.is_registered) == (True, True)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "two guest runs have the name 'digits': a and, younger, b" in warning
    assert "Give attach() another name=" in warning


def test_runs_of_one_name_stay_registered_when_the_actor_restarts(world: World) -> None:
    first, second = world.connect(guest("a")), world.connect(guest("b"))
    first.refresh()
    second.refresh()
    world.cluster.kill_actor()
    second.refresh()
    first.refresh()
    assert (first.is_registered, second.is_registered) == (True, True)


def test_an_older_worker_group_reports_nothing_more(world: World) -> None:
    older, newer = world.connect(guest(generation=1)), world.connect(guest(generation=2))
    older.refresh()
    newer.refresh()
    older.refresh()
    assert (older.is_superseded, older.is_registered, newer.is_registered) == (True, False, True)


def test_an_installation_that_is_not_there_is_told_once(world: World, caplog) -> None:
    connection = world.connect(guest(), "prod-typo")
    connection.refresh()
    connection.refresh()
    [warning] = [record.getMessage() for record in caplog.records]
    assert (
        "installation 'prod-typo' of Accordion is not on this Ray cluster (found: 'ab')" in warning
    )


def test_of_several_installations_a_run_keeps_to_the_one_before_its_restart(world: World) -> None:
    world.found = ["ab", "cd"]
    chosen: list[str] = []
    connection = ServiceConnection(
        guest(),
        installation=None,
        preferred="cd",
        find=lambda: world.found,
        connect=lambda installation: (chosen.append(installation), world.cluster)[1],
    )
    connection.refresh()
    assert (connection.is_registered, chosen) == (True, ["cd"])


async def _tell_newer_protocol() -> tuple[int, str]:
    return 99, "9.9.0"


def test_a_service_of_another_version_is_told_once(world: World, caplog, monkeypatch) -> None:
    monkeypatch.setattr(world.cluster.actor, "guest_protocol", _tell_newer_protocol)
    connection = world.connect(guest())
    connection.refresh()
    connection.refresh()
    assert not connection.is_registered
    [warning] = [record.getMessage() for record in caplog.records]
    assert "the service's actor 9.9.0 (protocol 99)" in warning
    assert "enlist" not in world.cluster.calls


class OldActor:
    """Actor of a release with protocol 1, and its handle in Ray."""

    def __init__(self) -> None:
        self.guest_protocol = self

    def remote(self) -> tuple[int, str]:
        return 1, "0.9.0"


def test_service_of_another_release_is_found_and_both_versions_are_named(
    monkeypatch, caplog
) -> None:
    actors = {"accordion-v1-ab": OldActor()}
    listed = [{"name": name, "namespace": NAMESPACE} for name in actors]
    monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces: listed)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: actors[name])
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)
    assert find_installations() == ["ab"]
    connection = ServiceConnection(guest(), installation=None)
    connection.refresh()
    assert not connection.is_registered
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"their versions do not fit: this script has accordion-train {package_version()}" in (
        warning
    )
    assert "the service's actor 0.9.0 (protocol 1)" in warning


def test_a_registration_is_shown_once_with_the_id_and_the_command(world: World) -> None:
    shown: list[str] = []
    connection = world.connect(guest(), show=shown.append)
    connection.refresh()
    connection.refresh()
    [line] = shown
    assert "guest run 'digits' is registered with Accordion" in line
    assert line.endswith(f"accordion watch {guest().job_id}")


def test_a_missing_service_is_shown_once(world: World) -> None:
    world.found.clear()
    shown: list[str] = []
    connection = world.connect(guest(), show=shown.append)
    connection.refresh()
    connection.refresh()
    [line] = shown
    assert line.startswith("no Accordion service on this Ray cluster; training continues")


def test_a_line_is_flushed_to_the_output_of_the_worker(capsys) -> None:
    print_line("hello")
    assert capsys.readouterr().out == "accordion: hello\n"
