"""The tools of an agent, and the MCP server that offers them."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Literal, ParamSpec

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from accordion_client.agents.agent_limits import AskedLevel, LimitError, Limits, check_level
from accordion_client.agents.loss_guard import LossGuard
from accordion_client.sdk.client import AsyncClient
from accordion_client.sdk.errors import ClientError
from accordion_service.domain.overrides.states import LIVE
from accordion_service.schemas.overrides import OverrideRequest

Target = Literal["compression", "batch", "local_steps", "lr", "weight_decay", "clip_norm"]
CHECK_S = 10.0
"""Seconds between two looks at the losses of overridden jobs."""
MOST_ROWS, MOST_LINES = 100, 500
"""Jobs or epochs, and lines of a log, of one answer."""
_OPTIONS = {
    "compression": "--level",
    "batch": "--batch",
    "local_steps": "--local-steps",
    "lr": "--lr",
    "weight_decay": "--weight-decay",
    "clip_norm": "--clip-norm",
}
"""Option of `accordion override` by target."""
_Params = ParamSpec("_Params")
Answer = dict[str, Any]


def _tell_errors(
    tool: Callable[_Params, Coroutine[Any, Any, Answer]],
) -> Callable[_Params, Coroutine[Any, Any, Answer]]:
    """Turn what the service or the limits refuse into an error that the agent reads."""

    @wraps(tool)
    async def call(*args: _Params.args, **kwargs: _Params.kwargs) -> Answer:
        try:
            return await tool(*args, **kwargs)
        except (ClientError, LimitError) as error:
            raise ToolError(str(error)) from error

    return call


class AgentTools:
    """What an agent can call.

    Args:
        client: of the service, with the token of the person who runs the server.
        limits: what the agent may ask for.
    """

    def __init__(self, client: AsyncClient, limits: Limits) -> None:
        self.guard = LossGuard(client, limits.loss_factor)
        self._client, self._limits = client, limits
        self._number = 0
        """Overrides that were applied."""

    @_tell_errors
    async def list_jobs(self, limit: int = 20) -> Answer:
        """List the newest jobs: ID, name, status, epoch, loss and metrics."""
        page = await self._client.jobs(limit=_clip(limit, MOST_ROWS))
        kept = ("id", "name", "status", "message", "progress", "metrics", "created_at")
        rows = [job.model_dump(mode="json") for job in page.items]
        return {"jobs": [{name: row[name] for name in kept} for row in rows]}

    @_tell_errors
    async def show_job(self, job: str) -> Answer:
        """Show a job by its ID or name: its job file, the levels in force and who decided them, its
        overrides, and what holds a step up.
        """
        found = await self._client.find(job)
        schedule = await self._client.schedule(found.id)
        overrides = await self._client.overrides(found.id)
        why = await self._client.why(found.id)
        parts = {"job": found, "schedule": schedule, "overrides": overrides, "why": why}
        return {name: part.model_dump(mode="json") for name, part in parts.items()}

    @_tell_errors
    async def list_epochs(self, job: str, limit: int = 20) -> Answer:
        """List the newest epochs of a job: loss, metrics, learning rate, levels, bytes, seconds."""
        found = await self._client.find(job)
        page = await self._client.epochs(found.id, limit=_clip(limit, MOST_ROWS), newest_first=True)
        return {"epochs": [row.model_dump(mode="json") for row in reversed(page.items)]}

    @_tell_errors
    async def read_log(self, job: str, lines: int = 50) -> Answer:
        """Read the newest lines of a job's log."""
        found = await self._client.find(job)
        tail = _clip(lines, MOST_LINES)
        return {"lines": [line async for line in self._client.logs(found.id, tail=tail)]}

    @_tell_errors
    async def override(
        self, *, job: str, target: Target, level: AskedLevel, epochs: int, reason: str
    ) -> Answer:
        """Override one part of a job's schedule for some epochs, or propose to.

        target: compression, batch, local_steps, lr, weight_decay or clip_norm. level: low or high
        (compression, batch, local_steps), a number, options such as {"rank": 2}, or for lr only
        {"factor": 0.5}. epochs: for how many epochs, counting the one in progress. The person who
        runs this server has set limits; a refusal names them. If overrides are not applied here,
        the answer has the command that a person can run.
        """
        found = await self._client.find(job)
        if not 1 <= epochs <= self._limits.most_epochs:
            raise LimitError(f"epochs is {epochs}; give 1 to {self._limits.most_epochs}")
        if found.ended_at is not None:
            raise LimitError(f"job {found.id} has ended ({found.status})")
        check_level(target, level, spec=found.spec, limits=self._limits)
        await self._check_free(found.id, target)
        until = (found.progress.epoch if found.progress else 0) + epochs
        request = _build_request(target, level, until=until, reason=reason)
        if not self._limits.applies:
            return {"applied": False, "command": describe_command(found.id, request)}
        before = await self.guard.find_newest(found.id)
        if self._number >= self._limits.most_overrides:
            raise LimitError(
                f"{self._number} overrides were applied, which is the limit of this server"
            )
        self._number += 1
        try:
            made = await self._client.override(found.id, request)
        except ClientError:
            self._number -= 1
            raise
        self.guard.watch(found.id, made.id, number=made.number, before=before)
        return {"applied": True, "override": made.model_dump(mode="json")}

    @_tell_errors
    async def hand_back(self, job: str, number: int, reason: str = "") -> Answer:
        """Cancel an override that this server has applied: the policy, or the job file, decides
        again.
        """
        found = await self._client.find(job)
        mine = [one for one in self.guard.watched if (one.job_id, one.number) == (found.id, number)]
        if not mine:
            raise LimitError(f"this server applied no override #{number} that may still hold")
        made = await self._client.cancel_override(found.id, mine[0].override_id, reason=reason)
        return {"override": made.model_dump(mode="json")}

    @_tell_errors
    async def list_handed_back(self) -> Answer:
        """List the overrides that were handed back because the loss rose."""
        await self.guard.check()
        return {"handed_back": self.guard.handed_back}

    async def _check_free(self, job_id: str, target: Target) -> None:
        """Check that nobody else's override holds what the agent wants to change.

        Raises:
            LimitError: one does.
        """
        own = {one.override_id for one in self.guard.watched}
        for row in (await self._client.overrides(job_id)).items:
            if row.target == target and row.state in LIVE and row.id not in own:
                by = f" of {row.requested_by}" if row.requested_by else ""
                raise LimitError(
                    f"override #{row.number}{by} holds {target}; an agent changes nothing that"
                    " others hold"
                )

    async def keep_watch(self) -> None:
        """Look at the losses again and again."""
        while True:
            await anyio.sleep(CHECK_S)
            await self.guard.check()


