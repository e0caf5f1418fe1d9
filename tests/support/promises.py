"""What README.md promises, and the tests of each promise; other pages' words are named with theirs.

tests/unit/pages/test_promises.py holds that each stands there, that its tests exist, and that
README.md has no row of output, no guarantee and no command without an entry.
"""

from typing import Final

_SPARK: Final = "tests/spark/test_"
_FIRST_MINUTES: Final = (
    "tests/install/test_first_minutes.py"
    "::test_what_init_writes_lands_every_change_since_the_command"
)
_SOURCE: Final = f"{_SPARK}source.py::test_"
_SPLITS: Final = (
    "tests/simulation/test_epochs.py::test_every_record_once_in_its_epoch_whatever_dies"
)
_COMMANDS: Final = (
    f"{_SPARK}commands.py::test_a_pipeline_runs_until_caught_up_and_shows_where_it_stands"
)
_MIRROR_COMMANDS: Final = (
    f"{_SPARK}mirror_commands.py"
    "::test_a_mirror_that_differs_is_found_repaired_and_read_as_of_a_time"
)
_STATES: Final = f"{_SPARK}desired_state.py::test_"

README: Final[dict[str, tuple[str, ...]]] = {
    "The daemon reads a Spanner **change stream** through every split, merge and move": (
        _SPLITS,
        "tests/emulator/test_epochs.py::test_epochs_under_churn_hold_every_record_once",
    ),
    "each table's changes are rows with typed columns": (
        f"{_SPARK}typed_changelog.py::test_each_value_is_of_its_columns_type",
    ),
    "A [notebook](examples/changes.ipynb) gets the same columns without a pipeline": (
        "tests/install/test_install.py::test_a_notebook_in_an_empty_folder_reads_changes",
        f"{_SOURCE}a_tables_changes_come_in_typed_columns",
    ),
    "If something is missing, the commands say how to get it": (
        "tests/unit/pipeline/test_java.py",
        "tests/unit/testing/test_emulator.py",
    ),
    "kills the pipeline's whole process tree halfway. Then it compares the output": (
        f"{_SPARK}demo.py::test_a_demonstration_that_is_ended_leaves_no_process",
        f"{_STATES}a_pipeline_is_killed_paused_resumed_and_interrupted",
    ),
    "takes five minutes and no Spanner": (
        f"{_SPARK}quickstart.py::test_the_quick_start_runs_word_for_word",
    ),
    "without `[all]` the package reads change streams only": ("tests/install/test_extras.py",),
    "slackwater init --project my-project": (_FIRST_MINUTES,),
    "slackwater run # the daemon; SIGTERM and Ctrl-C finish the epoch": (
        f"{_STATES}a_pipeline_is_killed_paused_resumed_and_interrupted",
        f"{_SPARK}page.py::test_the_page_shows_splits_merges_a_failure_with_its_remedy_and_a_stall",
    ),
    "slackwater run --until-caught-up": (_COMMANDS,),
    "slackwater status # does it keep up?": (_COMMANDS,),
    "slackwater tail --table 'Cust*' --envelope wrapped --resolved 10s": (
        "tests/emulator/test_tail.py"
        "::test_lines_are_the_truth_in_commit_order_and_whole_up_to_each_resolved_line",
    ),
    "with SQLite, PostgreSQL or Spanner for metadata": (
        "tests/databases/test_store.py::test_the_migrations_make_the_tables_that_the_code_uses",
    ),
    "A second one stands by and takes over": (
        "tests/databases/test_lease.py::test_a_standby_takes_over_from_one_that_no_longer_renews",
    ),
    "A Dockerfile, a compose file, a Helm chart": (
        "tests/unit/deploy/test_deploy.py",
        "tests/unit/deploy/test_chart.py",
    ),
    "| `changelog` |": (_FIRST_MINUTES, "tests/outputs/test_logs.py"),
    "| `changelogs` |": (
        _FIRST_MINUTES,
        f"{_SPARK}typed_changelog.py::test_columns_come_and_go_and_an_epoch_lands_once",
    ),
    "| `mirror` |": (
        _FIRST_MINUTES,
        f"{_SPARK}mirror_commands.py"
        "::test_a_mirror_that_differs_is_found_repaired_and_read_as_of_a_time",
        "tests/proofs/mirrors.py",
    ),
    "| `kafka` |": (
        _FIRST_MINUTES,
        f"{_SPARK}kafka.py::test_kafka_gets_every_change_through_a_kill",
        f"{_SPARK}avro.py::test_a_consumer_with_the_registry_gets_every_row_before_and_after",
    ),
    "| `pubsub` |": (
        _FIRST_MINUTES,
        f"{_SPARK}bigtable_columns.py::test_listed_cells_are_in_every_sink_after_a_kill",
        "tests/proofs/pubsub_kills.py",
        f"{_SPARK}pubsub_sink.py::test_messages_come_in_order_and_a_replay_repeats_their_uuids",
    ),
    "| `spark` |": (
        _FIRST_MINUTES,
        f"{_SPARK}publishing.py::test_sparks_formats_and_kafka_at_least_once_tell_what_they_can",
    ),
    "A change can have the form of CockroachDB's changefeeds, Datastream, Debezium or our own": (
        f"{_SPARK}publishing.py::test_records_with_several_mods_land_once_in_every_envelope",
        "tests/unit/spark_sink/test_changefeed_consumers.py",
        "tests/unit/spark_sink/test_debezium_consumers.py",
    ),
    "An [initial scan](docs/initial-scan.md) delivers the rows that were there before": (
        f"{_SPARK}initial_scan.py"
        "::test_a_mirror_from_a_scan_and_changes_is_the_table_through_a_kill",
    ),
    "- **Exactly once.**": (
        _SPLITS,
        "tests/outputs/test_logs.py::test_an_owner_whose_request_or_answer_is_lost_commits_once",
    ),
    "- **Consistent across tables.**": (
        _SPLITS,
        f"{_SPARK}mirror_tables.py::test_all_tables_are_read_as_of_one_time",
    ),
    "- **Parents before children.**": (
        "tests/databases/test_task_attempt.py"
        "::test_each_child_is_claimed_once_after_all_parents_by_many_processes",
    ),
    "- **Audited.**": (
        "tests/unit/scheduler/test_audit.py",
        "tests/faults/test_failed_audits.py"
        "::test_a_cut_whose_audit_failed_is_read_with_the_strict_proof",
    ),
    "- **One owner.**": (
        f"{_SPARK}takeover.py"
        "::test_a_frozen_owner_that_wakes_after_a_takeover_commits_nothing_more",
    ),
    "[`record`](docs/reliability.md#ok-or-record) has neither problem": (
        "tests/faults/test_ends_unseen.py"
        "::test_nothing_is_lost_and_nothing_is_late_with_strict_proof",
    ),
    "Spark 4.2 bounds it by `max_span`": (
        f"{_SOURCE}available_now_reads_up_to_the_clock_and_ends",
    ),
}

