"""indexes that serve lists of jobs by status and other filters without the rows"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_LISTED = [
    *("archived", "created_at", "id", "kind", "owner", "name", "reason", "desired", "priority"),
    *("workers", "task", "method", "policy", "cloned_from", "started_at", "ended_at"),
]
_NEW = {
    "ix_jobs_status_list": ["status", *_LISTED],
    "ix_jobs_name_list": ["name", "archived", "created_at", "id", "status"],
    "ix_jobs_owner_list": ["owner", "archived", "created_at", "id", "status"],
}
_OLD = {
    f"ix_jobs_{column}_archived_created_at_id": [column, "archived", "created_at", "id"]
    for column in ("status", "name", "owner")
}


def upgrade() -> None:
    _replace_indexes(_OLD, _NEW)


def downgrade() -> None:
    _replace_indexes(_NEW, _OLD)


def _replace_indexes(old: dict[str, list[str]], new: dict[str, list[str]]) -> None:
    for name in old:
        op.drop_index(name, "jobs")
    for name, columns in new.items():
        op.create_index(name, "jobs", columns)
