"""sizes of output and counts of removed history, so that both can be limited"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("jobs", "events_removed", sa.Integer()),
    ("jobs", "log_bytes", sa.BigInteger()),
    ("jobs", "log_bytes_removed", sa.BigInteger()),
    ("log_chunks", "size_bytes", sa.BigInteger()),
)


def upgrade() -> None:
    for table, name, kind in _COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=False, server_default="0"))
    op.execute("UPDATE log_chunks SET size_bytes = length(CAST(lines AS TEXT))")
    op.execute(
        "UPDATE jobs SET log_bytes = (SELECT coalesce(sum(size_bytes), 0) FROM log_chunks"
        " WHERE log_chunks.job_id = jobs.id)"
    )


def downgrade() -> None:
    for table, name, _ in reversed(_COLUMNS):
        op.drop_column(table, name)
