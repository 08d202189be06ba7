"""labels of jobs in a table of their own, with an index for the lists of a label"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_JOBS_AT_ONCE = 2_000
_INDEX = ["key", "value", "archived", "created_at", "job_id", "kind", "owner", "name"]


def upgrade() -> None:
    table = op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "key", name=op.f("pk_job_labels")),
        sqlite_with_rowid=False,
    )
    _fill(op.get_bind(), table)
    op.create_index(op.f("ix_job_labels_list"), "job_labels", _INDEX)


def downgrade() -> None:
    op.drop_table("job_labels")


def _fill(connection: sa.Connection, table: sa.Table) -> None:
    jobs = sa.table(
        "jobs",
        *(sa.column(name) for name in ("id", "labels", "created_at", "kind", "owner", "name")),
        sa.column("archived", sa.Boolean()),
    )
    copied = jobs.c.archived, jobs.c.created_at, jobs.c.kind, jobs.c.owner, jobs.c.name
    last = ""
    while True:
        # As text: a document that cannot be read must not stop the service from starting.
        query = sa.select(jobs.c.id, sa.cast(jobs.c.labels, sa.Text()).label("document"), *copied)
        query = query.where(jobs.c.id > last).order_by(jobs.c.id).limit(_JOBS_AT_ONCE)
        found = connection.execute(query).mappings().all()
        rows = [
            {"job_id": job["id"], "key": key, "value": value}
            | {column.name: job[column.name] for column in copied}
            for job in found
            for key, value in _parse(job["document"]).items()
        ]
        if rows:
            connection.execute(table.insert(), rows)
        if len(found) < _JOBS_AT_ONCE:
            return
        last = found[-1]["id"]


def _parse(document: str) -> dict[str, str]:
    """Parse the labels of a job; none if one of them is not a string."""
    try:
        labels = json.loads(document)
    except ValueError:
        return {}
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        return {}
    return {_clean(key): _clean(value) for key, value in labels.items()}


def _clean(text: str) -> str:
    """Replace what databases reject: NUL and lone surrogates."""
    return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)
