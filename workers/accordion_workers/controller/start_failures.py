"""Judges worker processes that did not become ready, and which nodes to avoid; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from accordion_workers.common.error_kinds import is_peer_loss, is_storage_outage
from accordion_workers.common.error_text import format_error
from accordion_workers.common.errors import (
    DataFetchError,
    DataNotOnNode,
    PackagesError,
    ProcessCrashed,
    StorageError,
    StorageNotShared,
    TaskRaised,
)
from accordion_workers.controller.failure_causes import classify_start_failure
from accordion_workers.controller.scaling_policy import Process
from accordion_workers.records.contract import AVOID_S, EndReason, FailureRecord

MAX_TRIED_NODES = 2
"""Nodes on which a job that never trained tries to install its packages, and to fetch its data;
then the job is the likelier cause. A node that lacks the storage or a path of the data is no such
sign.
"""
_NODE_LACKS = (StorageNotShared, DataNotOnNode)
"""Errors about what one node lacks; another one may have it."""
_NAMED_NODES = 2
"""Avoided nodes that one message explains; more are counted."""


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
    is_elsewhere: bool = False
    """Whether the replacements need not wait, because they are placed on nodes that may have what
    these lack.
    """
    tries_again: bool = False
    """Whether the nodes that were avoided may be used again: no node reaches the storage, which may
    come back anywhere.
    """


@dataclass(slots=True)
class AvoidedNodes:
    """Nodes on which no process is started: temporarily, because a process there crashed, or could
    not build the task or see the storage, and those that the scheduler has ordered to avoid.
    """

    until: dict[str, float] = field(default_factory=dict)
    """When each node may be used again that this attempt avoids by itself."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why it avoids each of them, in one sentence."""
    tried: set[str] = field(default_factory=set)
    """Nodes that this attempt avoids or has avoided; emptied once none reaches the storage."""
    ordered: frozenset[str] = frozenset()
    """Nodes that the scheduler has ordered to avoid."""
    requested: frozenset[str] = frozenset()
    """All nodes to avoid when processes were requested last."""

    @property
    def nodes(self) -> frozenset[str]:
        """All of these nodes."""
        return self.ordered.union(self.until)

    @property
    def explanations(self) -> list[str]:
        """Why nodes are avoided, one sentence each."""
        reasons = list(dict.fromkeys(self.reasons.values()))
        more = len(reasons) - _NAMED_NODES
        found = reasons[:_NAMED_NODES]
        if more > 0:
            found.append(f"{more} more such {'node is' if more == 1 else 'nodes are'} avoided")
        if self.ordered:
            nodes = "1 node takes" if len(self.ordered) == 1 else f"{len(self.ordered)} nodes take"
            found.append(f"{nodes} no workers: 'accordion nodes' lists them")
        return found

    def add(self, verdict: StartVerdict, now: float) -> None:
        """Avoid the verdict's nodes for `AVOID_S` from now on."""
        if verdict.tries_again:
            self.until, self.reasons, self.tried = {}, {}, set()
        self.until |= dict.fromkeys(verdict.avoid, now + AVOID_S)
        self.reasons |= dict.fromkeys(verdict.avoid, verdict.failure.message)
        self.tried |= verdict.avoid

    def update(self, ordered: Collection[str], now: float) -> bool:
        """Drop the nodes whose time is over, and take over the scheduler's; return whether a
        process that is not placed yet must be requested again.
        """
        for node in [node for node, until in self.until.items() if now >= until]:
            del self.until[node], self.reasons[node]
        self.ordered = frozenset(ordered)
        before, self.requested = self.requested, self.nodes
        return self.requested != before


