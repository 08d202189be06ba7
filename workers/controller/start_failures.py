"""Judges worker processes that did not become ready, and which nodes to avoid; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from workers.contract import EndReason, FailureRecord
from workers.controller.failure_causes import classify_start_failure
from workers.controller.scaling_policy import Process
from workers.error_kinds import is_storage_outage
from workers.error_text import format_error
from workers.errors import (
    DataFetchError,
    PackagesError,
    ProcessCrashed,
    StorageError,
    StorageNotShared,
    TaskRaised,
)

AVOID_S = 300.0
"""How long a node is avoided that cannot build the task or see the storage; what it lacks may be
mounted meanwhile.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """A worker process that ended, or was killed, before it was ready."""

    error: BaseException
    node: str | None = None
    """Ray's id of its node; None if it was never placed."""
    host: str | None = None
    """Address of that node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartVerdict:
    """Consequences of failed starts."""

    failure: FailureRecord
    fatal: EndReason | None = None
    avoid: frozenset[str] = frozenset()
    """Nodes on which no process is started for `AVOID_S`."""


@dataclass(slots=True)
class AvoidedNodes:
    """Nodes on which no process is started: temporarily, because a process there crashed, or could
    not build the task or see the storage, and those that the scheduler has ordered to avoid.
    """

    until: dict[str, float] = field(default_factory=dict)
    """When each node may be used again that this attempt avoids by itself."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why it avoids each of them, in one sentence."""
    ordered: frozenset[str] = frozenset()
    """Nodes that the scheduler has ordered to avoid."""

    @property
    def nodes(self) -> frozenset[str]:
        """All of these nodes."""
        return self.ordered.union(self.until)

    @property
    def explanations(self) -> list[str]:
        """Why nodes are avoided, one sentence each."""
        if not self.ordered:
            return list(self.reasons.values())
        nodes = "1 node takes" if len(self.ordered) == 1 else f"{len(self.ordered)} nodes take"
        return [*self.reasons.values(), f"{nodes} no workers: 'accordion nodes' lists them"]

    def add(self, verdict: StartVerdict, now: float) -> None:
        """Avoid the verdict's nodes for `AVOID_S` from now on."""
        self.until |= dict.fromkeys(verdict.avoid, now + AVOID_S)
        self.reasons |= dict.fromkeys(verdict.avoid, verdict.failure.message)

    def update(self, ordered: Collection[str], now: float) -> bool:
        """Drop the nodes whose time is over, and take over the scheduler's; return whether a
        process that is not placed yet must be requested again.
        """
        over = [node for node, until in self.until.items() if now >= until]
        for node in over:
            del self.until[node], self.reasons[node]
        has_changed = self.ordered != frozenset(ordered)
        self.ordered = frozenset(ordered)
        return bool(over) or has_changed


def judge_starts(
    failed: Sequence[FailedStart],
    processes: Sequence[Process],
    *,
    has_trained: bool,
    avoided: Set[str] = frozenset(),
    has_other_node: Callable[[Set[str]], bool] = lambda _: False,
) -> StartVerdict | None:
    """Decide what failed starts mean.

    If another process has built the task, now or before, the nodes of those that could not are
    avoided. A task that no process could build ends the job. Returns None while other processes
    still prepare: nothing is known yet. If one of them died, or no process reaches the job's
    directory, their replacements try again. Packages that the first node cannot install are tried
    on another one; `has_other_node` says whether there is a node besides the given ones, and
    `avoided` are the nodes that failed before.
    """
    ready = {process.node for process in processes if process.ready_since is not None}
    unbuilt = [
        one
        for one in failed
        if isinstance(one.error, TaskRaised | StorageError | PackagesError | DataFetchError)
    ]
    if ready:
        # Other processes reach the directory of the job, so the node is to blame.
        unbuilt += [one for one in failed if is_storage_outage(one.error)]
    lost = [one for one in failed if one not in unbuilt]
    if not unbuilt:
        return _judge_loss(lost, ready, has_trained=has_trained)
    if ready or has_trained:
        avoid = frozenset(one.node for one in unbuilt if one.node) - ready
        # Without a process that is ready now, something that all nodes share may be missing.
        return blame_nodes(unbuilt, avoid, may_name=bool(ready))
    if any(process.ready_since is None and process.node is not None for process in processes):
        return None
    if lost:
        return _judge_loss(lost, ready, has_trained=has_trained)
    return _judge_unbuilt(unbuilt, avoided, has_other_node)


