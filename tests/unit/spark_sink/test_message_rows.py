"""The hash by which messages are split does not depend on their form."""

from collections.abc import Mapping
from typing import Any

import pytest

from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.message_rows import with_row_hashes
from slackwater.spark_sink.sql.table_shape import TableShape
from tests.unit.spark_sink.test_envelopes import ORIGIN, record

MODS = [
    {"keys": f'{{"Id":"{number}","At":"2026-01-01"}}', "new_values": None, "old_values": "{}"}
    for number in range(3)
]


def hashes(envelope: str, row: Mapping[str, Any], **options: Any) -> list[int]:
    made = envelopes()[envelope](EnvelopeOptions(ORIGIN, **options))
    wrap = with_row_hashes(lambda record: [(m.key, m.value) for m in made.messages(record)])
    return [row_hash for *_, row_hash in wrap(row)]


@pytest.mark.parametrize("envelope", sorted(set(envelopes()) - {"record"}))
def test_the_hash_of_a_row_is_the_same_in_every_envelope(envelope: str) -> None:
    expected = hashes("flat", record("DELETE", *MODS))
    assert len(set(expected)) == 3
    assert hashes(envelope, record("DELETE", *MODS)) == expected
    schemas = {"schemas_enable": True, "enriched_properties": ("schema",)}
    options = {**schemas, "shapes": {"sales.Orders": TableShape(("At", "Id"))}}
    assert hashes(envelope, record("DELETE", *MODS), **options) == expected


def test_a_tombstone_has_the_hash_of_its_delete() -> None:
    one, two, three = hashes("flat", record("DELETE", *MODS))
    assert hashes("debezium", record("DELETE", *MODS), tombstones=True) == [
        *(one, one),
        *(two, two),
        *(three, three),
    ]


def test_a_record_is_one_message_with_one_hash() -> None:
    assert hashes("record", record("DELETE", *MODS)) == hashes("flat", record("DELETE", *MODS))[:1]


def test_rows_of_other_tables_have_other_hashes() -> None:
    assert hashes("flat", record()) != hashes("flat", record(table_name="Orders"))
