"""What the Ray backend makes of Ray's answers; the cluster is patched out, tests/elastic asks a
real one.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError

from accordion_service.errors import RuntimeUnavailable
from accordion_service.runtime import ray_backend
from accordion_service.runtime.ray_backend import RayBackend
from accordion_workers.records.contract import Cursor


class Handle:
    """A supervisor: `state.remote()` gives what `ray.get` is asked for."""

    def __init__(self, name: str) -> None:
        self.state = self
        self._name = name

    def remote(self) -> str:
        return self._name


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers by actor name: a state, an error of the call, or LookupError for an actor that ended
    before it was looked up.
    """
    held: dict[str, Any] = {}

    def get_actor(name: str, namespace: str) -> Handle:
        if held[name] is LookupError:
            raise ValueError(f"Failed to look up actor with name {name!r}")
        return Handle(name)

    def get(call: str, timeout: float) -> Any:
        if isinstance(held[call], Exception):
            raise held[call]
        return held[call]

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util, "list_named_actors", lambda: list(held))
    for name, function in {
        "get_actor": get_actor,
        "get": get,
        "wait": lambda calls, **_: None,
    }.items():
        monkeypatch.setattr(ray, name, function)
    return held


def test_supervisors_are_found_by_name_and_tell_where_they_are(answers: dict[str, Any]) -> None:
    answers |= {"job-a.2": ("running", "it trains", ("n1",), ("n2",)), "accordion-v2": None}
    [state] = RayBackend(address=None).supervisors()
    assert (state.job_id, state.attempt, state.phase, state.message) == (
        "a",
        2,
        "running",
        "it trains",
    )
    assert (state.placed, state.avoided) == (("n1",), ("n2",))


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the actors that were killed."""
    names: list[str] = []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: names.append(actor.remote()))
    monkeypatch.setattr(ray_backend.RayActorClient, "__call__", lambda *_, **__: None)
    return names


def test_supervisors_of_other_installations_are_counted_and_never_asked(
    answers: dict[str, Any],
) -> None:
    answers |= {
        "accordion-ab-job-a.1": ("running", "", None, ()),
        "accordion-cd-job-b.1": RuntimeError("was asked"),
    }
    backend = RayBackend(address=None, installation="ab")
    assert [state.job_id for state in backend.supervisors()] == ["a"]
    assert backend.count_foreign_supervisors() == {"cd": 1}


def test_removing_a_job_leaves_the_same_job_of_another_installation_alone(
    answers, killed: list[str]
) -> None:
    names = [
        "accordion-ab-job-a.1",
        "accordion-ab-job-a.2",
        "accordion-cd-job-a.1",
        "accordion-ab-job-b.1",
    ]
    answers |= dict.fromkeys(names, ("running", "", None, ()))
    RayBackend(address=None, installation="ab").remove("a")
    assert killed == ["accordion-ab-job-a.1", "accordion-ab-job-a.2"]


def test_jobs_are_drained_from_the_actor_of_the_installation(answers, monkeypatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        ray_backend.RayActorClient,
        "__call__",
        lambda ask, *call, **_: asked.append((ask.installation, *call)) or {},
    )
    answers |= {
        "job-old.1": ("running", "", None, ()),
        "accordion-ab-job-new.1": ("running", "", None, ()),
    }
    backend = RayBackend(address=None, installation="ab")
    assert {state.job_id for state in backend.supervisors()} == {"old", "new"}
    cursors = {"old": Cursor(), "new": Cursor()}
    assert backend.drain_many(cursors) == {}
    assert asked == [("ab", "drain_many", cursors)]


def test_a_silent_supervisor_is_starting_and_one_whose_end_is_final_is_gone(
    answers,
) -> None:
    answers |= {"job-a.1": GetTimeoutError("slow"), "job-b.1": ActorDiedError()}
    assert [(state.job_id, state.phase) for state in RayBackend(address=None).supervisors()] == [
        ("a", "starting")
    ]


def test_a_supervisor_that_ends_while_it_is_looked_up_is_left_out(answers: dict[str, Any]) -> None:
    answers |= {"job-a.1": LookupError, "job-b.1": ("running", "", None, ())}
    assert [state.job_id for state in RayBackend(address=None).supervisors()] == ["b"]


@pytest.mark.usefixtures("answers")
def test_a_node_has_the_name_that_ray_was_given_or_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = {"NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 4.0}}
    found = [{**plain, "NodeID": "a", "NodeName": "gpu-7"}, {**plain, "NodeID": "b"}]
    monkeypatch.setattr(ray, "nodes", lambda: found)
    monkeypatch.setattr(ray_backend, "get_draining_nodes", frozenset)
    monkeypatch.setattr(ray_backend, "get_free_resources", dict)
    nodes = RayBackend(address=None).nodes()
    assert [(node.id, node.name) for node in nodes] == [("a", "gpu-7"), ("b", "10.0.0.1")]


@pytest.mark.usefixtures("answers")
def test_a_node_tells_what_is_free_of_all_of_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    total = {"CPU": 4.0, "memory": 8e9, "fpga": 2.0, "disk": 1.0, "node:10.0.0.1": 1.0}
    plain = {"NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": total}
    monkeypatch.setattr(ray, "nodes", lambda: [{**plain, "NodeID": id_} for id_ in ("a", "new")])
    monkeypatch.setattr(ray_backend, "get_draining_nodes", frozenset)
    # Ray leaves out exhausted resources, and nodes that have not reported yet.
    monkeypatch.setattr(ray_backend, "get_free_resources", lambda: {"a": {"CPU": 1.0, "disk": 0.5}})
    node, new = RayBackend(address=None).nodes()
    assert (node.cpus_free, node.gpus_free, node.memory_bytes_free) == (1.0, 0.0, 0.0)
    assert node.custom_free == {"fpga": 0.0, "disk": 0.5}
    assert (new.cpus_free, new.memory_bytes_free, new.custom_free) == (None, None, {})


@pytest.mark.parametrize(
    "error", [ConnectionError("refused"), RuntimeError("gone"), GetTimeoutError("slow")]
)
def test_every_error_of_the_cluster_is_that_it_cannot_be_reached(
    answers, monkeypatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(ray, "nodes", fail)
    with pytest.raises(
        RuntimeUnavailable, match=r"the Ray cluster at 10\.0\.0\.1:6379 does not respond"
    ):
        RayBackend(address="10.0.0.1:6379").nodes()


def test_cluster_without_a_listener_fails_at_once_and_without_a_call_to_ray(monkeypatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        backend = RayBackend(address=f"127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(RuntimeUnavailable, match="does not respond"):
            backend.nodes()
    assert asked == []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Listens at the address of GCS in its place."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> list[str]:
    """Calls of a Ray that connects, and takes SIGTERM for itself as the real one does."""
    did: list[str] = []
    port = listener.getsockname()[1]

    def init(**_: Any) -> SimpleNamespace:
        did.append("init")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return SimpleNamespace(dashboard_url=None)

    monkeypatch.setattr(ray, "is_initialized", lambda: did[-1:] == ["init"])
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: did.append("shutdown"))
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray_backend, "get_draining_nodes", frozenset)
    monkeypatch.setattr(ray_backend, "get_free_resources", dict)
    monkeypatch.setattr(ray_backend, "ensure_actor", lambda _: None)
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=f"127.0.0.1:{port}")
    )
    return did


def test_scheduler_disconnects_from_an_unreachable_cluster_and_reconnects_later(
    did: list[str], listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    backend = RayBackend(address="auto")
    assert backend.nodes() == backend.nodes() == []
    listener.close()
    with pytest.raises(RuntimeUnavailable, match="refused"):
        backend.nodes()
    assert did == ["init", "shutdown"]
    with socket.create_server(("127.0.0.1", port)):
        assert backend.nodes() == []
    assert did == ["init", "shutdown", "init"]


def test_the_scheduler_still_hears_sigterm_once_it_failed_to_connect(
    did: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        did.append("failed")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ConnectionError

    monkeypatch.setattr(ray, "init", fail)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises((RuntimeUnavailable, ConnectionError)):
            RayBackend(address="auto").nodes()
        assert did == ["failed"]
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_scheduler_still_hears_sigterm_once_it_is_connected(did: list[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        RayBackend(address="auto").nodes()
        assert did == ["init"]
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)
