"""What each partition carried, for the balance of tasks."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "plan_carried",
        sa.Column("plan_id", sa.String(32), nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("token", sa.String(1024), nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "task", "token", name="pk_plan_carried"),
    )
