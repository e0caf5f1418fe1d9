"""Cuts of which an attempt has failed the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "failed_audits",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "end_ns", name="pk_failed_audits"),
    )
