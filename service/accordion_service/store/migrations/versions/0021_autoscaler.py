"""what was requested from Ray's autoscaler"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster", sa.Column("autoscaler", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("cluster", "autoscaler")