def create_server(client: AsyncClient, limits: Limits) -> MCPServer[None]:
    """Create the MCP server; the client is closed when it ends."""
    tools = AgentTools(client, limits)

    @asynccontextmanager
    async def watch(_: MCPServer[None]) -> AsyncIterator[None]:
        async with client, anyio.create_task_group() as group:
            group.start_soon(tools.keep_watch)
            yield
            group.cancel_scope.cancel()

    server = MCPServer[None](
        "accordion",
        instructions=(
            "Training jobs whose compression, batch, local steps and learning rate can be"
            " overridden in mid-run. Look at a job and its epochs before you override, and say why."
        ),
        lifespan=watch,
        log_level="WARNING",
    )
    reading = (tools.list_jobs, tools.show_job, tools.list_epochs, tools.read_log)
    for tool in (*reading, tools.override, tools.hand_back, tools.list_handed_back):
        server.add_tool(tool)
    return server


def describe_command(job_id: str, request: OverrideRequest) -> str:
    """Return the command with which a person applies an override."""
    level = request.level
    if isinstance(level, dict):
        level = ",".join(f"{name}={value}" for name, value in level.items())
    words = ["accordion", "override", job_id, _OPTIONS[request.target], str(level)]
    words += ["--until", str(request.until), "--reason", request.reason]
    return shlex.join(words)


def _build_request(
    target: Target, level: AskedLevel, *, until: int, reason: str
) -> OverrideRequest:
    try:
        return OverrideRequest(target=target, level=level, until=until, reason=reason)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        raise LimitError(f"{'.'.join(map(str, item['loc']))}: {item['msg']}") from error


def _clip(number: int, most: int) -> int:
    return max(1, min(number, most))
