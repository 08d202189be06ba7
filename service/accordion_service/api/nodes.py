"""Routes for the nodes of the cluster: which take workers, and why others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path

from accordion_service.api.app_state import AppState
from accordion_service.api.callers import CallerDep, require_scope
from accordion_service.api.deps import NO_QUERY, WRITES_ROWS, StateDep
from accordion_service.api.problems import describe_problems
from accordion_service.domain.access import Caller, Scope
from accordion_service.domain.capacity.cluster_snapshot import find_available_nodes, name_of_node
from accordion_service.domain.capacity.nodes import (
    NodeRecord,
    NodeState,
    describe_node_state,
    find_states,
)
from accordion_service.errors import NotFound
from accordion_service.schemas.nodes import CordonRequest, NodeFailureView, NodeList, NodeStatus
from accordion_service.store.tables.models import NodeFailureRow
from accordion_service.store.writes.nodes import NodeStore

router = APIRouter(prefix="/nodes", tags=["nodes"], responses=describe_problems())
_LISTED_S = 86_400.0
"""Age of the oldest failure that is listed, in seconds."""
_LISTED = 20
"""Failures that are listed of a node."""
_NOT_THERE: Mapping[str, Any] = {
    "address": None,
    "alive": False,
    "cpus": 0.0,
    "gpus": 0.0,
    "memory_bytes": 0,
}
"""Values of a node that the cluster does not have."""
_NodeName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=255,
        pattern=r"^[A-Za-z0-9._:@-]+$",
        description="name, address or ID of the node",
    ),
]


@router.get("", dependencies=[require_scope(Scope.READ), NO_QUERY])
def get_nodes(state: StateDep, caller: CallerDep) -> NodeList:
    """List the nodes of the cluster, each with its failures of the last 24 hours, of which the
    newest 20 are shown, and whether workers are placed on it.
    """
    return NodeList(items=list(_describe_nodes(state, caller).values()))


@router.post(
    "/{node}/cordon",
    dependencies=[require_scope(Scope.WRITE_ALL), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(400, 404, 415),
)
def cordon_node(
    node: _NodeName, body: CordonRequest, *, state: StateDep, caller: CallerDep
) -> NodeStatus:
    """Place no more workers on a node until it is restored. Workers that run there stay. Repeating
    has no effect.
    """
    name = _find_name(state, node)
    # A message that contains it is one line.
    _store_of(state).cordon(caller, name, " ".join(body.reason.split()))
    return _describe_nodes(state, caller)[name]


@router.post(
    "/{node}/restore",
    dependencies=[require_scope(Scope.WRITE_ALL), NO_QUERY, *WRITES_ROWS],
    responses=describe_problems(404),
)
def restore_node(node: _NodeName, state: StateDep, caller: CallerDep) -> NodeStatus:
    """Place workers on a node again that is cordoned or avoided; its earlier failures no longer
    count. Repeating has no effect.
    """
    name = _find_name(state, node)
    _store_of(state).restore(caller, name)
    return _describe_nodes(state, caller, also=name)[name]


def _store_of(state: AppState) -> NodeStore:
    return NodeStore(state.database, state.clock)


def _read_snapshot(state: AppState) -> list[dict[str, Any]]:
    """Return the nodes as the scheduler last saw them; those that are alive come last."""
    row = state.cluster.get()
    return sorted(row.nodes if row else [], key=lambda node: bool(node["alive"]))


def _find_name(state: AppState, text: str) -> str:
    """Return the name of the node that a request names.

    Raises:
        NotFound: there is no such node.
    """
    nodes = _read_snapshot(state)
    if text in {*map(name_of_node, nodes), *_store_of(state).read_records()}:
        return text
    for node in reversed(nodes):
        if text in {node["address"], node["id"]}:
            return name_of_node(node)
    raise NotFound(f"there is no node {text!r}; 'accordion nodes' (GET /api/v1/nodes) lists all")


def _describe_nodes(
    state: AppState, caller: Caller, *, also: str | None = None
) -> dict[str, NodeStatus]:
    """Describe nodes by name: those that are worth listing, and one that a request names."""
    nodes, store = _read_snapshot(state), _store_of(state)
    records, by_name = store.read_records(), {name_of_node(node): node for node in nodes}
    states = find_states(records, find_available_nodes(nodes), state.clock())
    failures: dict[str, list[NodeFailureRow]] = defaultdict(list)
    for row in store.list_failures(last_s=_LISTED_S, per_node=_LISTED):
        failures[row.node].append(row)
    num_failures = store.count_failures(last_s=_LISTED_S)
    names = {name for name, node in by_name.items() if node["alive"]} | num_failures.keys()
    names |= {name for name, one in states.items() if one is not NodeState.AVAILABLE}
    return {
        name: _describe_node(
            records.get(name, NodeRecord(name=name)),
            states.get(name, NodeState.AVAILABLE),
            node=by_name.get(name, _NOT_THERE),
            num_failures=num_failures.get(name, 0),
            failures=[_describe_failure(row, caller) for row in failures[name]],
        )
        for name in sorted(names | ({also} if also else set()))
    }


def _describe_node(
    record: NodeRecord,
    state: NodeState,
    *,
    node: Mapping[str, Any],
    num_failures: int,
    failures: list[NodeFailureView],
) -> NodeStatus:
    is_cordoned = state is NodeState.CORDONED
    is_avoided = state in {NodeState.AVOIDED, NodeState.FAILING}
    avoided_because = record.avoided_because if is_avoided else ""
    until = datetime.fromtimestamp(record.avoided_until, UTC) if is_avoided else None
    return NodeStatus(
        name=record.name,
        address=node["address"],
        alive=node["alive"],
        draining=node.get("draining", False),
        cpus=node["cpus"],
        gpus=node["gpus"],
        memory_bytes=node["memory_bytes"],
        labels=node.get("labels", {}),
        state=state,
        message=describe_node_state(record, state),
        reason=record.cordon_reason if is_cordoned else avoided_because,
        until=until,
        by=record.cordoned_by if is_cordoned else None,
        num_failures=num_failures,
        failures=failures,
    )


def _describe_failure(row: NodeFailureRow, caller: Caller) -> NodeFailureView:
    view = NodeFailureView.model_validate(row)
    return view if caller.may_see(row.owner) else view.model_copy(update={"reason": None})
