"""the tables of the first release"""

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(length=128).with_variant(sa.Text(), "postgresql")
_BIG_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON(none_as_null=True)
_LISTED = [
    *("archived", "created_at", "id", "kind", "owner", "name", "reason", "desired", "priority"),
    *("workers", "task", "method", "policy", "cloned_from", "started_at", "ended_at"),
]
"""Columns by which lists of jobs are ordered and filtered, except the status."""
_KEEPS_ALL = sa.text("ended_at IS NOT NULL AND checkpoints_removed_at IS NULL")
_KEEPS_HISTORY = sa.text("ended_at IS NOT NULL AND history_removed_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _BIG_NUMBER, autoincrement=True, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("token_id", sa.String(length=16), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", _NAME, nullable=False),
        sa.Column("before", _JSON, nullable=True),
        sa.Column("after", _JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_action_time_id"), "audit", ["action", "time", "id"])
    op.create_index(op.f("ix_audit_request_id_time_id"), "audit", ["request_id", "time", "id"])
    op.create_index(op.f("ix_audit_subject_time_id"), "audit", ["subject", "time", "id"])
    op.create_index(op.f("ix_audit_time_id"), "audit", ["time", "id"])
    op.create_index(op.f("ix_audit_token_id_time_id"), "audit", ["token_id", "time", "id"])
    op.create_index(op.f("ix_audit_user_name_time_id"), "audit", ["user_name", "time", "id"])
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("reachable", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=True),
        sa.Column("dashboard_url", sa.Text(), nullable=True),
        sa.Column("nodes", _JSON, nullable=False),
        sa.Column("autoscaler", _JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cluster")),
    )
    op.create_table(
        "deleted_jobs",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("storage_url", sa.Text(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_deleted_jobs")),
    )
    op.create_table(
        "ended_sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_ended_sessions")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", _NAME, nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("answer_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotency_keys")),
    )
    installation = op.create_table(
        "installation",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_installation")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("cloned_from", sa.String(length=36), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("etag_version", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("desired", sa.String(length=16), nullable=False),
        sa.Column("desired_by", sa.String(length=63), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("min_workers", sa.Integer(), nullable=False),
        sa.Column("max_workers", sa.Integer(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("retried_attempt", sa.Integer(), nullable=True),
        sa.Column("lost_attempts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("tally", _JSON, nullable=False),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("start_at", sa.Double(), nullable=True),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("trained_s", sa.Double(), nullable=False),
        sa.Column("times_out_at", sa.Double(), nullable=True),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("events_removed", sa.Integer(), nullable=False),
        sa.Column("log_number", sa.Integer(), nullable=False),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.Column("log_bytes_removed", sa.BigInteger(), nullable=False),
        sa.Column("override_number", sa.Integer(), nullable=False),
        sa.Column("orders_version", sa.Integer(), nullable=False),
        sa.Column("orders_confirmed", sa.Integer(), nullable=False),
        sa.Column("cursor_attempt", sa.Integer(), nullable=False),
        sa.Column("cursor_generation", sa.BigInteger(), nullable=False),
        sa.Column("cursor_seq", sa.Integer(), nullable=False),
        sa.Column("progress", _JSON, nullable=True),
        sa.Column("layers", _JSON, nullable=True),
        sa.Column("storage", _JSON, nullable=True),
        sa.Column("ray_run", _JSON, nullable=True),
        sa.Column("packages", _JSON, nullable=True),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("checkpoints_removed_at", sa.Double(), nullable=True),
        sa.Column("history_removed_at", sa.Double(), nullable=True),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    # Which of several indexes SQLite takes, if they seem to cost the same, depends on their order.
    # With this one it reads no old jobs (tests/unit/service/test_queries.py).
    op.create_index(op.f("ix_jobs_kind_status"), "jobs", ["kind", "status"])
    op.create_index(op.f("ix_jobs_ended_at_archived"), "jobs", ["ended_at", "archived"])
    op.create_index("ix_jobs_list", "jobs", _LISTED)
    op.create_index(
        "ix_jobs_checkpoints",
        "jobs",
        ["ended_at"],
        sqlite_where=_KEEPS_ALL,
        postgresql_where=_KEEPS_ALL,
    )
    op.create_index("ix_jobs_status_list", "jobs", ["status", *_LISTED])
    op.create_index("ix_jobs_name_list", "jobs", ["name", "archived", "created_at", "id", "status"])
    op.create_index(
        "ix_jobs_owner_list", "jobs", ["owner", "archived", "created_at", "id", "status"]
    )
    op.create_index(
        "ix_jobs_history",
        "jobs",
        ["ended_at"],
        sqlite_where=_KEEPS_HISTORY,
        postgresql_where=_KEEPS_HISTORY,
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("owner", _NAME, nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("counts", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "login_codes",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("challenge", sa.String(length=64), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("token_id", sa.String(length=16), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_login_codes")),
    )
    op.create_table(
        "login_links",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.String(length=16), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_login_links")),
    )
    op.create_table(
        "node_failures",
        sa.Column("id", _BIG_NUMBER, autoincrement=True, nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_failures")),
    )
    op.create_index(op.f("ix_node_failures_time"), "node_failures", ["time"])
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("cordoned_at", sa.Double(), nullable=True),
        sa.Column("cordoned_by", sa.String(length=63), nullable=False),
        sa.Column("cordon_reason", sa.Text(), nullable=False),
        sa.Column("avoided_since", sa.Double(), nullable=True),
        sa.Column("avoided_until", sa.Double(), nullable=False),
        sa.Column("avoided_because", sa.Text(), nullable=False),
        sa.Column("num_avoided", sa.Integer(), nullable=False),
        sa.Column("restored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("answer", _JSON, nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_status_created_at_id"), "plans", ["status", "created_at", "id"])
    op.create_table(
        "quotas",
        sa.Column("account", sa.String(length=192), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=True),
        sa.Column("workers", sa.Integer(), nullable=True),
        sa.Column("gpus", sa.Double(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_quotas")),
    )
    users = op.create_table(
        "users",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("subject", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_index(op.f("ix_users_issuer_subject"), "users", ["issuer", "subject"], unique=True)
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("tally", _JSON, nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_attempts")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("blocked_s", sa.Double(), nullable=False),
        sa.Column("objective", sa.Double(), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "decisions",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("decision", _JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_decisions_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", "step", name=op.f("pk_decisions")),
    )
    op.create_table(
        "epochs",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("record", _JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_epochs_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_epochs")),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "key", name=op.f("pk_job_labels")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_job_labels_list",
        "job_labels",
        ["key", "value", "archived", "created_at", "job_id", "kind", "owner", "name"],
    )
    op.create_table(
        "log_chunks",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("lines", _JSON, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_log_chunks_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_log_chunks")),
    )
    op.create_table(
        "loggers",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("next_turn_at", sa.Double(), nullable=True),
        sa.Column("seen_generation", sa.BigInteger(), nullable=False),
        sa.Column("seen_seq", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_loggers_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_loggers")),
    )
    op.create_index(op.f("ix_loggers_next_turn_at"), "loggers", ["next_turn_at"])
    op.create_table(
        "overrides",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("target", sa.String(length=16), nullable=False),
        sa.Column("level", _JSON, nullable=False),
        sa.Column("layers", _JSON, nullable=False),
        sa.Column("apply_at", _JSON, nullable=False),
        sa.Column("until", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.String(length=63), nullable=True),
        sa.Column("orders_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_overrides_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_overrides")),
    )
    op.create_index(
        op.f("ix_overrides_job_id_number"), "overrides", ["job_id", "number"], unique=True
    )
    op.create_table(
        "secrets",
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("encrypted", sa.Text(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_secrets_user_name")),
        sa.PrimaryKeyConstraint("user_name", "name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("label", _NAME, nullable=False),
        sa.Column("made_by", sa.String(length=16), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_tokens_user_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index(op.f("ix_tokens_user_name"), "tokens", ["user_name"])
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("jobs_of", sa.String(length=63), nullable=False),
        sa.Column("statuses", _JSON, nullable=False),
        sa.Column("label", sa.String(length=127), nullable=True),
        sa.Column("service_url", sa.Text(), nullable=False),
        sa.Column("encrypted", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_webhooks_user_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_jobs_of"), "webhooks", ["jobs_of"])
    op.create_index(
        op.f("ix_webhooks_user_name_name"), "webhooks", ["user_name", "name"], unique=True
    )
    op.create_table(
        "acks",
        sa.Column("override_id", sa.String(length=36), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["override_id"], ["overrides.id"], name=op.f("fk_acks_override_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("override_id", "rank", name=op.f("pk_acks")),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("webhook_id", sa.String(length=36), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("next_attempt_at", sa.Double(), nullable=True),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_webhook_deliveries_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name=op.f("fk_webhook_deliveries_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index(op.f("ix_webhook_deliveries_job_id"), "webhook_deliveries", ["job_id"])
    op.create_index(
        op.f("ix_webhook_deliveries_next_attempt_at_webhook_id"),
        "webhook_deliveries",
        ["next_attempt_at", "webhook_id"],
    )
    op.create_index(
        op.f("ix_webhook_deliveries_state_done_at"), "webhook_deliveries", ["state", "done_at"]
    )
    op.create_index(
        op.f("ix_webhook_deliveries_webhook_id_state_id"),
        "webhook_deliveries",
        ["webhook_id", "state", "id"],
    )
    op.create_table(
        "webhook_secrets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("webhook_id", sa.String(length=36), nullable=False),
        sa.Column("encrypted", sa.Text(), nullable=False),
        sa.Column("valid_until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name=op.f("fk_webhook_secrets_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_secrets")),
    )
    op.create_index(op.f("ix_webhook_secrets_webhook_id"), "webhook_secrets", ["webhook_id"])

    op.bulk_insert(
        installation, [{"key": 1, "id": secrets.token_hex(6), "created_at": time.time()}]
    )
    # The user of the admin token in the settings.
    op.bulk_insert(users, [{"name": "admin", "role": "admin", "created_at": time.time()}])


def downgrade() -> None:
    for table in (
        "webhook_secrets",
        "webhook_deliveries",
        "acks",
        "webhooks",
        "tokens",
        "secrets",
        "overrides",
        "loggers",
        "log_chunks",
        "job_labels",
        "events",
        "epochs",
        "decisions",
        "checkpoints",
        "attempts",
        "users",
        "quotas",
        "plans",
        "nodes",
        "node_failures",
        "login_links",
        "login_codes",
        "leases",
        "jobs",
        "installation",
        "idempotency_keys",
        "ended_sessions",
        "deleted_jobs",
        "cluster",
        "audit",
    ):
        op.drop_table(table)
