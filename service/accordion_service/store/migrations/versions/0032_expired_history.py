"""removed events and output of jobs that ended"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_KEEPS_HISTORY = sa.text("ended_at IS NOT NULL AND history_removed_at IS NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("history_removed_at", sa.Double(), nullable=True))
    op.create_index(
        "ix_jobs_history",
        "jobs",
        ["ended_at"],
        sqlite_where=_KEEPS_HISTORY,
        postgresql_where=_KEEPS_HISTORY,
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_history", "jobs")
    op.drop_column("jobs", "history_removed_at")
