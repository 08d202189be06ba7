"""users, their tokens, owners of jobs and plans, clones, and the audit log"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_USER = sa.String(length=63)
_TOKEN_ID = sa.String(length=16)
_NAME = sa.String(length=128).with_variant(sa.Text(), "postgresql")
_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    users = op.create_table(
        "users",
        sa.Column("name", _USER, nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    # The user of the admin token in the settings.
    admin = {"name": "admin", "role": "admin", "created_at": time.time()}
    op.bulk_insert(users, [admin])
    op.create_table(
        "tokens",
        sa.Column("id", _TOKEN_ID, nullable=False),
        sa.Column("user_name", _USER, nullable=False),
        sa.Column("label", _NAME, nullable=False),
        sa.Column("made_by", _TOKEN_ID, nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_tokens_user_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index("ix_tokens_user_name", "tokens", ["user_name"])
    op.create_table(
        "audit",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("user_name", _USER, nullable=False),
        sa.Column("token_id", _TOKEN_ID, nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", _NAME, nullable=False),
        sa.Column("before", _JSON, nullable=True),
        sa.Column("after", _JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_subject_id", "audit", ["subject", "id"])
    op.create_index("ix_audit_user_name_id", "audit", ["user_name", "id"])
    op.add_column("jobs", sa.Column("owner", _USER, nullable=True))
    op.create_index("ix_jobs_owner_created_at_id", "jobs", ["owner", "created_at", "id"])
    op.add_column("jobs", sa.Column("cloned_from", sa.String(length=36), nullable=True))
    op.add_column("plans", sa.Column("owner", _USER, nullable=True))
    op.add_column("overrides", sa.Column("requested_by", _USER, nullable=True))
    op.add_column(
        "login_links", sa.Column("token_id", _TOKEN_ID, nullable=False, server_default="")
    )


def downgrade() -> None:
    op.drop_column("login_links", "token_id")
    op.drop_column("overrides", "requested_by")
    op.drop_column("plans", "owner")
    op.drop_index("ix_jobs_owner_created_at_id", "jobs")
    op.drop_column("jobs", "cloned_from")
    op.drop_column("jobs", "owner")
    op.drop_table("audit")
    op.drop_table("tokens")
    op.drop_table("users")
