"""The option table: the changes of one table in typed columns, as the information schema has them.

The columns are those of the time at which the query is made. Its readers get them from Spark and
don't look them up again, so that all tasks of a query agree.
"""

import difflib
from functools import partial

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.errors import ColumnTypeError
from slackwater.reader.typed_schema import is_typed, typed_schema
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.spark.epochs_reader import ToRows
from slackwater.scheduler.spark.stream_reader import connection_of
from slackwater.typed_changes import ColumnValueError, typed_changes


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
    """Return the conversion of data change records to typed changes.

    Args:
        name: the table's.
        schema: the query's, as Spark hands it to a reader.

    Raises:
        OptionError: the query has a schema of its own.
    """
    arrow_schema = arrow_schema_of(schema)
    if not is_typed(arrow_schema):
        raise OptionError("option table: Spanner says the columns.", "Leave out .schema(...)")
    return partial(map, partial(_typed, table=name, schema=arrow_schema))


def _typed(records: pa.RecordBatch, table: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return a row for each mod of a table's records.

    Raises:
        ColumnTypeError: a value is not of its column's type.
    """
    try:
        return typed_changes(records, table, schema)
    except ColumnValueError as error:
        raise ColumnTypeError(
            str(error),
            "The column had another type. If it was changed after the source was loaded, load the"
            " source again; otherwise start after the change, or leave out the option table",
        ) from error
