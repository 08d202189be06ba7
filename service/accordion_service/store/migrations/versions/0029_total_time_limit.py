"""times at which jobs reach their total time limit"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("times_out_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "times_out_at")
