"""How a process of a job calls the Accordion actor: with a limit, and with one error for all that
may go wrong.
"""

from __future__ import annotations

from typing import Any, Protocol

from workers.hub.accordion_actor import AccordionActor
from workers.names import NAMESPACE, actor_name

HEAD = "node:__internal_head__"
"""A resource that only the head's node has, one of it."""
HEAD_NODE = {HEAD: 0.0001}
"""Where our long-lived actors run: on the head's node, without which there is no cluster. On
another one they would go with it, and with a supervisor all of its workers; and a node that a
scheduler brings ends with that.
"""


class ActorTimeoutError(Exception):
    """The Accordion actor did not answer in time; it may have done what it was asked."""


class ActorClient(Protocol):
    """Calls a method of the Accordion actor.

    Raises:
        ActorTimeoutError: there was no answer in time.
    """

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Give the method's answer."""


class RayActorClient:
    """Asks the installation's actor in the Ray cluster that this process belongs to. Threads may
    share it.
    """

    def __init__(self, installation: str) -> None:
        self.installation = installation
        self._actor: Any = None

    def __call__(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Give the method's answer.

        Raises:
            ActorTimeoutError: there was no answer in time.
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
    """Get the installation's Accordion actor; the first caller starts it.

    Detached, it outlives all drivers. It restarts for ever, and calls made meanwhile are repeated
    by Ray.
    """
    import ray

    name = actor_name(installation)
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    endless = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 10_000, "num_cpus": 0}
    return ray.remote(AccordionActor).options(**options, **endless, resources=HEAD_NODE).remote()
