"""The tables of nodes: failures that may be a node's fault, and nodes that take no workers."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.store.tables.columns import LongPlainText, PlainText
from accordion_service.store.tables.table_base import Base

_NODE = PlainText(255)


class NodeRow(Base):
    """A node that is or was avoided or cordoned, by name: Ray's IDs change when a node restarts."""

    __tablename__ = "nodes"

    name: Mapped[str] = mapped_column(_NODE, primary_key=True)
    cordoned_at: Mapped[float | None]
    """When it was cordoned; None while it is not."""
    cordoned_by: Mapped[str] = mapped_column(PlainText(63), default="")
    cordon_reason: Mapped[str] = mapped_column(LongPlainText(), default="")
    avoided_since: Mapped[float | None]
    """When it was last avoided; None if never, or since it was restored."""
    avoided_until: Mapped[float] = mapped_column(default=0.0)
    avoided_because: Mapped[str] = mapped_column(LongPlainText(), default="")
    num_avoided: Mapped[int] = mapped_column(default=0)
    """How often it was avoided in a row."""
    restored_at: Mapped[float] = mapped_column(default=0.0)


class NodeFailureRow(Base):
    """A failure of a job that may be the fault of a node."""

    __tablename__ = "node_failures"
    __table_args__ = (Index(None, "time"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    node: Mapped[str] = mapped_column(_NODE)
    """Name of the node."""
    time: Mapped[float]
    job_id: Mapped[str] = mapped_column(PlainText(36))
    """ID of the job, which may have been deleted."""
    owner: Mapped[str | None] = mapped_column(PlainText(63))
    attempt: Mapped[int]
    reason: Mapped[str] = mapped_column(LongPlainText())
    """What happened, in one sentence."""
