"""The commands that messages, pages and the runbook tell a user to run, and the test of each.

A command is its verb with the options that are written beside it, whatever their values;
tests/unit/pages/test_remedies.py finds them all, and that each has its test here.
"""

from typing import Final

_FIRST_MINUTES: Final = (
    "tests/install/test_first_minutes.py"
    "::test_what_init_writes_lands_every_change_since_the_command"
)
_QUICK_START: Final = "tests/spark/test_quickstart.py::test_the_quick_start_runs_word_for_word"
_REMEDIES: Final = (
    "tests/spark/test_remedies.py::test_the_remedies_of_a_failed_pipeline_work_beside_its_process"
)
_MIRRORS: Final = (
    "tests/spark/test_mirror_commands.py"
    "::test_a_mirror_that_differs_is_found_repaired_and_read_as_of_a_time"
)
_VIEWS: Final = (
    "tests/spark/test_rebuild_view.py::test_views_over_the_changelog_are_the_tables_by_value"
)
_TAIL: Final = "tests/emulator/test_tail.py"
_RECOVERY: Final = "tests/spark/test_recovery.py"

TESTS: Final = {
    "as-of": _MIRRORS,
    "as-of --follow --format": (
        "tests/spark/test_mirror_commands.py::test_a_file_follows_the_versions_of_all_mirrors"
    ),
    "as-of --format": _MIRRORS,
    "check": _FIRST_MINUTES,
    # Before all tests, in tests/conftest.py, which fails without it.
    "class-archive": "tests/conftest.py::pytest_configure",
    "demo": "tests/spark/test_demo.py::test_a_demonstration_that_is_ended_leaves_no_process",
    "drain": _QUICK_START,
    "init": "tests/emulator/test_init.py::test_of_several_streams_one_is_named_or_asked_for",
    "init --check --database --instance --project --sink": _QUICK_START,
    "init --check --database --instance --path --project --sink": _QUICK_START,
    "init --check --instance --project --table": (
        "tests/spark/test_bigtable.py::test_init_writes_a_file_that_check_finds_right"
    ),
    "jars": (
        "tests/spark/test_connectors.py::test_a_mirror_and_its_checkpoint_need_nothing_but_the_path"
    ),
    "partitions": (
        "tests/spark/test_commands.py"
        "::test_a_pipeline_runs_until_caught_up_and_shows_where_it_stands"
    ),
    "pause": _QUICK_START,
    "rescan": _MIRRORS,
    "rescan --stop --table": _MIRRORS,
    "rescan --table": _MIRRORS,
    "resume": _QUICK_START,
    "resume --from-watermark": _REMEDIES,
    "resume --skip-to": _REMEDIES,
    "run": _FIRST_MINUTES,
    "run --from-watermark": (
        f"{_RECOVERY}::test_a_lost_checkpoint_is_refused_and_replaced_from_the_last_watermark"
    ),
    "run --skip-to": (
        f"{_RECOVERY}::test_records_lost_for_good_stop_the_pipeline_until_the_gap_is_accepted"
    ),
    "run --until-caught-up": _MIRRORS,
    "schema": "tests/unit/config/test_json_schema.py::test_the_command_prints_a_valid_schema",
    "sql view": _VIEWS,
    "sql view --table": _VIEWS,
    "status": _QUICK_START,
    "status --json": _REMEDIES,
    "stop": _REMEDIES,
    "tail": f"{_TAIL}::test_without_names_it_says_how_to_name_the_change_stream",
    "tail --change-stream --database --instance --project": _QUICK_START,
    "tail --envelope --resolved --table": f"{_TAIL}::test_csv_and_text_lines_of_chosen_tables",
    "tail --change-stream --database --instance --project --resolved": _QUICK_START,
    "tail --instance --project --table": (
        "tests/faults/test_bigtable_tail.py::test_a_line_of_text_is_readable_and_one_of_csv_exact"
    ),
    "tail --resolved --table": f"{_TAIL}::test_csv_and_text_lines_of_chosen_tables",
    "verify": _MIRRORS,
    "verify --continuous": (
        "tests/spark/test_rescans.py::test_mirrors_that_lack_rows_are_their_tables_after_a_rescan"
    ),
    "verify --repair": _MIRRORS,
}
