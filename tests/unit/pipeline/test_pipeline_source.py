"""The end of a pipeline that begins with an initial scan, and the columns of its source."""

import pytest

from slackwater.pipeline.source import end_after_scan, of_new_types
from slackwater.reader.database.watched_tables import Table
from slackwater.state.models import Scan
from tests.support.typed_values import VALUES

SCAN = Scan("orders", at_ns=2_500, session="s", transaction_id=b"", tables="{}")


@pytest.mark.parametrize(("until_ns", "end_ns"), [(None, None), (1_500, 2_500), (3_500, 3_500)])
def test_a_pipeline_never_ends_before_its_initial_scan(
    until_ns: int | None, end_ns: int | None
) -> None:
    assert end_after_scan(until_ns, (SCAN, [])) == end_ns
    assert end_after_scan(until_ns, None) == until_ns


def test_columns_whose_types_are_new_are_named_and_no_others() -> None:
    new = ("SOMETHING_NEW<X>", "ARRAY<SOMETHING_NEW<X>>", "geometry[]", "GEOGRAPHY")
    kinds = [*(kind for kind, *_ in VALUES if kind != new[0]), "PROTO<shop.Order>", "text", *new]
    table = Table("Places", {f"c{place}": kind for place, kind in enumerate(kinds)}, ())
    named = of_new_types([table])
    assert [column["type"] for column in named] == list(new)
    assert named[0] == {"table": "Places", "column": f"c{len(kinds) - 4}", "type": new[0]}
