"""One typed changelog: a Delta or Iceberg table of all changes of one of Spanner's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_sink.columns import Column
from spark_sink.errors import ChangelogColumnError
from spark_sink.own_table import OwnTable
from spark_sink.sql_text import identifier
from spark_sink.table_format import TableFormat
from spark_sink.typed_changes import GIVEN, METADATA, PARTS, PLACE, Shape, shape_of


class ChangelogTable(OwnTable):
    """A typed changelog of one table: see OwnTable."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableFormat,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(spark, path, table, table_format, properties=properties)
        self._shape: dict[str, dict[str, str]] = {}

    @property
    def shape(self) -> Shape:
        """Its structs and their fields; empty before require()."""
        return self._shape

    def require(self, columns: Sequence[Column]) -> None:
        """See OwnTable."""
        needed = shape_of(columns)
        if not self._shape and self._exists():
            self._look()
        if not self._shape:
            self._create(_declared(needed))
            self._look()
        if added := [text for part in needed for text in self._missing(part, needed[part])]:
            self._add_columns(", ".join(added))
            self._look()

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

    def _look(self) -> None:
        self._shape = {
            field.name: {f.name: f.dataType.simpleString().upper() for f in field.dataType.fields}
            for field in self._spark.table(self._name).schema.fields
            if field.name in PARTS and isinstance(field.dataType, StructType)
        }


def _declared(shape: Shape) -> str:
    return ", ".join(
        [
            *(f"{name} {kind}" for name, kind in PLACE.items()),
            *(f"{part} {_struct(shape[part])}" for part in PARTS if part in shape),
            GIVEN,
            *(f"{name} {kind}" for name, kind in METADATA.items()),
        ]
    )


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{identifier(name)}: {kind}' for name, kind in fields.items())}>"