def _judge_unbuilt(
    unbuilt: Sequence[FailedStart],
    avoided: Set[str],
    has_other_node: Callable[[Set[str]], bool],
) -> StartVerdict:
    """Decide what it means that no process got ready, and none has died."""
    first, hosts = unbuilt[0].error, _format_hosts(unbuilt)
    if isinstance(first, StorageError):
        message = f"no worker process can keep the job's state: {format_error(first)}"
        return StartVerdict(
            failure=FailureRecord(cause="job", rank=None, message=message), fatal="START_FAILED"
        )
    if isinstance(first, PackagesError):
        nodes = frozenset(one.node for one in unbuilt if one.node)
        if len(nodes | avoided) == 1 and has_other_node(nodes):
            return blame_nodes(unbuilt, nodes)
    if isinstance(first, PackagesError | DataFetchError):
        # Neither the code of the job nor its budget of failures has to do with it.
        task = "install the packages" if isinstance(first, PackagesError) else "get the data"
        message = f"no worker process could {task}; on {hosts}: {format_error(first)}"
        failure = FailureRecord(cause="infrastructure", rank=None, message=message)
        return StartVerdict(failure=failure, fatal="START_FAILED")
    message = f"no worker process could build the task; on {hosts}: {format_error(first)}"
    return StartVerdict(
        failure=FailureRecord(cause="job", rank=None, message=message), fatal="TASK_RAISED"
    )


def _judge_loss(
    lost: Sequence[FailedStart], ready: Set[str | None], *, has_trained: bool
) -> StartVerdict:
    failure = classify_start_failure(lost[0].error)
    if failure.cause != "job":
        return StartVerdict(failure=failure)
    if ready:
        # The code loads on another node, so this node may be to blame.
        avoid = (
            frozenset(
                one.node for one in lost if one.node and isinstance(one.error, ProcessCrashed)
            )
            - ready
        )
        return StartVerdict(failure=failure, avoid=avoid)
    if not has_trained:
        # Code that ends its process while it loads ends the job the second time at one step.
        failure = failure.model_copy(update={"step": 0})
    return StartVerdict(failure=failure)


def blame_nodes(
    unbuilt: Sequence[FailedStart], avoid: frozenset[str], *, may_name: bool = True
) -> StartVerdict:
    """Return the verdict for nodes that lack the task's data or the storage, which other nodes
    have. The failure names those that lack the storage: the data may be the job's own.
    """
    first = unbuilt[0].error
    lacks = "build the task" if isinstance(first, TaskRaised) else "take part"
    message = f"a worker process on {_format_hosts(unbuilt)} cannot {lacks}: {format_error(first)}"
    if avoid:
        message += f"; no process is started there for the next {AVOID_S / 60:g} min"
    blind = {one.node for one in unbuilt if isinstance(one.error, StorageNotShared)}
    nodes = tuple(sorted(avoid & blind)) if may_name else ()
    failure = FailureRecord(cause="infrastructure", rank=None, message=message, nodes=nodes)
    return StartVerdict(failure=failure, avoid=avoid)


def find_unbuilt_members(
    errors: Mapping[int, BaseException], members: Sequence[Process | None]
) -> dict[int, FailedStart] | None:
    """Return the members of a failed group whose nodes lack something that the other members' nodes
    have.

    None if the task itself is to blame: no process built it, or another process on the same node
    did.
    """
    unbuilt = {rank for rank, error in errors.items() if _may_be_node_specific(error)}
    nodes = {rank: member.node for rank, member in enumerate(members) if member is not None}
    elsewhere = {node for rank, node in nodes.items() if rank not in unbuilt}
    if (
        not unbuilt
        or not elsewhere
        or any(nodes.get(rank) in {None, *elsewhere} for rank in unbuilt)
    ):
        return None
    found = {rank: members[rank] for rank in sorted(unbuilt)}
    return {
        rank: FailedStart(error=errors[rank], node=member.node, host=member.host)
        for rank, member in found.items()
        if member is not None
    }


def _may_be_node_specific(error: BaseException) -> bool:
    """Return whether an error may be specific to the node."""
    return isinstance(error, StorageError) or (isinstance(error, TaskRaised) and error.step is None)


def _format_hosts(failed: Sequence[FailedStart]) -> str:
    return ", ".join(
        f"node {host}" for host in dict.fromkeys(one.host or "unknown" for one in failed)
    )


__all__ = [
    "AVOID_S",
    "AvoidedNodes",
    "FailedStart",
    "StartVerdict",
    "blame_nodes",
    "find_unbuilt_members",
    "judge_starts",
]
