"""quotas of users and labels; later starts, time limits, retries and deletion of jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("account", sa.String(length=192), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=True),
        sa.Column("workers", sa.Integer(), nullable=True),
        sa.Column("gpus", sa.Double(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_quotas")),
    )
    op.create_table(
        "deleted_jobs",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("storage_url", sa.Text(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_deleted_jobs")),
    )
    op.add_column("jobs", sa.Column("start_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("trained_s", sa.Double(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("retried_attempt", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("queued_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "queued_at")
    op.drop_column("jobs", "retried_attempt")
    op.drop_column("jobs", "trained_s")
    op.drop_column("jobs", "start_at")
    op.drop_table("deleted_jobs")
    op.drop_table("quotas")
