"""Keeps workers from nodes where workers kept failing, and from those that an operator cordoned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import structlog

from accordion_service.domain.capacity.cluster_snapshot import (
    find_available_nodes,
    list_unschedulable,
    name_of_node,
)
from accordion_service.domain.capacity.nodes import (
    AvoidanceRules,
    NodeRecord,
    NodeState,
    describe_node_state,
    find_states,
    start_avoidances,
)
from accordion_service.runtime.protocol import Node
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.writes.nodes import NodeStore

_log = structlog.get_logger()


class NodeAvoidance:
    """Marks the nodes of each survey; `clock` returns seconds since 1970."""

    def __init__(self, database: Database, settings: Settings, clock: Callable[[], float]) -> None:
        self._cluster = ClusterReads(database)
        self._store = NodeStore(database, clock)
        self._clock = clock
        self._ordered: tuple[int, tuple[str, ...]] | None = None
        """Token of the lease, and the IDs of the nodes that the newest orders name."""
        self._rules = AvoidanceRules(
            failures=settings.node_failures,
            window_s=settings.node_failure_window_s,
            first_s=settings.node_avoid_s,
            longest_s=settings.node_avoid_max_s,
        )

    def mark_nodes(self, nodes: Sequence[Node], token: int) -> list[Node]:
        """Return the nodes, each with the reason why it takes no more workers, if there is one.
        Jobs that hold workers get new orders if these nodes have changed since the last survey.
        """
        self._start_avoidances(token)
        records, documents = self._store.read_records(), [asdict(node) for node in nodes]
        states = find_states(records, find_available_nodes(documents), self._clock())
        marked = [
            replace(node, unschedulable=_explain(name_of_node(document), records, states))
            for node, document in zip(nodes, documents, strict=True)
        ]
        self._renew_orders(list_unschedulable(map(asdict, marked)), token)
        return marked

    def _renew_orders(self, unschedulable: tuple[str, ...], token: int) -> None:
        """Have orders sent again if they name other nodes. If this process is killed before it
        stores the snapshot, the next one does so again.
        """
        if self._ordered is None or self._ordered[0] != token:
            self._ordered = (token, self._cluster.unschedulable_nodes())
        if self._ordered[1] != unschedulable:
            self._store.renew_orders(token)
            self._ordered = (token, unschedulable)

    def _start_avoidances(self, token: int) -> None:
        failures = self._store.read_failures(last_s=self._rules.window_s)
        if not failures:
            return
        records, now = self._store.read_records(), self._clock()
        for avoidance in start_avoidances(failures, records, self._rules, now=now):
            self._store.start_avoidance(avoidance, token)
            _log.warning(
                "node avoided",
                node=avoidance.name,
                until=avoidance.until,
                reason=avoidance.because,
            )


def _explain(name: str, records: dict[str, NodeRecord], states: dict[str, NodeState]) -> str:
    """Say why a node takes no more workers; empty if it does."""
    state = states.get(name, NodeState.AVAILABLE)
    return describe_node_state(records[name], state) if state.is_unschedulable else ""
