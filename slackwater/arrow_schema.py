"""The Arrow schema of a data frame, on each version of Spark that is supported."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Spark 4.1 gives times in UTC by default; Spark 4.2 requires the time zone.
_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the schema in which Spark hands over Arrow batches; times are in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)
