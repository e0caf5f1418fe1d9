"""docs/security.md judges the jars that are installed, and not others."""

import re
from pathlib import Path

import pyspark

from tests.support.repository import DOCS

PAGE = DOCS / "security.md"


def test_the_page_has_the_versions_of_the_jars_that_spark_brings() -> None:
    section = PAGE.read_text().partition("### Advisories")[2]
    header, _, *rows = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    spark = ".".join(pyspark.__version__.split(".")[:2])
    column = header.split(" | ").index(f"Spark {spark}")
    table = [row.split(" | ") for row in rows if "CVE-" in row]
    assert len(table) == 5
    for row in table:
        first, *others = row[0].split(", ")
        jars = [first, *(first.replace("-http", other) for other in others)]
        for jar in jars:
            name = f"{jar}-{row[column]}.jar"
            assert (Path(pyspark.__file__).parent / "jars" / name).is_file(), name
