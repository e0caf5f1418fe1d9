"""The option table: the changes of one table in typed columns, as the information schema has them.

The columns are those of the time at which the query is made. Its readers get them from Spark and
don't ask again, so that all tasks of a query agree.
"""

from __future__ import annotations

import difflib
from functools import partial

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.decode.typed_changes import typed_changes
from slackwater.reader.typed_schema import is_typed, typed_schema
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.spark.stream_reader import ToRows, connection_of


def table_schema(change_stream: ChangeStream, name: str) -> StructType:
    """Return the columns of a table's typed changes.

    Raises:
        OptionError: the change stream watches no such table.
        ReaderError: the change stream does not exist, or Spanner does not answer.
    """
    connection = connection_of(change_stream)
    dialect = read_change_stream_info(connection).dialect
    by_name = {table.name: table for table in watched_tables(connection, dialect)}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        raise OptionError(
            f"option table: {change_stream.path} watches no table {name!r}.",
            f"Did you mean {near[0]!r}?" if near else f"Tables: {', '.join(sorted(by_name))}",
        )
    table = by_name[name]
    return from_arrow_schema(typed_schema(table.columns, table.key))


def rows_of_table(name: str, schema: StructType) -> ToRows:
    """Return what makes typed changes of data change records.

    Args:
        name: the table's.
        schema: the query's, as Spark hands it to a reader.

    Raises:
        OptionError: the query has a schema of its own.
    """
    arrow_schema = arrow_schema_of(schema)
    if not is_typed(arrow_schema):
        raise OptionError("option table: Spanner says the columns.", "Leave out .schema(...)")
    return partial(map, partial(typed_changes, table=name, schema=arrow_schema))
