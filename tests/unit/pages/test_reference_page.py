"""The reference of the source's options has what the program takes."""

from slackwater.scheduler.source_settings import NotebookOptions
from tests.support.reference_page import reference_page


def test_each_option_has_a_row_with_its_type_and_default() -> None:
    rows = [line for line in reference_page().splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[2:6]] == [
        name for name, field in NotebookOptions.model_fields.items() if field.is_required()
    ]
    assert {row.split(" | ")[0].removeprefix("| ") for row in rows[2:]} == (
        NotebookOptions.model_fields.keys()
    )
    for row in (
        "| max_span | duration | 1d | ",
        "| reading | bounded, continuous | bounded | ",
        "| reader_memory | 16 to 1000000 | 256 | ",
        "| tasks | 1 to 100000 | the machine's cores | ",
        "| traces | true, false | false | ",
        "| table | text | none | ",
    ):
        assert row in reference_page()
