"""where the workers of a job keep its checkpoints, and whether all of them see that place"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("storage", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "storage")
