"""webhooks of users, and their deliveries"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_name", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("jobs_of", sa.String(length=63), nullable=False),
        sa.Column("statuses", sa.JSON(), nullable=False),
        sa.Column("label", sa.String(length=127), nullable=True),
        sa.Column("service_url", sa.Text(), nullable=False),
        sa.Column("encrypted", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_webhooks_user_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(
        op.f("ix_webhooks_user_name_name"), "webhooks", ["user_name", "name"], unique=True
    )
    op.create_index(op.f("ix_webhooks_jobs_of"), "webhooks", ["jobs_of"])
    _create_deliveries()


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")


def _create_deliveries() -> None:
    table = "webhook_deliveries"
    op.create_table(
        table,
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
            ["webhook_id"],
            ["webhooks.id"],
            name=op.f("fk_webhook_deliveries_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_webhook_deliveries_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    for columns in (
        ["webhook_id", "state", "id"],
        ["job_id"],
        ["next_attempt_at", "webhook_id"],
        ["state", "done_at"],
    ):
        op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, columns)
