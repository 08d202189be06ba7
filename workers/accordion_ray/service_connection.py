"""Rank 0's connection to the Accordion actor, which may not exist yet or may have stopped.

The actor is never started here: without a service, nothing would read its records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from accordion_ray.errors import AttachError
from accordion_workers.common.names import (
    NAMESPACE,
    find_actor_name,
    installation_of,
    package_version,
)
from accordion_workers.hub.actor_client import ActorClient, ActorTimeoutError
from accordion_workers.hub.actor_messages import Fenced, PostResponse
from accordion_workers.records.contract import GUEST_PROTOCOL, Guest

ENLIST_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


def find_installations() -> list[str]:
    """Return the ids of the installations whose Accordion actor, of any release, runs on this Ray
    cluster.
    """
    return sorted({found for found in map(installation_of, _list_actors()) if found is not None})


def check_installations(found: Sequence[str]) -> None:
    """Check that there is at most one installation, so that a run belongs to it.

    Raises:
        AttachError: there are several.
    """
    if len(found) > 1:
        raise AttachError(_describe_choice(found))


class RunningActor:
    """Calls the Accordion actor of an installation if it runs. Implements `ActorClient`.

    The actor may be of another release, so ask for its `guest_protocol` first. Later calls go to
    the same actor.
    """

    def __init__(self, installation: str) -> None:
        self._installation = installation
        self._name = ""
        self._actor: Any = None

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Call a method of the actor and return its result.

        Raises:
            ActorTimeoutError: there is no such actor, or it did not answer in time.
        """
        import ray

        try:
            self._name = self._name or find_actor_name(self._installation, _list_actors())
            self._actor = self._actor or ray.get_actor(self._name, namespace=NAMESPACE)
            call = getattr(self._actor, method).remote(*arguments, **named)
            return ray.get(call, timeout=timeout_s)
        except (ray.exceptions.RayError, OSError, ValueError) as error:
            self._actor = None
            raise ActorTimeoutError(
                f"the Accordion actor gave no answer to {method}: {error}"
            ) from error


def _list_actors() -> list[str]:
    """Return the names of all actors of Accordion on this Ray cluster."""
    from ray.util import list_named_actors

    actors = list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]


def print_line(sentence: str) -> None:
    """Print a line for the user who started the script; Ray forwards it to their terminal.

    Ray hides log messages of this level.
    """
    print(f"accordion: {sentence}", flush=True)  # noqa: T201


class ServiceConnection:
    """Registers a guest run with the service, and forwards calls while it is registered.

    Implements `ActorClient`. One thread calls `refresh` every few seconds; any thread may call the
    rest.

    Args:
        guest: what is registered.
        installation: id of the installation to register with; None takes the only one.
        preferred: installation that the run registered with before; used if there are several and
            none was given.
        find: returns the installations on this cluster.
        connect: returns the connection to an installation's actor.
        show: shows a line in the terminal of the script.
    """

    def __init__(
        self,
        guest: Guest,
        *,
        installation: str | None,
        preferred: str | None = None,
        find: Callable[[], list[str]] = find_installations,
        show: Callable[[str], object] = print_line,
        connect: Callable[[str], ActorClient] = RunningActor,
    ) -> None:
        self.guest = guest
        self.is_registered = False
        self.is_superseded = False
        """Whether a newer worker group of the run has registered."""
        self.installation = preferred
        """Installation that the run registered with; None before."""
        self._given = installation
        self._find = find
        self._connect = connect
        self._show = show
        self._actor: ActorClient | None = None
        self._last_message = ""
        """The last message, which is not repeated."""

    def refresh(self) -> None:
        """Find the service if it is not known, and register again as a heartbeat."""
        if self.is_superseded:
            return
        try:
            self._actor = self._actor or self._connect_actor()
            if self._actor is not None:
                self._handle_answer(self._actor("enlist", self.guest, timeout_s=ENLIST_TIMEOUT_S))
        except ActorTimeoutError:
            # The actor may return under another name, so it is looked up again.
            self._actor = None

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Return the answer of the Accordion actor's method.

        Raises:
            ActorTimeoutError: the run is not registered, or there was no answer in time.
        """
        actor = self._actor
        if actor is None or not self.is_registered:
            raise ActorTimeoutError(f"the run is not registered, so {method} was not called")
        return actor(method, *arguments, timeout_s=timeout_s, **named)

    def _connect_actor(self) -> ActorClient | None:
        installation = self._choose_installation(self._find())
        if installation is None:
            return None
        actor = self._connect(installation)
        protocol, version = actor("guest_protocol", timeout_s=ENLIST_TIMEOUT_S)
        if protocol != GUEST_PROTOCOL:
            self._log_once(
                f"the guest run {self.guest.name!r} is not registered with Accordion, since their"
                f" versions do not fit: this script has accordion-train {package_version()}"
                f" (protocol {GUEST_PROTOCOL}), the service's actor {version} (protocol"
                f" {protocol}). Training continues. Install the service's version where the script"
                " runs; the actor of an older service ends with its Ray cluster"
            )
            return None
        self.installation = installation
        return actor

    def _choose_installation(self, found: Sequence[str]) -> str | None:
        listed = ", ".join(map(repr, found)) or "none"
        if self._given is not None and self._given not in found:
            self._log_once(
                f"installation {self._given!r} of Accordion is not on this Ray cluster (found:"
                f" {listed}); training continues, and the guest run {self.guest.name!r} registers"
                " when it appears. Check attach(..., installation=)"
            )
            return None
        chosen = self._given if self._given is not None else self.installation
        if chosen is not None and chosen in found:
            return chosen
        if not found:
            self._show_once(
                "no Accordion service on this Ray cluster; training continues, and the guest run"
                f" {self.guest.name!r} registers when a service starts"
            )
        elif len(found) > 1:
            self._log_once(_describe_choice(found))
        return found[0] if len(found) == 1 else None

    def _handle_answer(self, answer: PostResponse | Fenced) -> None:
        match answer:
            case Fenced():
                self.is_registered, self.is_superseded = False, True
                self._log_once(
                    f"the guest run {self.guest.name!r} is registered in a newer generation "
                    f"({answer.newest.generation}), so this one ({self.guest.generation}) reports "
                    "nothing more. After a restart there is nothing to do. If one script attaches "
                    "several models, give each attach() its own name=; if two scripts use this "
                    "storage, give each its own RunConfig(name=...)"
                )
            case PostResponse():
                if not self.is_registered:
                    self._show(
                        f"guest run {self.guest.name!r} is registered with Accordion as"
                        f" {self.guest.job_id}; watch it with: accordion watch {self.guest.job_id}"
                    )
                self.is_registered = True
                if answer.namesake is not None:
                    self._log_once(
                        f"two guest runs have the name {self.guest.name!r}: {answer.namesake} and, "
                        f"younger, {self.guest.job_id}; the service appends part of the id to the "
                        "name of one of them. Give attach() another name= to tell them apart"
                    )

    def _log_once(self, sentence: str) -> None:
        if sentence != self._last_message:
            logger.warning("%s", sentence)
        self._last_message = sentence

    def _show_once(self, sentence: str) -> None:
        if sentence != self._last_message:
            self._show(sentence)
        self._last_message = sentence


def _describe_choice(found: Sequence[str]) -> str:
    listed = ", ".join(repr(installation) for installation in found)
    return (
        f"{len(found)} Accordion installations run on this Ray cluster ({listed}); choose one with "
        "attach(..., installation=), or pass register=False"
    )
