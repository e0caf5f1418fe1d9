"""Owners, states, stalls, the audit's tallies, accepted gaps."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NAME = sa.String(64)
_TOKEN = sa.String(1024)
_PLAN = sa.String(32)


def _pk(name: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{name}")


def upgrade() -> None:
    """Add columns and tables."""
    op.add_column("pipelines", sa.Column("owner", sa.String(256)))
    op.add_column("pipelines", sa.Column("generation", sa.BigInteger))
    op.add_column("pipelines", sa.Column("beat", sa.BigInteger))
    op.add_column("pipelines", sa.Column("state", sa.String(32)))
    op.add_column("pipelines", sa.Column("state_reason", sa.Text))
    op.add_column("pipelines", sa.Column("state_since_ns", sa.BigInteger))
    op.add_column("partitions", sa.Column("stalls", sa.BigInteger))
    op.add_column("epochs", sa.Column("late_records", sa.BigInteger))
    op.add_column("plan_arrivals", sa.Column("task", sa.Integer))
    op.create_table(
        "plan_tasks",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("records", sa.BigInteger),
        sa.Column("late_records", sa.BigInteger),
        sa.Column("violations", sa.Text),
        _pk("plan_tasks", "plan_id", "task"),
    )
    op.create_table(
        "plan_shares",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("transaction_id", sa.String(256), nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("partitions", sa.BigInteger, nullable=False),
        sa.Column("records_stated", sa.BigInteger, nullable=False),
        sa.Column("partitions_stated", sa.BigInteger, nullable=False),
        _pk("plan_shares", "plan_id", "task", "transaction_id"),
    )
    op.create_table(
        "plan_queries",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("watermark_ns", sa.BigInteger, nullable=False),
        sa.Column("open_ms", sa.BigInteger, nullable=False),
        sa.Column("silent_ms", sa.BigInteger, nullable=False),
        sa.Column("stalls", sa.BigInteger, nullable=False),
        _pk("plan_queries", "plan_id", "task", "token"),
    )
    op.create_table(
        "gaps",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.Column("accepted_at_ns", sa.BigInteger, nullable=False),
        _pk("gaps", "pipeline", "start_ns"),
    )
