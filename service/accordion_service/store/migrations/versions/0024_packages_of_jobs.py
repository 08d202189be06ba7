"""packages that the workers of a job install"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("packages", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "packages")
