"""The table formats, by their names in sink.format."""

from collections.abc import Mapping
from typing import Final

from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat

TABLE_FORMATS: Final[Mapping[str, type[TableFormat]]] = {
    made.using: made for made in (Delta, Iceberg)
}
