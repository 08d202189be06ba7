"""Failures that may be a node's fault, and nodes that take no workers, in the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from accordion_service.domain.access import Caller
from accordion_service.domain.audit import AuditAction
from accordion_service.domain.capacity.cluster_snapshot import name_of_node
from accordion_service.domain.capacity.nodes import Avoidance, NodeFailure, NodeRecord
from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.store.engine.database import Database
from accordion_service.store.tables.models import ClusterRow, JobRow, NodeFailureRow, NodeRow
from accordion_service.store.writes.audit import append_audit
from accordion_service.store.writes.leases import is_newest_token
from accordion_workers.records.contract import FailureRecord, Record

_MAX_TEXT = 2000
"""Characters of a reason that a row keeps."""


def record_node_failures(
    session: Session, job: JobRow, *, record: Record, failure: FailureRecord
) -> None:
    """Store a failure once for each node that may be the cause. A node that is not in the newest
    snapshot is left out.
    """
    if not failure.nodes:
        return
    cluster = session.get(ClusterRow, 1)
    names = {
        name_of_node(node)
        for node in (cluster.nodes if cluster else [])
        if node["id"] in failure.nodes
    }
    session.add_all(
        NodeFailureRow(
            node=name,
            time=record.time,
            job_id=job.id,
            owner=job.owner,
            attempt=record.attempt,
            reason=failure.message[:_MAX_TEXT],
        )
        for name in sorted(names)
    )


def blank_node_failures(session: Session, job_id: str) -> None:
    """Keep the failures of a job that is being deleted, without its owner and what happened."""
    rows = update(NodeFailureRow).where(NodeFailureRow.job_id == job_id)
    session.execute(rows.values(owner=None, reason=""))


class NodeStore:
    """Reads and writes what is known of nodes; `clock` returns seconds since 1970."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def read_records(self, names: Collection[str] | None = None) -> dict[str, NodeRecord]:
        """Return the nodes that are or were avoided or cordoned, by name; only these, or all."""
        query = select(NodeRow).order_by(NodeRow.name)
        if names is not None:
            query = query.where(NodeRow.name.in_(names))
        with self._database.read() as session:
            return {row.name: _record_of(row) for row in session.scalars(query)}

    def read_failures(self, *, last_s: float) -> list[NodeFailure]:
        """Return the failures of the last `last_s` seconds, as far as rules need them."""
        row = NodeFailureRow
        query = select(row.node, row.job_id, row.time, row.owner).where(self._is_newer(last_s))
        with self._database.read() as session:
            return [NodeFailure(**found) for found in session.execute(query).mappings()]

    def count_failures(self, *, last_s: float) -> dict[str, int]:
        """Count the failures of the last `last_s` seconds by node."""
        query = select(NodeFailureRow.node, func.count()).where(self._is_newer(last_s))
        with self._database.read() as session:
            return dict(session.execute(query.group_by(NodeFailureRow.node)).all())

    def list_failures(self, *, last_s: float, per_node: int) -> Sequence[NodeFailureRow]:
        """List the newest failures of each node, at most `per_node`, of the last `last_s` seconds;
        the newest first.
        """
        newest_first = NodeFailureRow.time.desc(), NodeFailureRow.id.desc()
        number = func.row_number().over(partition_by=NodeFailureRow.node, order_by=newest_first)
        numbered = select(NodeFailureRow.id, number.label("number")).where(self._is_newer(last_s))
        found = numbered.subquery()
        query = select(NodeFailureRow).join(found, found.c.id == NodeFailureRow.id)
        with self._database.read() as session:
            few = query.where(found.c.number <= per_node).order_by(*newest_first)
            return session.scalars(few).all()

    def _is_newer(self, last_s: float) -> ColumnElement[bool]:
        return NodeFailureRow.time > self._clock() - last_s

    def start_avoidance(self, avoidance: Avoidance, token: int) -> None:
        """Store that a node is avoided from now on, unless the scheduler has lost its lease, or the
        node was restored since the failures were read.
        """
        now = self._clock()

        def change(session: Session, row: NodeRow) -> None:
            if is_newest_token(session, token) and row.restored_at == avoidance.restored_at:
                row.avoided_since, row.avoided_until = now, avoidance.until
                row.avoided_because = avoidance.because
                row.num_avoided = avoidance.num_avoided

        self._change(avoidance.name, change)

    def renew_orders(self, token: int) -> None:
        """Have the orders of all jobs with workers sent again, since the nodes to avoid changed."""
        with self._database.write() as session:
            holding = JobRow.status.in_(UNFINISHED), JobRow.workers > 0
            # Locked in one order, and before the lease, as in every other transaction.
            jobs = select(JobRow.id).where(*holding).order_by(JobRow.id).with_for_update()
            ids = session.scalars(jobs).all()
            if not is_newest_token(session, token):
                return
            session.execute(
                update(JobRow)
                .where(JobRow.id.in_(ids))
                .values(orders_version=JobRow.orders_version + 1, version=JobRow.version + 1)
            )

    def cordon(self, caller: Caller, name: str, reason: str) -> None:
        """Keep workers from a node until it is restored. Repeating has no effect."""
        now = self._clock()

        def change(session: Session, row: NodeRow) -> None:
            before = None if row.cordoned_at is None else {"reason": row.cordon_reason}
            after = {"reason": reason}
            if before == after:
                return
            row.cordoned_at, row.cordoned_by, row.cordon_reason = now, caller.user, reason
            append_audit(
                session,
                caller,
                AuditAction.NODE_CORDONED,
                subject=name,
                before=before,
                after=after,
                now=now,
            )

        self._change(name, change)

    def restore(self, caller: Caller, name: str) -> None:
        """Let workers be placed on a node again, whether it is cordoned or avoided; its earlier
        failures no longer count. Without effect on any other node.
        """
        now = self._clock()
        with self._database.write() as session:
            row = session.get(NodeRow, name, with_for_update=True)
            if row is None or not (row.cordoned_at or _record_of(row).is_avoided(now)):
                return
            before = {"reason": row.cordon_reason if row.cordoned_at else row.avoided_because}
            row.cordoned_at, row.cordoned_by, row.cordon_reason = None, "", ""
            row.avoided_since, row.avoided_until, row.avoided_because = None, 0.0, ""
            row.num_avoided, row.restored_at = 0, now
            append_audit(
                session, caller, AuditAction.NODE_RESTORED, subject=name, before=before, now=now
            )

    def _change(self, name: str, change: Callable[[Session, NodeRow], None]) -> None:
        try:
            self._try_to_change(name, change)
        except IntegrityError:
            # PostgreSQL runs writers concurrently: another one inserted it meanwhile.
            self._try_to_change(name, change)

    def _try_to_change(self, name: str, change: Callable[[Session, NodeRow], None]) -> None:
        with self._database.write() as session:
            row = session.get(NodeRow, name, with_for_update=True)
            if row is None:
                row = NodeRow(name=name)
                session.add(row)
                session.flush()
            change(session, row)


def _record_of(row: NodeRow) -> NodeRecord:
    return NodeRecord(**{name: getattr(row, name) for name in NodeRecord.__dataclass_fields__})
