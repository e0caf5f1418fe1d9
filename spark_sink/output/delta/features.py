"""The demands of Delta tables on readers and writers (Delta's protocol, "Table Features")."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.output.delta.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

# With it, columns may have other names in the files.
COLUMN_MAPPING: Final = "delta.columnMapping.mode"
# Marks of deleted rows, beside the files.
DELETION_VECTORS: Final = "deletionVectors"
ENABLE_DELETION_VECTORS: Final = "delta.enableDeletionVectors"
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
_APPEND_ONLY: Final = "delta.appendOnly"
_COLUMN_MAPPING: Final = "columnMapping"
_CONSTRAINTS: Final = "delta.constraints."
_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_NULLABILITY: Final = ("nullable", "containsNull", "valueContainsNull", "metadata")
_ID: Final = "delta.columnMapping.id"
_PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
_MAX_ID: Final = "delta.columnMapping.maxColumnId"
# A table has the features that its properties enable.
_OF_PROPERTIES: Final[Mapping[str, str]] = {
    ENABLE_DELETION_VECTORS: DELETION_VECTORS,
    CHANGE_DATA_FEED: "changeDataFeed",
    "delta.enableInCommitTimestamps": "inCommitTimestamp",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableTypeWidening": "typeWidening",
}
# Features that readers, too, have to support.
_OF_READERS: Final = frozenset({DELETION_VECTORS, _COLUMN_MAPPING, "typeWidening"})
# Those of the lowest protocol that there is.
_OLDEST: Final = ("appendOnly", "invariants")
_NEWEST: Final = {"minReaderVersion": 3, "minWriterVersion": 7}
# Features that are supported here, or demand nothing unless a property or a column uses them.
_SUPPORTED: Final = frozenset(
    {
        *_OLDEST,
        "allowColumnDefaults",
        "changeDataFeed",
        "checkConstraints",
        _COLUMN_MAPPING,
        DELETION_VECTORS,
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)


def refused(snapshot: Snapshot) -> list[str]:
    """Return the features for which a table is neither read nor written here."""
    unknown = sorted(snapshot.features - _SUPPORTED)
    unknown += [
        f"{name} {version}"
        for name, newest in _NEWEST.items()
        if (version := snapshot.protocol[name]) > newest
    ]
    return unknown + ([] if _maps_by_own_names(snapshot) else [f"{COLUMN_MAPPING} to other names"])


def demands_on_rows(snapshot: Snapshot) -> list[str]:
    """Return a table's demands on rows beyond columns and types, which no file proves.

    Constraints, columns that must not be NULL, and columns with values of the table's own making.
    """
    properties = [name for name in snapshot.properties if name.startswith(_CONSTRAINTS)]
    harmless = {"comment", _ID, _PHYSICAL_NAME}
    return properties + [
        f"the column {column['name']} {column['metadata'] or 'NOT NULL'}"
        for column in json.loads(snapshot.schema_json)["fields"]
        if not column["nullable"] or column["metadata"].keys() - harmless
    ]


def demands_on_changes(snapshot: Snapshot) -> list[str]:
    """Return a table's demands on writers that change or delete rows."""
    refusals = [_APPEND_ONLY] if snapshot.properties.get(_APPEND_ONLY) == "true" else []
    return refusals + [f"the partition column {name}" for name in snapshot.partition_columns]


def has_change_data_feed(snapshot: Snapshot) -> bool:
    """Return whether a table's readers may ask for the rows that changed."""
    return snapshot.properties.get(CHANGE_DATA_FEED) == "true"


def maps_columns(properties: Mapping[str, str]) -> bool:
    """Return whether properties may give the columns of a table other names in its files."""
    return properties.get(COLUMN_MAPPING, "none") != "none"


def _maps_by_own_names(snapshot: Snapshot) -> bool:
    """Return whether all columns go by their own names in the files."""
    mode = snapshot.properties.get(COLUMN_MAPPING, "none")
    return mode == "none" or all(
        mode == "name" and field["metadata"].get(_PHYSICAL_NAME) == field["name"]
        for field in _fields(json.loads(snapshot.schema_json))
    )


