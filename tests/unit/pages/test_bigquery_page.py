"""What docs/bigquery.md says of costs follows from the statements of an epoch, and a list price."""

import re
from typing import Final

import pytest

from slackwater.spark_sink.tables.in_bigquery.merge import StagedRows, TableMerge, transaction
from tests.support.repository import DOCS

MONTH_S: Final = 30 * 24 * 60 * 60
# For each table in a statement.
BILLED_MB: Final = 10
DOLLARS_A_TIB: Final = 6.25
TIB_IN_MB: Final = 1 << 20


def billed_mb(tables: int) -> int:
    """Return what the transaction of an epoch that changes so many small tables is billed."""
    merges = [
        TableMerge(
            f"p.d.t{number}",
            ["Id", "Name"],
            staged=StagedRows(f"p.d.s{number}", "this", 1, 1),
            key=["Id"],
            updated=["Name"],
            has_plain_keys=True,
        )
        for number in range(tables)
    ]
    text = transaction(merges, "p.d.marks", "orders", 7)
    statements = text.split(";")
    return BILLED_MB * sum(len(set(re.findall(r"`p\.d\.\w+`", one))) for one in statements)


@pytest.mark.parametrize(("name", "tables"), [("one", 1), ("three", 3), ("20", 20)])
def test_a_mirrors_epochs_cost_what_their_statements_are_billed(name: str, tables: int) -> None:
    billed = billed_mb(tables)
    assert billed == 30 + 20 * tables
    costs = [
        round(billed * MONTH_S / every_s / TIB_IN_MB * DOLLARS_A_TIB) for every_s in (1, 10, 60)
    ]
    plural = "table" if tables == 1 else "tables"
    page = (DOCS / "bigquery.md").read_text()
    assert f"| {name} changed {plural} | {' | '.join(map(str, costs))} |" in page
    assert "a mirror's epoch takes 30 MB, and 20 MB for\neach table that it changes" in page
