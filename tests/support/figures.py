"""The figures in README.md and docs/, and what shows each of them.

A figure is a number with its unit. It is named as it is written, with as much beside it as tells it
from others of its page; " ... " leaves out what is between two of them. What shows it is a program
that measures or proves it, a test, the line of code that sets it (`file::line`), or one of OTHERS.
tests/unit/pages/test_figures.py finds the figures, and holds this list.
"""

from typing import Final

# Pages that are measurements as a whole: each section names its program.
BY_ITS_BENCHES: Final = ("performance.md",)

_EXAMPLE: Final = "an example or advice"
_BIGQUERY: Final = "BigQuery's documentation"
_DATASTREAM: Final = "Datastream's documentation"
_SPANNER: Final = "Spanner's documentation"
_KAFKA: Final = "Kafka's documentation"
OTHERS: Final = (_EXAMPLE, _BIGQUERY, _DATASTREAM, _KAFKA, _SPANNER)

_CONTINUOUS: Final = "python -m bench.continuous"
_COST: Final = "python -m bench.cost"
_FRESHNESS: Final = "python -m bench.freshness"
_LANDING: Final = "python -m bench.landing"
_MIRRORS: Final = "python -m bench.mirrors"
_PARTITIONS: Final = "python -m bench.partitions"
_READING: Final = "python -m bench.reading"
_SOAK: Final = "python -m bench.soak"
_START: Final = "python -m bench.start"
_MEMORY: Final = "python -m tests.proofs.memory_limits"
_REQUESTS: Final = "python -m tests.proofs.object_requests"
_BILLED: Final = (
    "tests/unit/pages/test_bigquery_page.py"
    "::test_a_mirrors_epochs_cost_what_their_statements_are_billed"
)
_COSTS: Final = (
    "tests/unit/pages/test_sizing_page.py"
    "::test_the_costs_are_those_of_the_requests_at_the_list_prices"
)
_GROWTH: Final = (
    "tests/unit/pages/test_sizing_page.py::test_the_cores_of_a_load_are_those_of_the_terms"
)
_CATCH_UP: Final = "tests/unit/pipeline/test_catch_up.py::test_the_answer_is_one_line_and_one_level"

_CORES: Final = "docs/performance.md::Here: 2 cores"
_DEMO: Final = "slackwater/demo/show.py"
_ALERTS: Final = "deploy/prometheus/alerts.yaml"
_ALERT: Final = "slackwater/pipeline/catch_up.py::LAG_WARNING_S: Final = 300.0"
_CONNECTED: Final = "reader/transport/connection.py"
_CUT: Final = "scheduler/epoch_lead.py::LEAD_MAX_NS: Final = NANOSECONDS_PER_SECOND // 2"
_DDL: Final = (
    "reader/database/schema_changes.py::CHANGES_KEPT_NS: Final = seconds_to_ns(7 * 86_400)"
)
_GROUP: Final = "spark_sink/output/epoch_groups.py::GROUP_SIZE: Final = 128 << 20"
_HALF_US: Final = "slackwater/timestamp.py::HALF_MICROSECOND_NS: Final = 500"
_HEARTBEAT: Final = "reader/transport/statement.py::HEARTBEAT_MS_MAX: Final = 300_000"
_HOUR: Final = "spark_sink/sinks/table_settings.py::| None, _Never] = _HOUR_MS"
_LONG: Final = "spark_sink/sinks/table_settings.py::keep = _DAY_MS"
_LEASE: Final = (
    "slackwater/config/settings.py::duration: Annotated[int, Duration(2_000, 600_000)] = 6_000"
)
_REOPENED: Final = "reader/query/reopened_query.py::ATTEMPTS_MAX: Final = 15"
_RETRY_MAX: Final = "slackwater/pipeline/failures.py::_DELAY_MAX_S: Final = 60.0"
_RETRY: Final = "slackwater/pipeline/failures.py::_DELAY_FIRST_S: Final = 1.0"
_SPAN: Final = (
    "scheduler/source_settings.py::"
    'max_span: Annotated[int, Duration(_SECOND_MS, parse_duration_ms("7d"))]'
)
_KEEP: Final = (
    'scheduler/source_settings.py::Keep = Annotated[int, Duration(parse_duration_ms("1m")'
)
_STALL: Final = "reader/query/stall_watchdog.py::STALL_HEARTBEATS: Final = 3"
_STATED: Final = "spark_sink/sinks/mirrors.py::_PUBLISH_ALL_EVERY_S: Final = 60.0"
_STORE: Final = "state/store.py::_PATIENCE_S: Final = 30.0"
_WATERMARK_FILES: Final = "spark_sink/output/watermark_lines.py::FILES_IN_ONE: Final = 100"
_SETTINGS: Final = (
    "tests/unit/config/test_settings.py::test_the_settings_page_lists_every_key_with_its_default"
)
_OPTIONS: Final = (
    "tests/unit/scheduler/test_source_settings.py"
    "::test_the_page_on_the_source_has_every_option_and_its_default"
)
_MAINTENANCE: Final = "spark_sink/sinks/table_settings.py::Annotated[Annotated[int, Duration("
_READER_MEMORY: Final = (
    "tests/unit/deploy/test_chart.py"
    "::test_a_pod_with_tasks_has_room_for_the_reader_process_of_continuous_reading"
)

