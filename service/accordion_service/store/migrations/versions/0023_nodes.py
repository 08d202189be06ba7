"""failures that may be a node's fault, and nodes that take no workers"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("cordoned_at", sa.Double(), nullable=True),
        sa.Column("cordoned_by", sa.String(length=63), nullable=False),
        sa.Column("cordon_reason", sa.Text(), nullable=False),
        sa.Column("avoided_since", sa.Double(), nullable=True),
        sa.Column("avoided_until", sa.Double(), nullable=False),
        sa.Column("avoided_because", sa.Text(), nullable=False),
        sa.Column("num_avoided", sa.Integer(), nullable=False),
        sa.Column("restored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_table(
        "node_failures",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("owner", sa.String(length=63), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_failures")),
    )
    op.create_index(op.f("ix_node_failures_time"), "node_failures", ["time"])


def downgrade() -> None:
    op.drop_index("ix_node_failures_time", "node_failures")
    op.drop_table("node_failures")
    op.drop_table("nodes")
