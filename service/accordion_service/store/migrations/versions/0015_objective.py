"""value of the objective's metric at checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("objective", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "objective")