FIGURES: Final[dict[str, dict[str, str]]] = {
    "README.md": {
        "behind by 63 min, caught up in about 32 min": _EXAMPLE,
        "every two seconds": f"{_DEMO}::_CHURN_SECONDS: Final = 2",
        "60 transactions a second": f"{_DEMO}::_TRANSACTIONS_PER_SECOND: Final = 60",
        "takes five minutes": (
            "tests/spark/test_quickstart.py::test_the_quick_start_runs_word_for_word"
        ),
        "on 2 cores": _CORES,
        "300,000 records per CPU-second": _LANDING,
        "0.2 to 0.45 s": _FRESHNESS,
    },
    "architecture.md": {
        "half a second at most": _CUT,
        "W lies half a microsecond after": _HALF_US,
        "a minute without progress": _REOPENED,
        "three heartbeats": _STALL,
    },
    "postgresql.md": {
        "above 63 bytes": "spark_sink/tables/in_postgresql/address.py::NAME_MAX: Final = 63",
        "30 seconds": "spark_sink/tables/in_postgresql/database.py::lock_timeout = '30s'",
    },
    "ducklake.md": {
        "up to 1 GB of memory": 'spark_sink/tables/in_ducklake/lake.py::_MEMORY_MAX: Final = "1GB"',
        "`, 128 MiB)": 'spark_sink/tables/in_ducklake/lake.py::_FILE_SIZE: Final = "128MiB"',
    },
    "bigquery.md": {
        "10 MB at least": _BIGQUERY,
        "takes 30 MB, and 20 MB for": _BILLED,
        "6.25 dollars a TiB": _BIGQUERY,
        "free first TiB": _BIGQUERY,
        "after two days": _BIGQUERY,
        "for 7 days": _BIGQUERY,
        "7 days at most": _BIGQUERY,
        "those of a day before it": "spark_sink/tables/in_bigquery/marks.py::INTERVAL 1 DAY",
        "10,000 partitions": _BIGQUERY,
        "0.025 dollars a GiB after 2 TiB": _BIGQUERY,
        "99 changed tables": "spark_sink/tables/in_bigquery/merge.py::TABLES_MAX: Final = 99",
        "1 s | 10 s | 60 s": _BILLED,
        "mirrors above 128 MiB": "spark_sink/tables/by_driver/delta_access.py::LARGE: Final = 128",
        "30 commits": 'spark_sink/output/delta/delta_commits.py::"delta.checkpointInterval": "30"',
        "300 characters": _BIGQUERY,
        "128 characters": _SPANNER,
    },
    "comparison.md": {
        "some tenths of a second": _FRESHNESS,
        "10,000 partitions, 60,000 updates or 60 MiB a second": _DATASTREAM,
        "100 GiB of changes a month": _DATASTREAM,
        "over 3 TiB may take more than a day": _DATASTREAM,
        "a hundred milliseconds": _FRESHNESS,
    },
    "decisions.md": {
        "take three requests": _BIGQUERY,
        "10,000 an hour": _BIGQUERY,
        "0.025 dollars a GiB": _BIGQUERY,
        "2 TiB a month": _BIGQUERY,
        "a few tenths of a second": _PARTITIONS,
        "a thousand rows into ten million took 12.5 s": _MIRRORS,
    },
    "initial-scan.md": {"an hour by default": _SPANNER},
    "kafka.md": {
        "5 minutes": 'spark_sink/kafka/transaction.py::"transaction.timeout.ms": "300000"',
        "(a week)": _KAFKA,
        "a minute or two": "spark_sink/kafka/transaction.py::_TIMEOUT_S: Final = 60.0",
        "100 bytes": "spark_sink/kafka/dead_letters.py::_OVERHEAD_BYTES: Final = 100",
    },
    "from-debezium.md": {
        "within a minute": "spark_sink/sinks/message_sink.py::_LEARN_S: Final = 60.0",
        "every five minutes": "spark_sink/sinks/message_sink.py::_IDLE_HEARTBEAT_S: Final = 300.0",
    },
    "pubsub.md": {
        "over 10 MB": "spark_sink/pubsub/service.py::_REQUEST_BYTES_MAX: Final = 10_000_000",
        "within ten seconds": "spark_sink/pubsub/topic_messages.py::_LOOK_S_MIN: Final = 10.0",
        "or 9 MB": "spark_sink/pubsub/publisher.py::_REQUEST_BYTES_MAX: Final = 9_000_000",
    },
    "kubernetes.md": {
        "about 300 MiB": _LANDING,
        "150 MiB": _READER_MEMORY,
        "on two cores: shape ... 2,155 MiB": _MEMORY,
        "60 KiB": _CONTINUOUS,
    },
    "mirrors.md": {
        "within a minute": _STATED,
        "an hour by default": _SPANNER,
        "seven days": _DDL,
        "16 MiB": "spark_sink/tables/row_merges/file_merge.py::SMALL: Final = 16 << 20",
        "128 MiB": "spark_sink/tables/by_driver/delta_access.py::LARGE: Final = 128 << 20",
        "256 key ranges": "spark_sink/comparison.py::RANGES: Final = 256",
    },
    "object-stores.md": {
        "512 KiB": "spark_sink/output/staged_file.py::IN_MEMORY_MAX: Final = 512 << 10",
        "1 MiB": "spark_sink/output/bucket_place.py::IN_COMMIT_MAX: Final = 1 << 20",
        "a day old": _EXAMPLE,
    },
    "operations.md": {
        "10 s for its header": "slackwater/monitoring/http_server.py::_REQUEST_S_MAX: Final = 10.0",
        "16 KiB": "slackwater/monitoring/http_server.py::_HEADER_BYTES_MAX: Final = 16_384",
        "30 s to be taken": "slackwater/monitoring/http_server.py::_ANSWER_S_MAX: Final = 30.0",
        "200 connections a second": "slackwater/monitoring/http_server.py::_PACE_S: Final = 0.005",
        "after a minute, and then": (
            "slackwater/pipeline/alerts.py::_REMINDER_FIRST_S: Final = 60.0"
        ),
        "1 s, 2 s, 4 s": _RETRY,
        "and so on, up to a minute": _RETRY_MAX,
        "a minute by default": "slackwater/pipeline/supervisor.py::_DRAIN_TARGETS_MAX: Final = 2",
        "a minute at most": 'slackwater/cli.py::wait: options.Wait = "60s"',
        "160 MiB": _START,
        "five seconds of the first epoch": (
            "slackwater/monitoring/status.py::_POLL_EVERY_S_MAX: Final = 4.0"
        ),
        "if no executor comes within five minutes": (
            "slackwater/pipeline/spark/warm_up.py::_SECONDS_MAX: Final = 300.0"
        ),
        "Keeps up: behind by 0.8 s": _CATCH_UP,
        "10 s, or two and a half epochs": (
            "slackwater/pipeline/catch_up.py::_BEHIND_S: Final = 10.0"
        ),
        "Behind by 62 min, caught up in about 31 min": _CATCH_UP,
        "the last five minutes": (
            "slackwater/pipeline/catch_up.py::_MEASURED_NS: Final = seconds_to_ns(300)"
        ),
        "Behind by 10 min ... no epoch for 3 min": _CATCH_UP,
        "for 30 s, or for five usual epochs": (
            "slackwater/pipeline/catch_up.py::_WITHOUT_EPOCH_S: Final = 30.0"
        ),
        "Is paused; behind by 93 s ... for 40 s": _CATCH_UP,
        "A lag of more than five minutes": _ALERT,
        "after a minute": "slackwater/pipeline/alerts.py::_REMINDER_FIRST_S: Final = 60.0",
        "a quarter of an hour": "slackwater/pipeline/alerts.py::_REMINDER_MAX_S: Final = 900.0",
        "over two seconds": "scheduler/tasks/open_query_reporter.py::_EVERY_S: Final = 2.0",
    },
    "output.md": {
        "an hour by default": _HOUR,
        "but a day is kept": _LONG,
        "128 MiB": _GROUP,
        "two hours": "spark_sink/output/epoch_groups.py::_UNREST: Final = timedelta(hours=2)",
        "256 MiB": "spark_sink/output/compaction_groups.py::_COMPACTED_SIZE: Final = 256 << 20",
        "50 files": "spark_sink/tables/row_merges/file_merge.py::FILES_MAX: Final = 50",
        "100 files": _WATERMARK_FILES,
        "100 epochs": _WATERMARK_FILES,
        "200 bytes": "spark_sink/table_names.py::_BYTES_MAX: Final = 200",
    },
    "quickstart.md": {
        "twenty transactions": "slackwater/demo/forever.py::_TRANSACTIONS_PER_SECOND: Final = 20",
        "five minutes": "tests/spark/test_quickstart.py::test_the_quick_start_runs_word_for_word",
    },
    "reliability.md": {
        "(10 minutes)": (
            "slackwater/config/settings.py::"
            "progress_deadline: Annotated[int, Duration(10_000)] = 600_000"
        ),
        "30 times each in Parquet and Delta": "Makefile::kills --kills 30 --format delta",
        "10 times in the PostgreSQL": "Makefile::kills --kills 10 --dialect POSTGRESQL",
        "two hours": "Makefile::tests.faults.codes --minutes 120",
        "three heartbeats": _STALL,
        "50,000 messages": "Makefile::tests.faults.messages --messages 50000",
        "5,000 simulated lives": "Makefile::tests.simulation.test_epochs 0 5000",
        "`lease.duration`, 6 s": _LEASE,
        "after 10 s": "state/engine.py::_IDLE_SECONDS: Final = 10",
        "each operation retries for 30 s": _STORE,
        "1 s, 2 s": _RETRY,
        "... at most a minute": _RETRY_MAX,
        "is repeated for up to a minute": (
            "tests/unit/reader/test_grpc_errors.py::test_the_documentation_shows_the_same_table"
        ),
        '"Up to a minute": a query is opened again fifteen times': _REOPENED,
        "any other call for 30 s": f"{_CONNECTED}::_CALL_SECONDS_MAX: Final = 30.0",
    },
    "rescan.md": {
        "an hour by default": _SPANNER,
        "more than an hour": _SPANNER,
        "every half minute": (
            "slackwater/pipeline/epochs/rescanner.py::_LOG_EVERY_S: Final = 30.0"
        ),
        "16,000 rows": "slackwater/pipeline/epochs/chunk_size.py::_ROWS_MAX: Final = 16_000",
        "8 MiB": "slackwater/pipeline/epochs/rescanner.py::_BYTES_MAX: Final = 8 << 20",
        "2,000 rows": (
            "spark_sink/tables/rescans/mirror_corrections.py::_WRONG_ROWS_MAX: Final = 2_000"
        ),
    },
    "runbook.md": {
        "five minutes behind": f"{_ALERTS}::slackwater_low_watermark_lag_seconds > 300",
        "several times in ten minutes": f"{_ALERTS}::increase(slackwater_failures_total[10m]) >= 3",
        "starting for ten minutes": (
            f'{_ALERTS}::slackwater_state{{state="starting"}} == 1\n        for: 10m'
        ),
        "for a day": f"{_ALERTS}::max_over_time(slackwater_is_owner[1d])",
    },
    "settings.md": {
        "16 characters": "slackwater/monitoring/http_access.py::_TOKEN_LENGTH_MIN: Final = 16",
        "| 10m |": _SETTINGS,
        "at least 10s": "slackwater/config/settings.py::progress_deadline: Annotated[int, Dur",
        "the first epoch covers a minute": (
            "scheduler/epoch_span.py::FIRST_NS: Final = seconds_to_ns(60)"
        ),
        "A day for changelogs in Delta": _LONG,
        "| 1s |": _SETTINGS,
        "0s for no pause": "slackwater/config/settings.py::trigger: Annotated[int, Duration()]",
        "| 1d |": _SETTINGS,
        "1s to 7d": _SPAN,
        "| 30s |": _SETTINGS,
        "10s for bounded reading, 1s for continuous": _OPTIONS,
        "1s to 5m": _HEARTBEAT,
        "| 1h |": _SETTINGS,
        "at least 1m, or `never`": f"{_MAINTENANCE}60_000)] | None, _Never] = _HOUR_MS",
        "at least 10m, or `never`": f"{_MAINTENANCE}600_000)] | None, _Never] = _HOUR_MS",
        "status and page; at least 1m": _KEEP,
        "| 6s |": _SETTINGS,
        "2s to 10m": _LEASE,
    },
    "sizing.md": {
        "every 20 minutes": (
            "reader/query_window.py::QUERY_SPAN_MAX_NS: Final = seconds_to_ns(20 * 60)"
        ),
        "With a thousand records a second ... every ten seconds is soon enough": _CONTINUOUS,
        "2,000 heartbeats a second: set `epoch.heartbeat: 10s` with 10,000 partitions": (
            "scheduler/continuous/reader_process.py::_HEARTBEATS_A_SECOND: Final = 2_000"
        ),
        "after ten minutes": "scheduler/continuous/follower.py::IDLE_S: Final = 600.0",
        "150 MiB and 60 KiB for each query": _CONTINUOUS,
        "on two cores: services": _CORES,
        "2 to 10,000 partitions and records of 300 to 2,000 bytes": _COST,
        "CPU within 2 % ... 3.2 us": _COST,
        "A record takes 5 us": _LANDING,
        "7 ms in PostgreSQL and Delta, 25 ms in Iceberg": _MIRRORS,
        "100,000 partitions with ... 3,333 queries a second": _GROWTH,
        "up to 350 MiB": _LANDING,
        "450 MiB for Python, 500 MiB to 1 GiB for the JVM": _SOAK,
        "2 cores and 4 GiB": _MEMORY,
        "dollars for 1,000 requests": _COSTS,
        "A month of 30 days ... 60 s |": _COSTS,
        "once a minute": _STATED,
        "4 dollars a month or one": (
            "tests/unit/pages/test_sizing_page.py::test_maintenance_costs_what_its_requests_cost"
        ),
    },
    "spanner.md": {"Set seven days": _SPANNER},
    "spark-source.md": {
        "| 1h |": _OPTIONS,
        "at least 1m": _KEEP,
        "| 1d |": _OPTIONS,
        "1s to 7d": _SPAN,
        "| 30s |": _OPTIONS,
        "10s for bounded reading, 1s for continuous": _OPTIONS,
        "1s to 5m": _HEARTBEAT,
    },
    "tail.md": {
        "an hour by default": _SPANNER,
        "100,000 records": 'slackwater/tail/options.py::{"target_records": 100_000,',
    },
}
