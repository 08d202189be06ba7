"""users who last set the desired state of jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("desired_by", sa.String(length=63)))


def downgrade() -> None:
    op.drop_column("jobs", "desired_by")
