"""The settings of Spark on which the output depends.

With other values a number that does not fit becomes NULL, an old date becomes another one, or a
missing file is skipped, without any message.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from slackwater.spark_sink.formats import MICROSECONDS

# The only value that each may have: Spark's default, except for MICROSECONDS.
REQUIRED: Final[Mapping[str, str]] = {
    # A value that is not of its column's type fails, and does not become NULL or another one.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # Spanner ignores case in names.
    "spark.sql.caseSensitive": "false",
    # A TIMESTAMP is a point in time.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    MICROSECONDS[0]: MICROSECONDS[1],
    # Other readers of the files, and Arrow, which writes some of them, support no other form.
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
    # Dates before 1582 stay unchanged.
    **{
        f"spark.sql.{of_format}.{name}": "CORRECTED"
        for of_format, name in (
            ("parquet", "datetimeRebaseModeInWrite"),
            ("parquet", "datetimeRebaseModeInRead"),
            ("parquet", "int96RebaseModeInWrite"),
            ("parquet", "int96RebaseModeInRead"),
            ("avro", "datetimeRebaseModeInWrite"),
            ("avro", "datetimeRebaseModeInRead"),
        )
    },
    # A table's rows are read whole, or not at all.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Names and texts in statements are quoted for these.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
# Each restores the behavior of an earlier version of Spark.
_LEGACY_PREFIX: Final = "spark.sql.legacy."


def wrong_settings(conf: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each setting of Spark that breaks a promise.

    Args:
        conf: those that are set.
    """
    for name, value in sorted(conf.items()):
        if name.startswith(_LEGACY_PREFIX):
            yield f"{name} can't be set: it changes what lands"
        elif value.lower() != REQUIRED.get(name, value).lower():
            yield f"{name} can't be {value}: what lands rests on {REQUIRED[name]}"
