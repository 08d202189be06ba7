"""Client of the Accordion actor: calls with a timeout and a single error type."""

from __future__ import annotations

from typing import Any, Protocol

from accordion_workers.common.names import NAMESPACE, actor_name
from accordion_workers.hub.accordion_actor import AccordionActor

HEAD = "node:__internal_head__"
"""Resource that only the head node has, with a quantity of one."""
HEAD_NODE = {HEAD: 0.0001}
"""Resources that place a long-lived actor on the head node. Any other node may leave the cluster,
and a supervisor's loss ends all of its workers.
"""


class ActorTimeoutError(Exception):
    """The Accordion actor did not answer in time; it may still have executed the call."""


class ActorClient(Protocol):
    """Calls a method of the Accordion actor.

    Raises:
        ActorTimeoutError: the actor did not answer in time.
    """

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Return the method's answer."""


class RayActorClient:
    """Calls the installation's actor in this process's Ray cluster; threads may share it."""

    def __init__(self, installation: str) -> None:
        self.installation = installation
        self._actor: Any = None

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Return the method's answer.

        Raises:
            ActorTimeoutError: the actor did not answer in time.
        """
        import ray

        try:
            self._actor = self._actor or ensure_actor(self.installation)
            return ray.get(
                getattr(self._actor, method).remote(*arguments, **named), timeout=timeout_s
            )
        except (ray.exceptions.RayError, TimeoutError, ConnectionError) as error:
            self._actor = None if isinstance(error, ray.exceptions.ActorDiedError) else self._actor
            raise ActorTimeoutError(
                f"the Accordion actor gave no answer to {method}: {error}"
            ) from error


def ensure_actor(installation: str) -> Any:
    """Return the installation's Accordion actor; the first caller starts it.

    The actor is detached, so it outlives all drivers. Ray restarts it without limit and repeats the
    calls made meanwhile.
    """
    import ray

    name = actor_name(installation)
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    endless = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 10_000, "num_cpus": 0}
    return ray.remote(AccordionActor).options(**options, **endless, resources=HEAD_NODE).remote()
