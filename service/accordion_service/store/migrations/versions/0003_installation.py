"""an id of the installation, made once, for the names of its actors in the cluster"""

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = op.create_table(
        "installation",
        sa.Column("key", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.bulk_insert(table, [{"key": 1, "id": secrets.token_hex(6), "created_at": time.time()}])


def downgrade() -> None:
    op.drop_table("installation")
