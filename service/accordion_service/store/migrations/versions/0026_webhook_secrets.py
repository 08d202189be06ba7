"""previous secrets of webhooks"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_secrets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("webhook_id", sa.String(length=36), nullable=False),
        sa.Column("encrypted", sa.Text(), nullable=False),
        sa.Column("valid_until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name=op.f("fk_webhook_secrets_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_secrets")),
    )
    op.create_index(op.f("ix_webhook_secrets_webhook_id"), "webhook_secrets", ["webhook_id"])


def downgrade() -> None:
    op.drop_index("ix_webhook_secrets_webhook_id", "webhook_secrets")
    op.drop_table("webhook_secrets")
