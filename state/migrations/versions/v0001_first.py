"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(64)
_TABLE = sa.String(512)
_TOKEN = sa.String(1024)
_FUNCTION = sa.String(256)
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
        sa.Column("desired_state", sa.String(16), nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("owner", sa.String(256)),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("heartbeat", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(32)),
        sa.Column("state_reason", sa.Text, nullable=False),
        sa.Column("state_since_ns", sa.BigInteger),
        sa.Column("partition_mode", sa.String(32)),
        sa.Column("starts_since_ns", sa.BigInteger),
        sa.Column("from_watermark", sa.String(64)),
        sa.Column("skip_to", sa.String(64)),
        _pk("pipelines", "name"),
    )
    op.create_table(
        "partitions",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("function", _FUNCTION, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("start_timestamp_ns", sa.BigInteger, nullable=False),
        sa.Column("start_confirmed_in_epoch_ns", sa.BigInteger),
        sa.Column("end_timestamp_ns", sa.BigInteger),
        sa.Column("end_confirmed_in_epoch_ns", sa.BigInteger),
        sa.Column("stalls", sa.BigInteger, nullable=False),
        _pk("partitions", "pipeline", "function", "token"),
    )
    op.create_table(
        "partition_parents",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("function", _FUNCTION, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("parent_token", _TOKEN, nullable=False),
        _pk("partition_parents", "pipeline", "function", "token", "parent_token"),
    )
    op.create_index(
        "ix_partition_parents_pipeline_function_parent_token",
        "partition_parents",
        ["pipeline", "function", "parent_token"],
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
        "plan_claims",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("function", _FUNCTION, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("task", sa.Integer),
        _pk("plan_claims", "plan_id", "function", "token"),
    )
    op.create_table(
        "plan_ends",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("function", _FUNCTION, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        _pk("plan_ends", "plan_id", "function", "token"),
    )
    op.create_table(
        "plan_moves",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("second_ns", sa.BigInteger, nullable=False),
        sa.Column("moves_out", sa.BigInteger, nullable=False),
        sa.Column("moves_in", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.BigInteger, nullable=False),
        _pk("plan_moves", "plan_id", "task", "second_ns"),
    )
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
        "plan_partial_transactions",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("transaction_id", sa.String(256), nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("partitions", sa.BigInteger, nullable=False),
        sa.Column("records_stated", sa.BigInteger, nullable=False),
        sa.Column("partitions_stated", sa.BigInteger, nullable=False),
        _pk("plan_partial_transactions", "plan_id", "task", "transaction_id"),
    )
    op.create_table(
        "plan_partition_load",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("label", _TOKEN, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        _pk("plan_partition_load", "plan_id", "task", "label"),
    )
    op.create_table(
        "plan_task_metrics",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        _pk("plan_task_metrics", "plan_id", "task"),
    )
    op.create_table(
        "plan_open_queries",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("token", _TOKEN, nullable=False),
        sa.Column("watermark_ns", sa.BigInteger, nullable=False),
        sa.Column("open_ms", sa.BigInteger, nullable=False),
        sa.Column("silent_ms", sa.BigInteger, nullable=False),
        sa.Column("stalls", sa.BigInteger, nullable=False),
        _pk("plan_open_queries", "plan_id", "task", "token"),
    )
    op.create_table(
        "plan_positions",
        sa.Column("plan_id", _PLAN, nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("attempt", _PLAN, nullable=False),
        sa.Column("partitions", sa.BigInteger, nullable=False),
        sa.Column("positions", sa.Text, nullable=False),
        _pk("plan_positions", "plan_id", "task", "number"),
    )
    op.create_table(
        "positions",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("low_watermark_ns", sa.BigInteger, nullable=False),
        sa.Column("partitions", sa.BigInteger, nullable=False),
        sa.Column("positions", sa.Text, nullable=False),
        _pk("positions", "pipeline", "number"),
    )
    op.create_table(
        "failed_audits",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        _pk("failed_audits", "pipeline", "end_ns"),
    )
    op.create_table(
        "gaps",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("start_ns", sa.BigInteger, nullable=False),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.Column("accepted_at_ns", sa.BigInteger, nullable=False),
        _pk("gaps", "pipeline", "start_ns"),
    )
    op.create_table(
        "scans",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("at_ns", sa.BigInteger, nullable=False),
        sa.Column("session", sa.String(512), nullable=False),
        sa.Column("transaction_id", sa.String(512), nullable=False),
        sa.Column("tables", sa.Text, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        _pk("scans", "pipeline"),
    )
    op.create_table(
        "scan_parts",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("table_name", _TABLE, nullable=False),
        sa.Column("partition_token", sa.Text, nullable=False),
        sa.Column("chunk", sa.BigInteger, nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        _pk("scan_parts", "pipeline", "number"),
    )
    op.create_table(
        "rescans",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("table_name", _TABLE, nullable=False),
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
        _pk("rescans", "pipeline", "table_name"),
    )
    op.create_table(
        "seen_tables",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("table_name", _TABLE, nullable=False),
        _pk("seen_tables", "pipeline", "table_name"),
    )
    op.create_table(
        "verified_tables",
        sa.Column("pipeline", _NAME, nullable=False),
        sa.Column("table_name", _TABLE, nullable=False),
        sa.Column("after_key", sa.Text),
        sa.Column("round_at_ns", sa.BigInteger),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("different", sa.BigInteger, nullable=False),
        sa.Column("different_before", sa.BigInteger, nullable=False),
        sa.Column("equal_at_ns", sa.BigInteger),
        _pk("verified_tables", "pipeline", "table_name"),
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
        sa.Column("late_records", sa.BigInteger, nullable=False),
        _pk("epochs", "pipeline", "end_ns"),
    )
