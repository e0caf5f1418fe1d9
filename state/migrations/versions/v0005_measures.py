"""What tasks measure of their own work."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "plan_measures",
        sa.Column("plan_id", sa.String(32), nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("measures", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "task", name="pk_plan_measures"),
    )
