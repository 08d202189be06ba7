"""indexes for the lists of jobs, so that those that ended cost nothing"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_jobs_status", "jobs")
    op.create_index("ix_jobs_status_created_at_id", "jobs", ["status", "created_at", "id"])
    op.create_index("ix_jobs_name_created_at_id", "jobs", ["name", "created_at", "id"])
    op.create_index("ix_jobs_ended_at", "jobs", ["ended_at"])


def downgrade() -> None:
    op.drop_index("ix_jobs_ended_at", "jobs")
    op.drop_index("ix_jobs_name_created_at_id", "jobs")
    op.drop_index("ix_jobs_status_created_at_id", "jobs")
    op.create_index("ix_jobs_status", "jobs", ["status"])
