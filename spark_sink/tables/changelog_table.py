"""One typed changelog: a Delta or Iceberg table of all changes of one of Spanner's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.types import StructType

from slackwater.spark_sink.errors import ChangelogColumnError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.text import identifier
from slackwater.spark_sink.sql.typed_changes import GIVEN, METADATA, PARTS, PLACE, Shape, shape_of
from slackwater.spark_sink.tables.managed_table import OwnTable


class ChangelogTable(OwnTable):
    """A typed changelog of one table: see OwnTable."""

    @property
    def shape(self) -> Shape:
        """Its structs and their fields; empty before require()."""
        return {
            field.name: {f.name: f.dataType.simpleString().upper() for f in field.dataType.fields}
            for field in (self._schema or StructType())
            if field.name in PARTS and isinstance(field.dataType, StructType)
        }

    def _declared(self, columns: Sequence[Column]) -> str:
        shape = shape_of(columns)
        return ", ".join(
            [
                *(f"{name} {kind}" for name, kind in PLACE.items()),
                *(f"{part} {_struct(shape[part])}" for part in PARTS if part in shape),
                GIVEN,
                *(f"{name} {kind}" for name, kind in METADATA.items()),
            ]
        )

    def _missing(self, columns: Sequence[Column]) -> str:
        shape, needed = self.shape, shape_of(columns)
        parts = (self._missing_of(part, shape.get(part), needed[part]) for part in needed)
        return ", ".join(text for texts in parts for text in texts)

    def _missing_of(
        self, part: str, known_fields: Mapping[str, str] | None, needed: Mapping[str, str]
    ) -> list[str]:
        """What has to be declared of a struct that it has not."""
        if known_fields is None:
            return [f"{part} {_struct(needed)}"]
        # Neither Spark nor Spanner tells upper from lower case in names.
        found = {name.lower(): kind for name, kind in known_fields.items()}
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


def _struct(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{identifier(name)}: {kind}' for name, kind in fields.items())}>"
