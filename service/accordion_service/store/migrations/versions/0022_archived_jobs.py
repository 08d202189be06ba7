"""archived jobs, which lists leave out"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_LISTED = ("status", "name", "owner")
"""Columns by which lists are filtered and that have an index."""
_BY_AGE = ["archived", "created_at", "id", "kind", "owner", "name"]
"""Index of all other lists, with the columns of their filters."""


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("archived", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    _replace_index(["created_at", "id"], _BY_AGE)
    for column in _LISTED:
        _replace_index([column, "created_at", "id"], [column, "archived", "created_at", "id"])
    _replace_index(["ended_at"], ["ended_at", "archived"])


def downgrade() -> None:
    _replace_index(["ended_at", "archived"], ["ended_at"])
    for column in _LISTED:
        _replace_index([column, "archived", "created_at", "id"], [column, "created_at", "id"])
    _replace_index(_BY_AGE, ["created_at", "id"])
    op.drop_column("jobs", "archived")


def _replace_index(old: list[str], new: list[str]) -> None:
    op.drop_index("_".join(["ix_jobs", *old]), "jobs")
    op.create_index("_".join(["ix_jobs", *new]), "jobs", new)
