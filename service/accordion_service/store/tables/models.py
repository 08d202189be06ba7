"""The tables. Times are seconds since 1970; JSON columns hold what the contract's records dump.

A job's row serializes its writes: every write to a job raises `version` in the same transaction,
and event numbers come from the row.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from accordion_service.domain.jobs.statuses import Kind
from accordion_service.store.tables.audit import AuditRow as AuditRow
from accordion_service.store.tables.checkpoints import CheckpointRow as CheckpointRow
from accordion_service.store.tables.columns import LISTED_COLUMNS, LongPlainText, PlainText
from accordion_service.store.tables.job_labels import JobLabelRow as JobLabelRow
from accordion_service.store.tables.loggers import LoggerRow as LoggerRow
from accordion_service.store.tables.login_codes import LoginCodeRow as LoginCodeRow
from accordion_service.store.tables.nodes import NodeFailureRow as NodeFailureRow
from accordion_service.store.tables.nodes import NodeRow as NodeRow
from accordion_service.store.tables.table_base import Base as Base
from accordion_service.store.tables.webhook_secrets import WebhookSecretRow as WebhookSecretRow

_ID = PlainText(36)
_NAME = PlainText(128).with_variant(LongPlainText(), "postgresql")
"""SQLite ignores the length; PostgreSQL rejects longer texts."""
_TEXT = LongPlainText()
_USER = PlainText(63)
_TOKEN_ID = PlainText(16)
_KEEPS_ALL = text("ended_at IS NOT NULL AND checkpoints_removed_at IS NULL")
"""Condition of ended jobs whose checkpoints may have to be removed."""
_KEEPS_HISTORY = text("ended_at IS NOT NULL AND history_removed_at IS NULL")
"""Condition of ended jobs whose events and output may have to be removed."""


def _job_key() -> Mapped[str]:
    return mapped_column(_ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)


class JobRow(Base):
    """One job."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_list", *LISTED_COLUMNS),
        Index("ix_jobs_status_list", "status", *LISTED_COLUMNS),
        Index("ix_jobs_name_list", "name", "archived", "created_at", "id", "status"),
        Index(None, "ended_at", "archived"),
        Index("ix_jobs_owner_list", "owner", "archived", "created_at", "id", "status"),
        Index(None, "kind", "status"),
        Index(
            "ix_jobs_checkpoints", "ended_at", sqlite_where=_KEEPS_ALL, postgresql_where=_KEEPS_ALL
        ),
        Index(
            "ix_jobs_history",
            "ended_at",
            sqlite_where=_KEEPS_HISTORY,
            postgresql_where=_KEEPS_HISTORY,
        ),
    )

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    name: Mapped[str] = mapped_column(_NAME)
    kind: Mapped[str] = mapped_column(PlainText(8), default=Kind.JOB.value)
    owner: Mapped[str | None] = mapped_column(_USER)
    """User who submitted it; None for a guest run."""
    cloned_from: Mapped[str | None] = mapped_column(_ID)
    """Job whose spec it was made from."""
    version: Mapped[int] = mapped_column(default=0)
    """Raised by every write; a write that read an older one changes nothing."""
    etag_version: Mapped[int] = mapped_column(default=1)
    """Raised only by requests of users: the desired state, numbers of workers, name, labels,
    priority, and overrides.
    """
    status: Mapped[str] = mapped_column(PlainText(16))
    desired: Mapped[str] = mapped_column(PlainText(16))
    desired_by: Mapped[str | None] = mapped_column(_USER)
    """User who last set `desired`; None for a guest run."""
    reason: Mapped[str] = mapped_column(PlainText(32))
    message: Mapped[str] = mapped_column(_TEXT, default="")
    spec: Mapped[dict[str, Any]]
    task: Mapped[str | None] = mapped_column(_TEXT)
    """Name of the task in the spec; this and the next two are copies, by which lists are filtered.
    """
    method: Mapped[str | None] = mapped_column(_TEXT)
    policy: Mapped[str | None] = mapped_column(_TEXT)
    labels: Mapped[dict[str, Any]]
    priority: Mapped[int]
    attempt: Mapped[int] = mapped_column(default=0)
    """Number of the newest attempt; 0 before the first."""
    min_workers: Mapped[int]
    """Fewest workers allowed now: from the spec or the newest resize."""
    max_workers: Mapped[int]
    workers: Mapped[int] = mapped_column(default=0)
    """Number of workers allocated and so reserved; 0 if none are."""
    world_size: Mapped[int] = mapped_column(default=0)
    """Workers in training now."""
    retried_attempt: Mapped[int | None]
    """Newest attempt when a user last retried the job; None if none did."""
    lost_attempts: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    """Worker groups that failed, for any cause."""
    tally: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Cost of elasticity over all attempts; see `domain/performance/elasticity.py`."""
    deadline: Mapped[float | None]
    """When a start counts as failed, or a stop is forced."""
    start_at: Mapped[float | None]
    """When the job is queued, if its spec names a time."""
    queued_at: Mapped[float]
    """When users last had it queued: by submitting, resuming or retrying it, or at `start_at`; when
    a guest run registered.
    """
    trained_s: Mapped[float] = mapped_column(default=0.0)
    """Seconds of training in the attempts that have ended."""
    times_out_at: Mapped[float | None]
    """When it fails if it has not ended (`limits.total_seconds`); None without that limit, and once
    `limits.training_seconds` has stopped it.
    """
    event_seq: Mapped[int] = mapped_column(default=0)
    events_removed: Mapped[int] = mapped_column(default=0)
    """Events that are no longer kept: those numbered up to this."""
    log_number: Mapped[int] = mapped_column(default=0)
    log_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """Sum of `size_bytes` of the chunks that are kept."""
    log_bytes_removed: Mapped[int] = mapped_column(BigInteger, default=0)
    override_number: Mapped[int] = mapped_column(default=0)
    orders_version: Mapped[int] = mapped_column(default=0)
    orders_confirmed: Mapped[int] = mapped_column(default=0)
    cursor_attempt: Mapped[int] = mapped_column(default=0)
    cursor_generation: Mapped[int] = mapped_column(BigInteger, default=0)
    cursor_seq: Mapped[int] = mapped_column(default=-1)
    progress: Mapped[dict[str, Any] | None]
    layers: Mapped[list[Any] | None]
    storage: Mapped[dict[str, Any] | None]
    """`StorageUse` of the newest worker group, and when that was; None before the first."""
    ray_run: Mapped[dict[str, Any] | None]
    """What runs the newest worker group in Ray (`ray_run.py`); None before the first."""
    packages: Mapped[dict[str, Any] | None]
    """`PackagesRecord` of its `pip`, and when that was written; None before."""
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    checkpoints_removed_at: Mapped[float | None]
    """When retention removed checkpoints after its end, or found none to remove."""
    history_removed_at: Mapped[float | None]
    """When retention had removed events and output after its end, or found none to remove."""
    archived: Mapped[bool] = mapped_column(default=False)
    """Whether a user archived it after its end; a retry unarchives it."""


class DeletedJobRow(Base):
    """A deleted job whose files are still to be removed."""

    __tablename__ = "deleted_jobs"

    job_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    storage_url: Mapped[str | None] = mapped_column(_TEXT)
    """`checkpoint.storage` of its spec; None without one."""
    deleted_at: Mapped[float]


class AttemptRow(Base):
    """One run of a job."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = _job_key()
    number: Mapped[int] = mapped_column(primary_key=True)
    workers: Mapped[int]
    generation: Mapped[int] = mapped_column(BigInteger, default=0)
    """Newest worker group that reported."""
    tally: Mapped[dict[str, Any]] = mapped_column(default=dict)
    reason: Mapped[str] = mapped_column(PlainText(32))
    message: Mapped[str] = mapped_column(_TEXT, default="")
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]


