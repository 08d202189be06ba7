"""indexes for the filters of the audit log"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_OLD = ("subject", "user_name")
_FILTERS = (*_OLD, "action", "token_id", "request_id")


def upgrade() -> None:
    for column in _OLD:
        op.drop_index(f"ix_audit_{column}_id", "audit")
    for column in _FILTERS:
        op.create_index(f"ix_audit_{column}_time_id", "audit", [column, "time", "id"])
    op.create_index("ix_audit_time_id", "audit", ["time", "id"])


def downgrade() -> None:
    op.drop_index("ix_audit_time_id", "audit")
    for column in _FILTERS:
        op.drop_index(f"ix_audit_{column}_time_id", "audit")
    for column in _OLD:
        op.create_index(f"ix_audit_{column}_id", "audit", [column, "id"])
