"""Initial scans, which go on where they were after a restart."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "scans",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("at_ns", sa.BigInteger, nullable=False),
        sa.Column("session", sa.String(512), nullable=False),
        sa.Column("transaction_id", sa.String(512), nullable=False),
        sa.Column("tables", sa.Text, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", name="pk_scans"),
    )
    op.create_table(
        "scan_parts",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("table_name", sa.String(512), nullable=False),
        sa.Column("partition_token", sa.Text, nullable=False),
        sa.Column("chunk", sa.BigInteger, nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "number", name="pk_scan_parts"),
    )
