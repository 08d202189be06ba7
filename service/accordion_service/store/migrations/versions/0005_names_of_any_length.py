"""names of any length on PostgreSQL"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("jobs", "name"),
    ("checkpoints", "name"),
    ("leases", "owner"),
    ("idempotency_keys", "scope"),
)


def upgrade() -> None:
    # SQLite takes a text of any length whatever the column says, and would copy the whole table to
    # say it otherwise.
    if op.get_context().dialect.name == "postgresql":
        for table, column in _COLUMNS:
            op.alter_column(
                table,
                column,
                type_=sa.Text(),
                existing_type=sa.String(128),
                existing_nullable=False,
            )


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for table, column in _COLUMNS:
            cut = f"left({column}, 128)"
            op.alter_column(
                table,
                column,
                type_=sa.String(128),
                existing_type=sa.Text(),
                existing_nullable=False,
                postgresql_using=cut,
            )
