"""The tables of the metadata store.

All times are whole nanoseconds since the Unix epoch. Tokens are keys, so they are bounded strings:
some databases can't index unbounded text.
"""

from typing import Final

import sqlalchemy as sa

# The migration that makes this schema; a test holds the two together.
HEAD: Final = "0001"

TOKEN_CHARS_MAX: Final = 1_024
NAME_CHARS_MAX: Final = 64

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_TOKEN = sa.String(TOKEN_CHARS_MAX)
_NAME = sa.String(NAME_CHARS_MAX)
_FUNCTION = sa.String(256)
_PLAN = sa.String(32)

pipelines = sa.Table(
    "pipelines",
    metadata,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("source", sa.String(512), nullable=False),
    sa.Column("low_watermark_ns", sa.BigInteger),
    sa.Column("planned_watermark_ns", sa.BigInteger),
    sa.Column("desired_state", sa.String(16), nullable=False),
    # Until a resume: a drain or stop of its process may be desired meanwhile.
    sa.Column("is_paused", sa.Boolean, nullable=False),
    sa.Column("owner", sa.String(256)),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("heartbeat", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(32)),
    sa.Column("state_reason", sa.Text, nullable=False),
    sa.Column("state_since_ns", sa.BigInteger),
    # Of its partitions: their mode, and the time since which a start is new.
    sa.Column("partition_mode", sa.String(32)),
    sa.Column("starts_since_ns", sa.BigInteger),
    # The loss that an operator accepts, for the owner that waits.
    sa.Column("from_watermark", sa.String(64)),
    sa.Column("skip_to", sa.String(64)),
)

partitions = sa.Table(
    "partitions",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    # Empty for the change stream's own read function.
    sa.Column("function", _FUNCTION, primary_key=True),
    sa.Column("token", _TOKEN, primary_key=True),
    sa.Column("start_timestamp_ns", sa.BigInteger, nullable=False),
    sa.Column("start_confirmed_in_epoch_ns", sa.BigInteger),
    sa.Column("end_timestamp_ns", sa.BigInteger),
    sa.Column("end_confirmed_in_epoch_ns", sa.BigInteger),
    sa.Column("stalls", sa.BigInteger, nullable=False),
)

# Only without mutable key ranges; parents are partitions of the same function.
partition_parents = sa.Table(
    "partition_parents",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("function", _FUNCTION, primary_key=True),
    sa.Column("token", _TOKEN, primary_key=True),
    sa.Column("parent_token", _TOKEN, primary_key=True),
    sa.Index(None, "pipeline", "function", "parent_token"),
)

