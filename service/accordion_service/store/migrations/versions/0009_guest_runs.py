"""whether a run was submitted as a job or registered itself as a guest, and what runs it in Ray"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kind", sa.String(8), nullable=False, server_default="job"))
    op.add_column("jobs", sa.Column("ray_run", sa.JSON(), nullable=True))


def downgrade() -> None:
    # An older version would take a guest run for a job of its own whose supervisor is gone, and
    # start it.
    op.execute(
        "UPDATE jobs SET status = 'FAILED', reason = 'LOST', world_size = 0, version = version + 1,"
        " ended_at = COALESCE(started_at, created_at), message = 'a guest run, which this version"
        " of the service does not follow' WHERE kind = 'guest' AND status NOT IN ('SUCCEEDED',"
        " 'FAILED', 'CANCELLED')"
    )
    op.drop_column("jobs", "ray_run")
    op.drop_column("jobs", "kind")