def judge_starts(
    failed: Sequence[FailedStart],
    processes: Sequence[Process],
    *,
    has_trained: bool,
    tried: Set[str] = frozenset(),
    has_other_node: Callable[[Set[str]], bool] = lambda _: False,
) -> StartVerdict | None:
    """Decide what failed starts mean.

    If another process has built the task, now or before, the nodes of those that could not are
    avoided. A task that no process could build ends the job. Returns None while other processes
    still prepare: nothing is known yet. If one of them died, their replacements try again.

    A node that lacks the job's storage or data is avoided as long as there is another node to try,
    and so is the first node that cannot install the packages or fetch the data. `has_other_node`
    says whether there is a node besides the given ones, and `tried` are those that were avoided
    before.
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
    died = [one for one in lost if not is_storage_outage(one.error)]
    if not unbuilt:
        if died:
            return _judge_loss(died, ready, has_trained=has_trained)
        return _judge_lacking(lost, tried, has_other_node)
    if ready or has_trained:
        avoid = _nodes_of(unbuilt) - ready
        # Without a process that is ready now, something that all nodes share may be missing.
        return blame_nodes(unbuilt, avoid, may_name=bool(ready))
    if any(process.ready_since is None and process.node is not None for process in processes):
        return None
    if died:
        return _judge_loss(died, ready, has_trained=has_trained)
    return _judge_unbuilt([*unbuilt, *lost], tried, has_other_node)


def _judge_unbuilt(
    unbuilt: Sequence[FailedStart],
    tried: Set[str],
    has_other_node: Callable[[Set[str]], bool],
) -> StartVerdict:
    """Decide what it means that no process got ready, and none has died."""
    # What one node lacks says nothing about the job, unlike an error on a node that lacks nothing.
    telling = [one for one in unbuilt if not _is_lacking(one.error)]
    if not telling:
        return _judge_lacking(unbuilt, tried, has_other_node)
    first, hosts = telling[0].error, _format_hosts(telling)
    if isinstance(first, StorageError):
        message = f"no worker process can keep the job's state: {format_error(first)}"
        return StartVerdict(
            failure=FailureRecord(cause="job", rank=None, message=message), fatal="START_FAILED"
        )
    if isinstance(first, PackagesError | DataFetchError):
        nodes = _nodes_of(unbuilt)
        if len(nodes | tried) < MAX_TRIED_NODES and has_other_node(nodes | tried):
            return blame_nodes(unbuilt, nodes)
        # Neither the code of the job nor its budget of failures has to do with it.
        task = "install the packages" if isinstance(first, PackagesError) else "get the data"
        message = f"no worker process could {task}; on {hosts}: {format_error(first)}"
        failure = FailureRecord(cause="infrastructure", rank=None, message=message)
        return StartVerdict(failure=failure, fatal="START_FAILED")
    message = f"no worker process could load the task; on {hosts}: {format_error(first)}"
    return StartVerdict(
        failure=FailureRecord(cause="job", rank=None, message=message), fatal="TASK_RAISED"
    )


def _judge_lacking(
    lacking: Sequence[FailedStart],
    tried: Set[str],
    has_other_node: Callable[[Set[str]], bool],
) -> StartVerdict:
    """Decide what it means that all nodes of this round lack the storage or the data of the job,
    and no process is ready. They are avoided while there are others; a storage that no node reaches
    now may come back.
    """
    nodes = _nodes_of(lacking)
    if nodes and has_other_node(nodes | tried):
        return blame_nodes(lacking, nodes, may_name=False)
    away = [one.error for one in lacking if is_storage_outage(one.error)]
    if away:
        return StartVerdict(failure=classify_start_failure(away[0]), tries_again=True)
    first, num_nodes = lacking[0].error, len(nodes | tried)
    task = "see the storage" if isinstance(first, StorageNotShared) else "get the data"
    where = f" on any of {num_nodes} nodes" if num_nodes > 1 else ""
    message = (
        f"no worker process could {task}{where}; on {_format_hosts(lacking)}: {format_error(first)}"
    )
    failure = FailureRecord(cause="infrastructure", rank=None, message=message)
    return StartVerdict(failure=failure, fatal="START_FAILED")


def _judge_loss(
    lost: Sequence[FailedStart], ready: Set[str | None], *, has_trained: bool
) -> StartVerdict:
    failure = classify_start_failure(lost[0].error)
    if failure.cause != "job":
        return StartVerdict(failure=failure)
    if ready:
        # The code loads on another node, so this node may be to blame.
        crashed = [one for one in lost if isinstance(one.error, ProcessCrashed)]
        return StartVerdict(failure=failure, avoid=_nodes_of(crashed) - ready)
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
    lacks = "load the task" if isinstance(first, TaskRaised) else "take part"
    message = f"a worker process on {_format_hosts(unbuilt)} cannot {lacks}: {format_error(first)}"
    if avoid:
        message += f"; no process is started there for the next {AVOID_S / 60:g} min"
    blind = {one.node for one in unbuilt if isinstance(one.error, StorageNotShared)}
    failure = FailureRecord(
        cause="infrastructure",
        rank=None,
        message=message,
        is_storage=all(
            isinstance(one.error, DataFetchError) or _is_lacking(one.error) for one in unbuilt
        ),
        nodes=tuple(sorted(avoid & blind)) if may_name else (),
    )
    is_elsewhere = bool(avoid) and all(isinstance(one.error, _NODE_LACKS) for one in unbuilt)
    return StartVerdict(failure=failure, avoid=avoid, is_elsewhere=is_elsewhere)


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


def find_refused_members(
    errors: Mapping[int, BaseException],
    members: Sequence[Process | None],
    *,
    tried: Set[str],
    has_other_node: Callable[[Set[str]], bool],
) -> dict[int, FailedStart] | None:
    """Return the members of a new job's group to which the storage of the checkpoints was refused.

    None if that ends the job: there is no other node, or the storage refuses several.
    """
    refused = {
        rank: FailedStart(error=error, node=member.node, host=member.host)
        for rank, error in errors.items()
        if isinstance(error, StorageError) and (member := members[rank]) is not None
    }
    others = [error for rank, error in errors.items() if rank not in refused]
    nodes = _nodes_of(list(refused.values())) | tried
    is_first = 0 < len(nodes) < MAX_TRIED_NODES and all(map(is_peer_loss, others))
    return refused if refused and is_first and has_other_node(nodes) else None


def _may_be_node_specific(error: BaseException) -> bool:
    """Return whether an error may be specific to the node."""
    return isinstance(error, StorageError) or (isinstance(error, TaskRaised) and error.step is None)


def _is_lacking(error: BaseException) -> bool:
    """Return whether an error says that a node lacks the storage or the data of the job."""
    return isinstance(error, _NODE_LACKS) or is_storage_outage(error)


def _nodes_of(failed: Sequence[FailedStart]) -> frozenset[str]:
    return frozenset(one.node for one in failed if one.node)


def _format_hosts(failed: Sequence[FailedStart]) -> str:
    return ", ".join(
        f"node {host}" for host in dict.fromkeys(one.host or "unknown" for one in failed)
    )


__all__ = [
    "MAX_TRIED_NODES",
    "AvoidedNodes",
    "FailedStart",
    "StartVerdict",
    "blame_nodes",
    "find_refused_members",
    "find_unbuilt_members",
    "judge_starts",
]
