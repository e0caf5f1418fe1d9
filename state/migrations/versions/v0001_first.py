"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(64)
_TOKEN = sa.String(1024)
_PLAN = sa.String(32)


def _pk(name: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{name}")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "pipelines",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("source", sa.String(512), nullable=False),
        sa.Column("low_watermark_ns", sa.BigInteger),
        sa.Column("planned_watermark_ns", sa.BigInteger),
        sa.Column("wanted", sa.String(16), nullable=False),
        _pk("pipelines", "name"),
    )
    op.create_table(
        "partitions",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("start_timestamp_ns", sa.BigInteger, nullable=False),
        sa.Column("end_timestamp_ns", sa.BigInteger),
        sa.Column("end_found_ns", sa.BigInteger),
        _pk("partitions", "pipeline", "token"),
    )
    op.create_table(
        "partition_parents",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("parent_token", _TOKEN, nullable=False),
        _pk("partition_parents", "pipeline", "token", "parent_token"),
    )
    op.create_index(
        "ix_partition_parents_pipeline_parent_token",
        "partition_parents",
        ["pipeline", "parent_token"],
    )
    op.create_table(
        "plans",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        _pk("plans", "plan_id"),
    )
    op.create_index("uq_plans_pipeline_number", "plans", ["pipeline", "number"], unique=True)
    op.create_table(
        "plan_children",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("claimed_by", sa.Integer),
        _pk("plan_children", "plan_id", "token"),
    )
    op.create_table(
        "plan_arrivals",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("parent_token", _TOKEN, nullable=False),
        _pk("plan_arrivals", "plan_id", "token", "parent_token"),
    )
    op.create_table(
        "epochs",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("transactions", sa.BigInteger, nullable=False),
        sa.Column("partitions", sa.BigInteger, nullable=False),
        sa.Column("committed_at_ns", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        _pk("epochs", "pipeline", "end_ns"),
    )
