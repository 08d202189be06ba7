"""Requests for plans, the cluster, its queue, and what a spec can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from accordion_client.sdk.answers import raise_for_status, translate_errors
from accordion_client.sdk.request_sender import RequestSender
from accordion_client.sdk.shared_methods import shared_method
from accordion_service.schemas.jobs import Ready

if TYPE_CHECKING:
    from accordion_service.schemas.cluster import ClusterView, NamedList, QueueView, TaskList
    from accordion_service.schemas.nodes import NodeList, NodeStatus
    from accordion_service.schemas.plans import PlanView


class ClusterRequests(RequestSender):
    """Part of `Client` and `AsyncClient`."""

    @shared_method
    async def login_link(self, page: str = "/") -> str:
        """Create a URL that logs one browser in and opens `page`; it works once, within 15
        minutes.
        """
        from accordion_service.schemas.login import LoginLinkView

        body = {"next": page}
        link = await self._request(
            LoginLinkView, "POST", "/login-links", repeatable=True, json=body
        )
        return self.url + link.path

    @shared_method
    async def plan(
        self,
        spec: Mapping[str, Any],
        *,
        mbit_per_s: float,
        latency_ms: float = 0.0,
        measure_s: float = 5.0,
    ) -> PlanView:
        """Request predicted steps for `workers.max` workers; poll `plan_result` for the result."""
        from accordion_service.schemas.plans import PlanView

        link = {"mbit_per_s": mbit_per_s, "latency_ms": latency_ms}
        body = {"spec": dict(spec), "link": link, "measure_s": measure_s}
        return await self._request(PlanView, "POST", "/plans", json=body)

    @shared_method
    async def plan_result(self, plan_id: str) -> PlanView:
        """Get a plan, with its predictions once it has succeeded."""
        from accordion_service.schemas.plans import PlanView

        return await self._request(PlanView, "GET", f"/plans/{plan_id}")

    @shared_method
    async def cancel_plan(self, plan_id: str) -> PlanView:
        """Cancel a plan that waits or is measured; repeating has no effect."""
        from accordion_service.schemas.plans import PlanView

        return await self._request(PlanView, "DELETE", f"/plans/{plan_id}", repeatable=True)

    @shared_method
    async def tasks(self) -> TaskList:
        """Get the tasks that a spec can name."""
        from accordion_service.schemas.cluster import TaskList

        return await self._request(TaskList, "GET", "/tasks")

    @shared_method
    async def methods(self) -> NamedList:
        """Get the compression methods that a spec can name."""
        from accordion_service.schemas.cluster import NamedList

        return await self._request(NamedList, "GET", "/methods")

    @shared_method
    async def policies(self) -> NamedList:
        """Get the policies that a spec can name."""
        from accordion_service.schemas.cluster import NamedList

        return await self._request(NamedList, "GET", "/policies")

    @shared_method
    async def cluster(self) -> ClusterView:
        """Get the nodes of the cluster."""
        from accordion_service.schemas.cluster import ClusterView

        return await self._request(ClusterView, "GET", "/cluster")

    @shared_method
    async def nodes(self) -> NodeList:
        """Get the nodes with their failures, and whether workers are placed on them."""
        from accordion_service.schemas.nodes import NodeList

        return await self._request(NodeList, "GET", "/nodes")

    @shared_method
    async def cordon_node(self, node: str, reason: str = "") -> NodeStatus:
        """Place no more workers on a node, given by name, address or ID. Repeating is harmless."""
        from accordion_service.schemas.nodes import NodeStatus

        path, body = f"/nodes/{quote(node, safe='')}/cordon", {"reason": reason}
        return await self._request(NodeStatus, "POST", path, repeatable=True, json=body)

    @shared_method
    async def restore_node(self, node: str) -> NodeStatus:
        """Place workers on a cordoned or avoided node again. Repeating is harmless."""
        from accordion_service.schemas.nodes import NodeStatus

        path = f"/nodes/{quote(node, safe='')}/restore"
        return await self._request(NodeStatus, "POST", path, repeatable=True)

    @shared_method
    async def queue(self) -> QueueView:
        """Get the queued jobs, and why they wait."""
        from accordion_service.schemas.cluster import QueueView

        return await self._request(QueueView, "GET", "/queue")

    @shared_method
    async def ready(self) -> Ready:
        """Check whether the service can accept and run jobs; not being ready is no error."""
        with translate_errors(self.url):
            response = await self._http.get("/readyz")
        if response.status_code not in (200, 503):
            await raise_for_status(response)
        return self._parse_response(Ready, response)
