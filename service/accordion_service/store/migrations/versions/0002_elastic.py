"""numbers of workers that people allow, and what changes of group cost"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Columns are added in place: SQLite would copy the table else, and dropping the old one empties
    # those that name it.
    op.add_column(
        "jobs", sa.Column("min_workers", sa.Integer(), nullable=False, server_default="1")
    )
    op.add_column(
        "jobs", sa.Column("max_workers", sa.Integer(), nullable=False, server_default="1")
    )
    op.add_column("jobs", sa.Column("tally", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("attempts", sa.Column("tally", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column(
        "checkpoints", sa.Column("blocked_s", sa.Double(), nullable=False, server_default="0")
    )
    names = ("id", "min_workers", "max_workers")
    jobs = sa.table("jobs", sa.column("spec", sa.JSON), *(sa.column(name) for name in names))
    rows = op.get_bind().execute(sa.select(jobs.c.id, jobs.c.spec)).all()
    for job_id, spec in rows:
        asked = {"min_workers": spec["workers"]["min"], "max_workers": spec["workers"]["max"]}
        op.execute(jobs.update().where(jobs.c.id == job_id).values(asked))


def downgrade() -> None:
    op.drop_column("checkpoints", "blocked_s")
    op.drop_column("attempts", "tally")
    op.drop_column("jobs", "tally")
    op.drop_column("jobs", "max_workers")
    op.drop_column("jobs", "min_workers")
