"""Partitions with mutable key ranges, which have neither parents nor a key of one token."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_PLAN = sa.String(32)


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "mutable_lineages",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", name="pk_mutable_lineages"),
    )
    op.create_table(
        "mutable_partitions",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("function", sa.String(256), nullable=False),
        sa.Column("token", sa.String(1024), nullable=False),
        sa.Column("start_timestamp_ns", sa.BigInteger, nullable=False),
        sa.Column("start_confirmed_in_epoch_ns", sa.BigInteger),
        sa.Column("end_timestamp_ns", sa.BigInteger),
        sa.Column("end_confirmed_in_epoch_ns", sa.BigInteger),
        sa.Column("stalls", sa.BigInteger),
        sa.PrimaryKeyConstraint("pipeline", "function", "token", name="pk_mutable_partitions"),
    )
    op.create_table(
        "plan_claims",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("function", sa.String(256), nullable=False),
        sa.Column("token", sa.String(1024), nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "function", "token", name="pk_plan_claims"),
    )
    op.create_table(
        "plan_ends",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("function", sa.String(256), nullable=False),
        sa.Column("token", sa.String(1024), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "function", "token", name="pk_plan_ends"),
    )
    op.create_table(
        "plan_moves",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("second_ns", sa.BigInteger, nullable=False),
        sa.Column("moves_out", sa.BigInteger, nullable=False),
        sa.Column("moves_in", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "task", "second_ns", name="pk_plan_moves"),
    )