class EpochRow(Base):
    """One finished epoch, as the newest worker group reported it."""

    __tablename__ = "epochs"

    job_id: Mapped[str] = _job_key()
    epoch: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    generation: Mapped[int] = mapped_column(BigInteger)
    time: Mapped[float]
    record: Mapped[dict[str, Any]]


class DecisionRow(Base):
    """One decision that every worker applied."""

    __tablename__ = "decisions"

    job_id: Mapped[str] = _job_key()
    epoch: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    generation: Mapped[int] = mapped_column(BigInteger)
    time: Mapped[float]
    decision: Mapped[dict[str, Any]]


class OverrideRow(Base):
    """One override requested by a user."""

    __tablename__ = "overrides"
    __table_args__ = (Index(None, "job_id", "number", unique=True),)

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    job_id: Mapped[str] = mapped_column(_ID, ForeignKey("jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    target: Mapped[str] = mapped_column(PlainText(16))
    level: Mapped[Any]
    layers: Mapped[list[Any]]
    apply_at: Mapped[Any]
    until: Mapped[int | None]
    reason: Mapped[str] = mapped_column(_TEXT, default="")
    requested_by: Mapped[str | None] = mapped_column(_USER)
    """User who requested it."""
    orders_version: Mapped[int]
    """First version of the job's orders that holds it."""
    state: Mapped[str] = mapped_column(PlainText(16))
    message: Mapped[str] = mapped_column(_TEXT, default="")
    epoch: Mapped[int | None]
    step: Mapped[int | None]
    world_size: Mapped[int | None]
    created_at: Mapped[float]
    applied_at: Mapped[float | None]


class AckRow(Base):
    """Plan digest that one rank reported from its own hook for an override."""

    __tablename__ = "acks"

    override_id: Mapped[str] = mapped_column(
        _ID, ForeignKey("overrides.id", ondelete="CASCADE"), primary_key=True
    )
    rank: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int]
    digest: Mapped[str] = mapped_column(PlainText(64))


class EventRow(Base):
    """Events of a job, numbered without gaps; only the newest are kept."""

    __tablename__ = "events"

    job_id: Mapped[str] = _job_key()
    seq: Mapped[int] = mapped_column(primary_key=True)
    type: Mapped[str] = mapped_column(PlainText(16))
    time: Mapped[float]
    data: Mapped[dict[str, Any]]


class LogChunkRow(Base):
    """One batch of output lines; only the newest are kept."""

    __tablename__ = "log_chunks"

    job_id: Mapped[str] = _job_key()
    number: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[float]
    lines: Mapped[list[Any]]
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """Size of `lines` as JSON."""
    dropped: Mapped[int] = mapped_column(default=0)


class PlanRow(Base):
    """Predicted steps of a job, which a user requested."""

    __tablename__ = "plans"
    __table_args__ = (Index(None, "status", "created_at", "id"),)

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    owner: Mapped[str | None] = mapped_column(_USER)
    """User who requested it."""
    status: Mapped[str] = mapped_column(PlainText(16))
    request: Mapped[dict[str, Any]]
    """Body of the request: spec, link and seconds to measure."""
    answer: Mapped[dict[str, Any] | None]
    message: Mapped[str] = mapped_column(_TEXT, default="")
    created_at: Mapped[float]
    started_at: Mapped[float | None]


class LeaseRow(Base):
    """Lease of the scheduler: only the holder of the newest token may write."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(PlainText(32), primary_key=True)
    owner: Mapped[str] = mapped_column(_NAME)
    token: Mapped[int]
    renewed_at: Mapped[float]
    expires_at: Mapped[float]
    counts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What schedulers counted of themselves; see `store/writes/scheduler_counts.py`."""


class IdempotencyRow(Base):
    """Idempotency key that a client chose for one write, and what the write created."""

    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(_NAME, primary_key=True)
    """Scope of the key: the route, the job if there is one, and the user."""
    key: Mapped[str] = mapped_column(PlainText(255), primary_key=True)
    body_hash: Mapped[str] = mapped_column(PlainText(64))
    answer_id: Mapped[str] = mapped_column(_ID)
    """Id of the job or override that the first request made."""
    created_at: Mapped[float]


class InstallationRow(Base):
    """Id of this installation, created with the tables; one row."""

    __tablename__ = "installation"

    key: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(PlainText(32))
    """Part of the names of the installation's actors on the cluster."""
    created_at: Mapped[float]


class UserRow(Base):
    """A user, or an account that only programs use."""

    __tablename__ = "users"
    __table_args__ = (Index(None, "issuer", "subject", unique=True),)

    name: Mapped[str] = mapped_column(_USER, primary_key=True)
    role: Mapped[str] = mapped_column(PlainText(16))
    created_at: Mapped[float]
    disabled_at: Mapped[float | None]
    """When the user was disabled; None while enabled."""
    issuer: Mapped[str | None] = mapped_column(_TEXT)
    subject: Mapped[str | None] = mapped_column(PlainText(255))
    """Who the user is at an OpenID Connect provider; None for users that were added here."""


class TokenRow(Base):
    """A token of a user; revoked tokens stay listed."""

    __tablename__ = "tokens"
    __table_args__ = (Index(None, "user_name"),)

    id: Mapped[str] = mapped_column(_TOKEN_ID, primary_key=True)
    user: Mapped[str] = mapped_column("user_name", _USER, ForeignKey("users.name"))
    label: Mapped[str] = mapped_column(_NAME)
    made_by: Mapped[str | None] = mapped_column(_TOKEN_ID)
    """Token that created it, with which it is revoked; None for the admin token of the settings."""
    digest: Mapped[str] = mapped_column(PlainText(64))
    """SHA-256 of the token's secret."""
    scopes: Mapped[list[Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    used_at: Mapped[float | None]
    """Newest use, to within a minute."""
    revoked_at: Mapped[float | None]


class QuotaRow(Base):
    """What the jobs of a user, or with a label, may hold at the same time; None is no limit."""

    __tablename__ = "quotas"

    account: Mapped[str] = mapped_column(PlainText(192), primary_key=True)
    """Account of `domain/capacity/quotas.py`, such as `user ada` or `label team:vision`."""
    jobs: Mapped[int | None]
    workers: Mapped[int | None]
    gpus: Mapped[float | None]
    changed_at: Mapped[float]


class SecretRow(Base):
    """A secret of a user, which jobs get in an environment variable."""

    __tablename__ = "secrets"

    user: Mapped[str] = mapped_column(
        "user_name", _USER, ForeignKey("users.name"), primary_key=True
    )
    name: Mapped[str] = mapped_column(PlainText(63), primary_key=True)
    encrypted: Mapped[str] = mapped_column(_TEXT)
    """Value, as `settings/secret_box.py` encrypts it."""
    set_at: Mapped[float]


class WebhookRow(Base):
    """A webhook of a user, which is called when a job changes its status."""

    __tablename__ = "webhooks"
    __table_args__ = (Index(None, "user_name", "name", unique=True), Index(None, "jobs_of"))

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    user: Mapped[str] = mapped_column("user_name", _USER, ForeignKey("users.name"))
    name: Mapped[str] = mapped_column(PlainText(63))
    url: Mapped[str] = mapped_column(_TEXT)
    jobs_of: Mapped[str] = mapped_column(_USER)
    """User whose jobs it is for; `*` for those of all users."""
    statuses: Mapped[list[Any]]
    label: Mapped[str | None] = mapped_column(PlainText(127))
    """Label that a job must have, as `key:value`; None for all jobs."""
    service_url: Mapped[str] = mapped_column(_TEXT)
    """URL of the service, for links to jobs."""
    encrypted: Mapped[str] = mapped_column(_TEXT)
    """Secret of the signatures, as `settings/secret_box.py` encrypts it."""
    created_at: Mapped[float]
    disabled_at: Mapped[float | None]
    disabled_reason: Mapped[str | None] = mapped_column(_TEXT)


class DeliveryRow(Base):
    """One message to a webhook."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index(None, "webhook_id", "state", "id"),
        Index(None, "job_id"),
        Index(None, "next_attempt_at", "webhook_id"),
        Index(None, "state", "done_at"),
    )

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(_ID, ForeignKey("webhooks.id", ondelete="CASCADE"))
    job_id: Mapped[str | None] = mapped_column(_ID, ForeignKey("jobs.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(PlainText(32))
    status: Mapped[str | None] = mapped_column(PlainText(16))
    """Status that the message is about; None for a test."""
    body: Mapped[str] = mapped_column(_TEXT)
    state: Mapped[str] = mapped_column(PlainText(16))
    version: Mapped[int] = mapped_column(default=0)
    """Raised by every attempt; an outcome that belongs to an older one changes nothing."""
    attempts: Mapped[int] = mapped_column(default=0)
    response_status: Mapped[int | None]
    message: Mapped[str] = mapped_column(_TEXT, default="")
    created_at: Mapped[float]
    next_attempt_at: Mapped[float | None]
    """When it is due; None unless it is pending."""
    done_at: Mapped[float | None]


class LoginLinkRow(Base):
    """A one-time login link; removed when it is used."""

    __tablename__ = "login_links"

    digest: Mapped[str] = mapped_column(PlainText(64), primary_key=True)
    """SHA-256 of the link's secret."""
    token_id: Mapped[str] = mapped_column(_TOKEN_ID, default="")
    """Token that created the link, and that the session will have; empty for the admin token."""
    expires_at: Mapped[float]


class EndedSessionRow(Base):
    """A browser session that was ended by a logout; kept for 30 days after its cookie expires."""

    __tablename__ = "ended_sessions"

    digest: Mapped[str] = mapped_column(PlainText(64), primary_key=True)
    """SHA-256 of the cookie."""
    expires_at: Mapped[float]


class ClusterRow(Base):
    """The cluster as the scheduler last saw it; one row."""

    __tablename__ = "cluster"

    id: Mapped[int] = mapped_column(primary_key=True)
    reachable: Mapped[bool]
    message: Mapped[str] = mapped_column(_TEXT, default="")
    seen_at: Mapped[float | None]
    dashboard_url: Mapped[str | None] = mapped_column(_TEXT)
    """Address of Ray's dashboard as the scheduler reaches it; None if none answers."""
    nodes: Mapped[list[Any]]
    autoscaler: Mapped[dict[str, Any] | None]
    """Request to Ray's autoscaler (`AutoscalerRecord` in `domain/capacity/autoscaling.py`)."""
