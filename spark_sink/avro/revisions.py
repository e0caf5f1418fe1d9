"""Whether a schema that is there fits messages, and the revision of it that does.

Messages are written by the schema that is there. So it may have more fields than they do, in
another order, and other names of records.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from slackwater.spark_sink.envelopes.avro_fields import Schema

_RECORD: Final = ("record",)
_LOGICAL: Final = ("logicalType", "precision", "scale")


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer to whether a schema fits messages.

    Attributes:
        lacking: the fields that it lacks: a revision with them takes older messages, too.
        conflicts: the fields for which it takes another schema, each with the reason.
        definition: of the revision with the fields that it lacks, as JSON.
    """

    lacking: tuple[str, ...]
    conflicts: tuple[str, ...]
    definition: str

    @property
    def is_whole(self) -> bool:
        """Whether messages can be written by the schema."""
        return not (self.lacking or self.conflicts)


def fit_of(definition: str, needed: Iterable[Schema]) -> Fit:
    """Return whether a schema fits messages, and a revision of it that does.

    Args:
        definition: the schema's, as JSON.
        needed: the schemas of which the messages are.
    """
    existing = _Parsed.of(json.loads(definition))
    lacking: dict[str, None] = {}
    conflicts: dict[str, None] = {}
    for schema in needed:
        wanted = _Parsed.of(schema)
        for difference in _differences(existing, existing.schema, wanted, wanted.schema, ""):
            kind = conflicts if difference.reason else lacking
            kind[f"{difference.path}{difference.reason}"] = None
    revision = existing.schema
    if isinstance(revision, dict):
        # Without fastavro's own notes.
        revision = {name: item for name, item in revision.items() if not name.startswith("__")}
    return Fit(tuple(lacking), tuple(conflicts), json.dumps(revision, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A schema with the full names of its records, and the records by these."""

    schema: Any
    records: Mapping[str, Any]

    @staticmethod
    def of(schema: Schema) -> "_Parsed":
        records: dict[str, Any] = {}
        parsed = fastavro.parse_schema(schema, records)
        return _Parsed(parsed, records)

    def branches(self, kind: Any) -> list[Any]:
        """Return the types of a union, or the one type, with names replaced by their records."""
        kinds = kind if isinstance(kind, list) else [kind]
        return [self.records.get(each, each) if isinstance(each, str) else each for each in kinds]


@dataclass(frozen=True, slots=True)
class _Difference:
    path: str
    reason: str = ""


def _differences(
    existing: _Parsed, there: Any, wanted: _Parsed, kind: Any, path: str
) -> Iterator[_Difference]:
    """Yield the differences of a type, and add the fields that its records lack."""
    branches = existing.branches(there)
    for each in wanted.branches(kind):
        same = next((branch for branch in branches if _form(branch) == _form(each)), None)
        if same is None:
            names = " or ".join(_name(branch) for branch in branches)
            yield _Difference(path or "the message", f" is {names}, not {_name(each)}")
        elif _form(each) == _RECORD:
            yield from _of_fields(existing, same, wanted, each, path)
        elif _form(each) == ("array",):
            yield from _differences(existing, same["items"], wanted, each["items"], path)


def _of_fields(
    existing: _Parsed, there: Any, wanted: _Parsed, record: Any, path: str
) -> Iterator[_Difference]:
    fields = {field["name"]: field for field in there["fields"]}
    for field in record["fields"]:
        name = field["name"]
        place = f"{path}.{name}" if path else name
        if name in fields:
            same = fields.pop(name)
            yield from _differences(existing, same["type"], wanted, field["type"], place)
        else:
            # With a record of its own it is of another envelope.
            has_record = any(_form(each) == _RECORD for each in wanted.branches(field["type"]))
            there["fields"].append(field)
            yield _Difference(place, " is missing" if has_record else "")
    for name, field in fields.items():
        if "default" not in field:
            yield _Difference(f"{path}.{name}" if path else name, " has no default")


def _form(kind: Any) -> Sequence[Any]:
    """Return what two types share that can be one: records do whatever their fields."""
    if not isinstance(kind, dict):
        return (kind,)
    return (kind["type"], *(kind[name] for name in _LOGICAL if name in kind))


def _name(kind: Any) -> str:
    form = _form(kind)
    return str(form[1] if len(form) > 1 else form[0])
