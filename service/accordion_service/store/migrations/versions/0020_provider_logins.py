"""logins through an OpenID Connect provider, and logins of command lines through a browser"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("issuer", sa.Text(), nullable=True))
    op.add_column("users", sa.Column("subject", sa.String(length=255), nullable=True))
    op.create_index(op.f("ix_users_issuer_subject"), "users", ["issuer", "subject"], unique=True)
    op.create_table(
        "login_codes",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("challenge", sa.String(length=64), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("token_id", sa.String(length=16), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_login_codes")),
    )


def downgrade() -> None:
    op.drop_table("login_codes")
    op.drop_index("ix_users_issuer_subject", "users")
    op.drop_column("users", "subject")
    op.drop_column("users", "issuer")
