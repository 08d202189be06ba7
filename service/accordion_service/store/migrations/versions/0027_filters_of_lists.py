"""columns and the index for the filters of lists of jobs; removed checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_SPEC_VALUES = {
    "task": ("task", "name"),
    "method": ("compression", "method"),
    "policy": ("policy", "name"),
}
"""Columns with a value of the spec, and its place there."""
_KEEPS_ALL = sa.text("ended_at IS NOT NULL AND checkpoints_removed_at IS NULL")
_OLD_LIST = "ix_jobs_archived_created_at_id_kind_owner_name"
_OLD_COLUMNS = ["archived", "created_at", "id", "kind", "owner", "name"]
_COLUMNS = [
    *_OLD_COLUMNS,
    *("reason", "desired", "priority", "workers", *_SPEC_VALUES, "cloned_from"),
    *("started_at", "ended_at"),
]


def upgrade() -> None:
    for column in _SPEC_VALUES:
        op.add_column("jobs", sa.Column(column, sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("checkpoints_removed_at", sa.Double(), nullable=True))
    op.add_column("checkpoints", sa.Column("removed_at", sa.Double(), nullable=True))
    _fill_columns()
    op.drop_index(_OLD_LIST, "jobs")
    op.create_index("ix_jobs_list", "jobs", _COLUMNS)
    op.create_index(
        "ix_jobs_checkpoints",
        "jobs",
        ["ended_at"],
        sqlite_where=_KEEPS_ALL,
        postgresql_where=_KEEPS_ALL,
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_checkpoints", "jobs")
    op.drop_index("ix_jobs_list", "jobs")
    op.create_index(_OLD_LIST, "jobs", _OLD_COLUMNS)
    op.drop_column("checkpoints", "removed_at")
    for column in (*_SPEC_VALUES, "checkpoints_removed_at"):
        op.drop_column("jobs", column)


def _fill_columns() -> None:
    """Copy the values from the specs, an old one of which may not be valid JSON in SQLite."""
    is_postgres = op.get_context().dialect.name == "postgresql"
    values = []
    for column, (section, name) in _SPEC_VALUES.items():
        if is_postgres:
            path = f"'{{{section},{name}}}'"
            value = f"CASE WHEN json_typeof(spec #> {path}) = 'string' THEN spec #>> {path} END"
        else:
            path = f"'$.{section}.{name}'"
            value = (
                "CASE WHEN NOT json_valid(spec) THEN NULL"
                f" WHEN json_type(spec, {path}) = 'text' THEN json_extract(spec, {path}) END"
            )
        values.append(f"{column} = {value}")
    op.execute(f"UPDATE jobs SET {', '.join(values)}")  # noqa: S608
