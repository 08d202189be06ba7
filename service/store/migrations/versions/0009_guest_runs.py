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
    op.drop_column("jobs", "ray_run")
    op.drop_column("jobs", "kind")
