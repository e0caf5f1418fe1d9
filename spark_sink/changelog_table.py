"""One typed changelog: a Delta or Iceberg table of all changes of one of Spanner's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_sink.columns import Column
from spark_sink.errors import ChangelogColumnError
from spark_sink.own_tables import own_properties
from spark_sink.sql_text import identifier
from spark_sink.table_format import TableFormat
from spark_sink.typed_changes import GIVEN, METADATA, PARTS, PLACE, Shape, shape_of


class ChangelogTable:
    """A typed changelog of one table.

    Args:
        spark: a session with the format's jar.
        path: the typed changelog's directory.
        table: the full name in Spanner.
        table_format: the typed changelog's.
        properties: of the typed changelog, where it has to be made.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableFormat,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._path = path
        self._table = table
        self._format = table_format
        self._name = table_format.name(spark, path)
        self._properties = dict(properties or {})
        self._shape: dict[str, dict[str, str]] = {}

    @property
    def shape(self) -> Shape:
        """Its structs and their fields; empty before require()."""
        return self._shape

    def require(self, columns: Sequence[Column]) -> None:
        """Make the table, or add the columns that it has not.

        A column that Spanner's table has no more stays, without values in new rows.

        Raises:
            ChangelogColumnError: a column has got another type.
            PublishError: two processes committed at once; the epoch is read again.
        """
        needed = shape_of(columns)
        if not self._shape and self._format.exists(self._spark, self._path):
            self._look()
        if not self._shape:
            self._create(needed)
        if added := [text for part in needed for text in self._missing(part, needed[part])]:
            self._sql(f"ALTER TABLE {self._name} ADD COLUMNS ({', '.join(added)})")
            self._look()

    def append(self, rows: DataFrame, application: str, version: int) -> None:
        """Add rows in one commit; nothing happens if this version, or a later one, is there.

        Args:
            rows: in the table's columns.
            application: names whoever writes; each counts its own versions.
            version: rising.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        self._format.append(rows, self._path, application, version)

    def _missing(self, part: str, needed: Mapping[str, str]) -> list[str]:
        """What has to be declared of a struct that it has not."""
        if part not in self._shape:
            return [f"{part} {_struct(needed)}"]
        # Neither Spark nor Spanner tells upper from lower case in names.
        found = {name.lower(): kind for name, kind in self._shape[part].items()}
        for name, kind in needed.items():
            known = found.get(name.lower(), kind)
            if known != kind:
                raise ChangelogColumnError(
                    f"column {part}.{name} of the changelog {self._path} is {known}, and what"
                    f" {self._table} has become needs {kind}.",
                    "Move the changelog away, so that another one is made, and run the pipeline"
                    " again",
                )
        return [
            f"{part}.{identifier(name)} {kind}"
            for name, kind in needed.items()
            if name.lower() not in found
        ]

    def _create(self, shape: Shape) -> None:
        declared = ", ".join(
            [
                *(f"{name} {kind}" for name, kind in PLACE.items()),
                *(f"{part} {_struct(shape[part])}" for part in PARTS if part in shape),
                GIVEN,
                *(f"{name} {kind}" for name, kind in METADATA.items()),
            ]
        )
        self._sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({declared}) USING {self._format.using}"
            f" TBLPROPERTIES ({own_properties(self._properties, self._table)})"
        )
        self._look()

    def _look(self) -> None:
        self._shape = {
            field.name: {f.name: f.dataType.simpleString().upper() for f in field.dataType.fields}
            for field in self._spark.table(self._name).schema.fields
            if field.name in PARTS and isinstance(field.dataType, StructType)
        }

    def _sql(self, statement: str) -> None:
        with self._format.naming_conflicts(self._path):
            self._spark.sql(statement)


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{identifier(name)}: {kind}' for name, kind in fields.items())}>"
