"""counts of the scheduler, and an index that counts jobs by kind and status"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("counts", sa.JSON(), nullable=False, server_default="{}"))
    op.create_index(op.f("ix_jobs_kind_status"), "jobs", ["kind", "status"])


def downgrade() -> None:
    op.drop_index("ix_jobs_kind_status", "jobs")
    op.drop_column("leases", "counts")
