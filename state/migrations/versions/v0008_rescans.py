"""Tables that are read again while the changes go on, and the tables that a stream watches."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "rescans",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("table_name", sa.String(512), nullable=False),
        sa.Column("requested_at_ns", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("after_key", sa.Text),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("corrected", sa.BigInteger, nullable=False),
        sa.Column("chunks", sa.BigInteger, nullable=False),
        sa.Column("at_ns", sa.BigInteger),
        sa.Column("pending_at_ns", sa.BigInteger),
        sa.Column("pending_key", sa.Text),
        sa.PrimaryKeyConstraint("pipeline", "table_name", name="pk_rescans"),
    )
    op.create_table(
        "seen_tables",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("table_name", sa.String(512), nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "table_name", name="pk_seen_tables"),
    )