# An earlier README had them, too.
ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "docs/output.md::appears whole": (
        f"{_SPARK}task_writing.py::test_files_of_failed_attempts_are_no_part_of_an_epoch",
    ),
    "docs/reliability.md::A pipeline's position is in Spark's checkpoint": (
        f"{_SPARK}recovery.py"
        "::test_a_lost_metadata_store_is_created_again_from_the_checkpoint_and_reported",
    ),
    "docs/settings.md::SLACKWATER_SOURCE_CHANGE_STREAM": ("tests/unit/config/test_settings.py",),
    "docs/spark-source.md::`spark.read` returns the changes between two times": (
        f"{_SOURCE}a_batch_read_holds_each_record_between_two_times_once",
    ),
    "docs/mirrors.md::slackwater verify -c FILE --continuous": (
        f"{_SPARK}initial_scan.py"
        "::test_a_mirror_from_a_scan_and_changes_is_the_table_through_a_kill",
    ),
    "docs/mirrors.md::slackwater as-of": (_MIRROR_COMMANDS,),
    "docs/rescan.md::slackwater rescan": (_MIRROR_COMMANDS,),
    "docs/rebuild.md::slackwater sql view": (
        f"{_SPARK}rebuild_view.py::test_views_over_the_changelog_are_the_tables_by_value",
    ),
    "docs/operations.md::slackwater pause": (
        f"{_STATES}a_pipeline_is_killed_paused_resumed_and_interrupted",
        f"{_STATES}one_of_two_pipelines_in_a_process_fails_alone_and_is_resumed",
    ),
    "docs/spanner.md::slackwater partitions": (_COMMANDS,),
    "docs/runbook.md::slackwater": (
        "tests/unit/deploy/test_deploy.py",
        "tests/emulator/test_alerts.py",
    ),
    "docs/comparison.md::a transaction in one piece": (_SPLITS,),
    "docs/performance.md::Many partitions": ("python -m bench.partitions",),
}
