"""Change records as trees, written in both dialects with fields added, moved, renamed, left out.

A form says, for each struct of the change records, which fields it has on the wire and in which
order. The same form is written as GoogleSQL's arrays with their types, and as PostgreSQL's JSON.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from google.cloud.spanner_v1.types import TypeCode
from google.protobuf.struct_pb2 import NULL_VALUE, Value

from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.timestamp import format_rfc3339
from tests.support.spanner_messages import PartialResultSetPb, postgresql_metadata

TEXT, FLAG, INT, JSON, STAMP, TEXTS = "text", "flag", "int", "json", "stamp", "texts"
TOP: Final = "row"
# The documented fields of each struct, and what they hold: a kind of value, or a list of structs.
DOCUMENTED: Final[Mapping[str, Mapping[str, str]]] = {
    TOP: {name: name for name in ("data_change_record", "heartbeat_record")}
    | {"child_partitions_record": "child_partitions_record"},
    "data_change_record": {
        "commit_timestamp": STAMP,
        "record_sequence": TEXT,
        "server_transaction_id": TEXT,
        "is_last_record_in_transaction_in_partition": FLAG,
        "table_name": TEXT,
        "column_types": "column_types",
        "mods": "mods",
        "mod_type": TEXT,
        "value_capture_type": TEXT,
        "number_of_records_in_transaction": INT,
        "number_of_partitions_in_transaction": INT,
        "transaction_tag": TEXT,
        "is_system_transaction": FLAG,
    },
    "column_types": {
        "name": TEXT,
        "type": JSON,
        "is_primary_key": FLAG,
        "ordinal_position": INT,
    },
    "mods": {"keys": JSON, "new_values": JSON, "old_values": JSON},
    "heartbeat_record": {"timestamp": STAMP},
    "child_partitions_record": {
        "start_timestamp": STAMP,
        "record_sequence": TEXT,
        "child_partitions": "child_partitions",
    },
    "child_partitions": {"token": TEXT, "parent_partition_tokens": TEXTS},
}
# What may be NULL, and what PostgreSQL may leave out.
NULLABLE: Final = {
    ("data_change_record", "transaction_tag"),
    ("data_change_record", "is_system_transaction"),
    ("mods", "keys"),
    ("mods", "new_values"),
    ("mods", "old_values"),
    ("child_partitions", "parent_partition_tokens"),
}
OMISSIBLE: Final = NULLABLE - {("mods", "keys"), ("child_partitions", "parent_partition_tokens")}
_ADDED: Final[tuple[Any, ...]] = (None, True, "x", "12", [], ["x"], [["a", "b"], ["c", "d"]])


@dataclass(frozen=True, slots=True)
class Field:
    """A field on the wire.

    Attributes:
        name: its name there.
        documented: the documented field whose value it holds; None for an added one.
        value: of an added one.
    """

    name: str
    documented: str | None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of a record: its values by documented name; lists hold structs or texts."""

    path: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value of another kind in the place of a documented one: in GoogleSQL, in PostgreSQL."""

    googlesql: Any
    postgresql: Any


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of every struct, and which documented field, if any, is not under its name.

    Attributes:
        structs: the fields of each struct, in order.
        lost: the struct and the name of a field that was renamed or left out.
    """

    structs: Mapping[str, tuple[Field, ...]]
    lost: tuple[str, str] | None = None

    @property
    def is_loss_seen_in_json(self) -> bool:
        """False if PostgreSQL may have left the field out."""
        assert self.lost is not None
        path, _ = self.lost
        return self.lost not in OMISSIBLE or len(self.structs[path]) >= len(DOCUMENTED[path])


def usual_form() -> Form:
    """Return the documented form."""
    return Form({p: tuple(Field(n, n) for n in fields) for p, fields in DOCUMENTED.items()})


def any_form(choose: random.Random) -> Form:
    """Choose which fields are added, moved, renamed or left out."""
    structs = {path: list(fields) for path, fields in usual_form().structs.items()}
    lost = None
    if choose.random() < 0.3:
        path = choose.choice(sorted(structs))
        index = choose.randrange(len(structs[path]))
        name = structs[path][index].name
        lost = (path, name)
        if choose.random() < 0.6:
            structs[path][index] = Field(choose.choice((f"{name}_2", "renamed")), name)
        else:
            del structs[path][index]
    for path, fields in structs.items():
        if choose.random() < 0.6:
            continue
        for number in range(choose.choice((0, 1, 2))):
            value = choose.choice(_ADDED)
            place = choose.randint(0, len(fields))
            fields.insert(place, Field(f"added_{number}", None, value))
        if choose.random() < 0.5:
            choose.shuffle(structs[path])
    return Form({path: tuple(fields) for path, fields in structs.items()}, lost)