plans = sa.Table(
    "plans",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("pipeline", _NAME, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
    sa.Column("end_ns", sa.BigInteger, nullable=False),
    # Gives the plans of a pipeline an order; two of one number would have none.
    # An index, because Spanner has no unique constraints.
    sa.Index("uq_plans_pipeline_number", "pipeline", "number", unique=True),
)

# A partition that a plan reads from its start, and the task that does; without a task if it was
# announced and nobody has claimed it yet. The primary key is what makes a second claim impossible.
plan_claims = sa.Table(
    "plan_claims",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("function", _FUNCTION, primary_key=True),
    sa.Column("token", _TOKEN, primary_key=True),
    sa.Column("task", sa.Integer),
)

# A partition whose end a plan has observed, and the task that did.
plan_ends = sa.Table(
    "plan_ends",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("function", _FUNCTION, primary_key=True),
    sa.Column("token", _TOKEN, primary_key=True),
    sa.Column("task", sa.Integer, nullable=False),
)

# The moves of keys, by second, that a task saw from one side only.
plan_moves = sa.Table(
    "plan_moves",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("second_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("moves_out", sa.BigInteger, nullable=False),
    sa.Column("moves_in", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.BigInteger, nullable=False),
)

# The tasks of a plan. Once a task is sealed, its counts are there and the ends it showed are fixed.
plan_tasks = sa.Table(
    "plan_tasks",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("records", sa.BigInteger),
    sa.Column("late_records", sa.BigInteger),
    sa.Column("violations", sa.Text),
)

# The transactions of which a task read only a part.
plan_partial_transactions = sa.Table(
    "plan_partial_transactions",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("transaction_id", sa.String(256), primary_key=True),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("partitions", sa.BigInteger, nullable=False),
    sa.Column("records_stated", sa.BigInteger, nullable=False),
    sa.Column("partitions_stated", sa.BigInteger, nullable=False),
)

# The numbers of records of a plan's partitions, without zeros; for the next plan's balance.
plan_partition_load = sa.Table(
    "plan_partition_load",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("label", _TOKEN, primary_key=True),
    sa.Column("records", sa.BigInteger, nullable=False),
)

# The metrics that a plan's tasks measured, as JSON; for monitoring.
plan_task_metrics = sa.Table(
    "plan_task_metrics",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("metrics", sa.Text, nullable=False),
)

# Queries of a plan that have been running for a while; for monitoring.
plan_open_queries = sa.Table(
    "plan_open_queries",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("token", _TOKEN, primary_key=True),
    sa.Column("watermark_ns", sa.BigInteger, nullable=False),
    sa.Column("open_ms", sa.BigInteger, nullable=False),
    sa.Column("silent_ms", sa.BigInteger, nullable=False),
    sa.Column("stalls", sa.BigInteger, nullable=False),
)

# Where the partitions of Bigtable's are read on after a plan's tasks, in the words of
# reader.bigtable.positions; one attempt at a task has sealed it.
plan_positions = sa.Table(
    "plan_positions",
    metadata,
    sa.Column("plan_id", _PLAN, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("attempt", _PLAN, nullable=False),
    sa.Column("partitions", sa.BigInteger, nullable=False),
    sa.Column("positions", sa.Text, nullable=False),
)

# The same after the last epoch committed, or at the start.
positions = sa.Table(
    "positions",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("low_watermark_ns", sa.BigInteger, nullable=False),
    sa.Column("partitions", sa.BigInteger, nullable=False),
    sa.Column("positions", sa.Text, nullable=False),
)

# Cuts of which an attempt has failed the audit, until the next epoch is planned.
failed_audits = sa.Table(
    "failed_audits",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("end_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
)

gaps = sa.Table(
    "gaps",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("start_ns", sa.BigInteger, primary_key=True),
    sa.Column("end_ns", sa.BigInteger, nullable=False),
    sa.Column("accepted_at_ns", sa.BigInteger, nullable=False),
)

scans = sa.Table(
    "scans",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("at_ns", sa.BigInteger, nullable=False),
    sa.Column("session", sa.String(512), nullable=False),
    sa.Column("transaction_id", sa.String(512), nullable=False),
    # JSON: the tables and columns that were divided into the parts.
    sa.Column("tables", sa.Text, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("is_done", sa.Boolean, nullable=False),
)

scan_parts = sa.Table(
    "scan_parts",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("table_name", sa.String(512), nullable=False),
    sa.Column("partition_token", sa.Text, nullable=False),
    # The parts of a chunk become visible together.
    sa.Column("chunk", sa.BigInteger, nullable=False),
    sa.Column("is_done", sa.Boolean, nullable=False),
)

# Tables that are read again while the changes go on; the newest request for each.
rescans = sa.Table(
    "rescans",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("table_name", sa.String(512), primary_key=True),
    sa.Column("requested_at_ns", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    # JSON of the key up to which the table was read; NULL before the first chunk.
    sa.Column("after_key", sa.Text),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("corrected", sa.BigInteger, nullable=False),
    sa.Column("chunks", sa.BigInteger, nullable=False),
    # The low watermark of the last chunk.
    sa.Column("at_ns", sa.BigInteger),
    # A chunk that may be in the output: its low watermark, and JSON of the key at which it ends.
    sa.Column("pending_at_ns", sa.BigInteger),
    sa.Column("pending_key", sa.Text),
)

# The tables that the pipeline's change stream was seen to watch.
seen_tables = sa.Table(
    "seen_tables",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("table_name", sa.String(512), primary_key=True),
)

# Mirrors that are compared with their tables again and again, slice by slice.
verified_tables = sa.Table(
    "verified_tables",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("table_name", sa.String(512), primary_key=True),
    # JSON of the last key that the round has compared; NULL at its beginning.
    sa.Column("after_key", sa.Text),
    # The earliest low watermark of the round's slices.
    sa.Column("round_at_ns", sa.BigInteger),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("different", sa.BigInteger, nullable=False),
    sa.Column("different_before", sa.BigInteger, nullable=False),
    sa.Column("equal_at_ns", sa.BigInteger),
)

epochs = sa.Table(
    "epochs",
    metadata,
    sa.Column("pipeline", _NAME, primary_key=True),
    sa.Column("end_ns", sa.BigInteger, primary_key=True),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("transactions", sa.BigInteger, nullable=False),
    sa.Column("partitions", sa.BigInteger, nullable=False),
    sa.Column("committed_at_ns", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("late_records", sa.BigInteger, nullable=False),
)
