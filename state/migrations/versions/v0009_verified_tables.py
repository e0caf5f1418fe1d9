"""Mirrors that are compared with their tables again and again."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "verified_tables",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("table_name", sa.String(512), nullable=False),
        sa.Column("after_key", sa.Text),
        sa.Column("round_at_ns", sa.BigInteger),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("different", sa.BigInteger, nullable=False),
        sa.Column("different_before", sa.BigInteger, nullable=False),
        sa.Column("equal_at_ns", sa.BigInteger),
        sa.PrimaryKeyConstraint("pipeline", "table_name", name="pk_verified_tables"),
    )