def tree_of(record: ChangeRecord) -> Struct:
    """Return a record as the row that holds it."""
    if isinstance(record, DataChangeRecord):
        values = record._asdict()
        values["commit_timestamp"] = values.pop("commit_timestamp_ns")
        values["column_types"] = [Struct("column_types", c._asdict()) for c in record.column_types]
        values["mods"] = [Struct("mods", mod._asdict()) for mod in record.mods]
        name = "data_change_record"
    elif isinstance(record, ChildPartitionsRecord):
        values = {
            "start_timestamp": record.start_timestamp_ns,
            "record_sequence": record.record_sequence,
            "child_partitions": [
                Struct(
                    "child_partitions",
                    {
                        "token": child.token,
                        "parent_partition_tokens": sorted(child.parent_partition_tokens),
                    },
                )
                for child in record.child_partitions
            ],
        }
        name = "child_partitions_record"
    else:
        assert isinstance(record, HeartbeatRecord)
        values, name = {"timestamp": record.timestamp_ns}, "heartbeat_record"
    return Struct(TOP, {name: [Struct(name, values)]})


def structs_of(tree: Struct) -> Iterator[Struct]:
    """Yield a struct and all structs in it."""
    yield tree
    for value in tree.values.values():
        for item in value if isinstance(value, list) else ():
            if isinstance(item, Struct):
                yield from structs_of(item)


def with_value(tree: Struct, struct: Struct, name: str, value: Any) -> Struct:
    """Return a tree in which a struct, found by identity, has another value in a field."""
    if tree is struct:
        return replace(tree, values={**tree.values, name: value})
    values = {
        key: [with_value(i, struct, name, value) if isinstance(i, Struct) else i for i in item]
        if isinstance(item, list)
        else item
        for key, item in tree.values.items()
    }
    return replace(tree, values=values)


def googlesql_messages(form: Form, trees: Sequence[Struct]) -> list[bytes]:
    """Return a PartialResultSet with a row for each tree, the first with the metadata."""
    messages = [PartialResultSetPb(values=[_value([_googlesql(form, tree)])]) for tree in trees]
    column = messages[0].metadata.row_type.fields.add(name="ChangeRecord")
    column.type_.code = TypeCode.ARRAY
    _set_struct_type(form, TOP, column.type_.array_element_type)
    return [message.SerializeToString() for message in messages]


def _set_struct_type(form: Form, path: str, kind: Any) -> None:
    kind.code = TypeCode.STRUCT
    for field in form.structs[path]:
        made = kind.struct_type.fields.add(name=field.name).type_
        holds = TEXT if field.documented is None else DOCUMENTED[path][field.documented]
        if holds in DOCUMENTED:
            made.code = TypeCode.ARRAY
            _set_struct_type(form, holds, made.array_element_type)
        else:
            made.code = TypeCode.BOOL if holds == FLAG else TypeCode.STRING


def _googlesql(form: Form, struct: Struct) -> list[Any]:
    cells = []
    for field in form.structs[struct.path]:
        if field.documented is None:
            cells.append(field.value)
            continue
        holds = DOCUMENTED[struct.path][field.documented]
        value = struct.values.get(field.documented, [])
        if isinstance(value, Wrong):
            cells.append(value.googlesql)
        elif holds in DOCUMENTED:
            cells.append([_googlesql(form, item) for item in value])
        elif holds == STAMP:
            cells.append(format_rfc3339(value))
        else:
            cells.append(str(value) if holds == INT else value)
    return cells


def _value(of: Any) -> Value:
    made = Value()
    if of is None:
        made.null_value = NULL_VALUE
    elif isinstance(of, bool):
        made.bool_value = of
    elif isinstance(of, str):
        made.string_value = of
    elif isinstance(of, float):
        made.number_value = of
    elif isinstance(of, dict):
        made.struct_value.SetInParent()
    else:
        made.list_value.SetInParent()
        made.list_value.values.extend(map(_value, of))
    return made


def postgresql_messages(form: Form, trees: Sequence[Struct]) -> list[bytes]:
    """Return a PartialResultSet with a row for each tree, the first with the metadata."""
    rows = [orjson.dumps(_postgresql(form, tree)).decode() for tree in trees]
    messages = [PartialResultSetPb(values=[_value(row)]) for row in rows]
    messages[0].metadata.CopyFrom(postgresql_metadata())
    return [message.SerializeToString() for message in messages]


def _postgresql(form: Form, struct: Struct) -> dict[str, Any]:
    row = {}
    for field in form.structs[struct.path]:
        if field.documented is None:
            row[field.name] = field.value
        elif field.documented in struct.values:
            row[field.name] = _json_value(form, struct, field.documented)
    return row


def _json_value(form: Form, struct: Struct, name: str) -> Any:
    value, holds = struct.values[name], DOCUMENTED[struct.path][name]
    if isinstance(value, Wrong):
        return value.postgresql
    if struct.path == TOP:
        return _postgresql(form, value[0])
    if holds in DOCUMENTED:
        return [_postgresql(form, item) for item in value]
    if value is None:
        return None
    if holds == STAMP:
        return format_rfc3339(value)
    return orjson.Fragment(value) if holds == JSON else value