def may_get_deletion_vectors(snapshot: Snapshot) -> bool:
    """Return whether a table has marks of deleted rows, or its owner has not refused them."""
    return snapshot.properties.get(ENABLE_DELETION_VECTORS, "true") == "true"


def with_deletion_vectors(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the actions by which a table may have deletion vectors."""
    if snapshot.properties.get(ENABLE_DELETION_VECTORS) == "true":
        return []
    properties = {**snapshot.properties, ENABLE_DELETION_VECTORS: "true"}
    return [
        {"protocol": _with_features(snapshot.protocol, {DELETION_VECTORS})},
        {"metaData": {**snapshot.metadata, "configuration": properties}},
    ]


def protocol_of(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the protocol of a new table."""
    needed = {feature for name, feature in _OF_PROPERTIES.items() if properties.get(name) == "true"}
    if maps_columns(properties):
        needed.add(_COLUMN_MAPPING)
    lowest = {"minReaderVersion": 1, "minWriterVersion": 2}
    return _with_features(lowest, needed) if needed else lowest


def _with_features(protocol: Mapping[str, Any], needed: set[str]) -> dict[str, Any]:
    writers = {*needed, *protocol.get("writerFeatures", _of_version(protocol))}
    readers = {*protocol.get("readerFeatures", ()), *(writers & _OF_READERS)}
    made = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    named = {"readerFeatures": sorted(readers)} if readers else {}
    return {**made, **named, "writerFeatures": sorted(writers)}


def _of_version(protocol: Mapping[str, Any]) -> Iterator[str]:
    """Yield the features of a protocol that names none (Delta's protocol, "Feature Names")."""
    version = protocol["minWriterVersion"]
    since = {
        3: ["checkConstraints"],
        4: ["changeDataFeed", "generatedColumns"],
        5: [_COLUMN_MAPPING],
        6: ["identityColumns"],
    }
    yield from _OLDEST
    for first, names in since.items():
        if version >= first:
            yield from names


def schema_text(columns: "pa.Schema", properties: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the columns of a table as its log has them, and the properties that go with them.

    With column mapping each column goes by its own name in the files.

    Args:
        columns: all of which may be NULL, as in the tables that Spark creates.
        properties: of the table.
    """
    import pyarrow as pa
    from deltalake import Schema

    nullable = pa.schema([column.with_nullable(True) for column in columns])
    text = Schema.from_arrow(nullable).to_json()
    return mapped(text, properties) if maps_columns(properties) else (text, dict(properties))


def mapped(text: str, properties: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return columns with numbers and names in the files for those that have none.

    Args:
        text: the columns.
        properties: of the table.
    """
    schema = json.loads(text)
    number = int(properties.get(_MAX_ID, 0))
    for field in _fields(schema):
        if _ID not in field["metadata"]:
            number += 1
            field["metadata"] |= {_ID: number, _PHYSICAL_NAME: field["name"]}
    return json.dumps(schema), {**properties, _MAX_ID: str(number)}


def _fields(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the columns, and the fields of all structs in them."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        yield field
        yield from _fields(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _fields(kind.get(part))


def column_types(text: str) -> dict[str, str]:
    """Return the types of columns, as Delta's log has them, by name.

    Nullability inside arrays, maps and structs is left out.
    """
    fields = json.loads(text, object_hook=_without_nullability)["fields"]
    return {
        field["name"]: kind if isinstance(kind := field["type"], str) else json.dumps(kind)
        for field in fields
    }


def _without_nullability(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in _NULLABILITY}


def retention_properties(keep_s: float | None) -> dict[str, str]:
    """Return the properties by which checkpoints forget files that were removed from the table.

    Args:
        keep_s: seconds; None for Delta's own default.
    """
    return {} if keep_s is None else {_FILE_RETENTION: f"interval {round(keep_s)} seconds"}
