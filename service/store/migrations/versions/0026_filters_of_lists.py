"""columns and indexes for the filters of lists of jobs, and for removed checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0024"
branch_labels = None
depends_on = None

_SPEC_VALUES = {
    "task": ("task", "name"),
    "method": ("compression", "method"),
    "policy": ("policy", "name"),
}
"""Columns with a value of the spec, and its place there."""
_ORDER = ["archived", "created_at", "id"]
_OLD_BY_AGE = [*_ORDER, "kind", "owner", "name"]
_OLD_FILTERED = ("status", "name", "owner")
_OLD_ENDED = ["ended_at", "archived"]
_FILTERED = (
    *("cloned_from", "name", "owner", "status", "reason", "desired", "priority", "workers"),
    *("task", "method", "policy", "started_at", "ended_at"),
)
_REMOVAL = ["checkpoints_removed_at", "ended_at"]
_ALL_FILTERS = ["owner", "kind", *(column for column in _FILTERED if column != "owner")]


def upgrade() -> None:
    for column in _SPEC_VALUES:
        op.add_column("jobs", sa.Column(column, sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("checkpoints_removed_at", sa.Double(), nullable=True))
    _fill_columns()
    _drop_indexes([_OLD_BY_AGE, *([column, *_ORDER] for column in _OLD_FILTERED), _OLD_ENDED])
    _set_collation("C")
    op.create_index("ix_jobs_list", "jobs", [*_ORDER, *_ALL_FILTERS])
    _create_indexes([*(_columns_of(column) for column in _FILTERED), _REMOVAL])


def downgrade() -> None:
    _drop_indexes([*(_columns_of(column) for column in _FILTERED), _REMOVAL])
    op.drop_index("ix_jobs_list", "jobs")
    _set_collation("default")
    _create_indexes([_OLD_BY_AGE, *([column, *_ORDER] for column in _OLD_FILTERED), _OLD_ENDED])
    for column in (*_SPEC_VALUES, "checkpoints_removed_at"):
        op.drop_column("jobs", column)


def _columns_of(column: str) -> list[str]:
    return [column, *_ORDER, *(checked for checked in ("owner", "kind") if checked != column)]


def _fill_columns() -> None:
    """Copy the values from the specs, of which an old one may be no JSON in SQLite."""
    for column, (section, name) in _SPEC_VALUES.items():
        if op.get_context().dialect.name == "postgresql":
            path = f"'{{{section},{name}}}'"
            value = f"CASE WHEN json_typeof(spec #> {path}) = 'string' THEN spec #>> {path} END"
        else:
            path = f"'$.{section}.{name}'"
            value = (
                "CASE WHEN NOT json_valid(spec) THEN NULL"
                f" WHEN json_type(spec, {path}) = 'text' THEN json_extract(spec, {path}) END"
            )
        op.execute(f"UPDATE jobs SET {column} = {value}")  # noqa: S608


def _set_collation(collation: str) -> None:
    """Compare names by their characters, so that an index serves the start of a name; SQLite always
    does.
    """
    if op.get_context().dialect.name == "postgresql":
        op.execute(f'ALTER TABLE jobs ALTER COLUMN name TYPE text COLLATE "{collation}"')


def _create_indexes(indexes: list[list[str]]) -> None:
    for columns in indexes:
        op.create_index("_".join(["ix_jobs", *columns]), "jobs", columns)


def _drop_indexes(indexes: list[list[str]]) -> None:
    for columns in indexes:
        op.drop_index("_".join(["ix_jobs", *columns]), "jobs")
