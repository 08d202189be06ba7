"""where Ray's dashboard is"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster", sa.Column("dashboard_url", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("cluster", "dashboard_url")
