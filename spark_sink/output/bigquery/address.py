"""The addresses of BigQuery's tables, and of its two services."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.formats import BIGQUERY, DATABASES

SCHEME: Final = DATABASES[BIGQUERY]
DEFAULT_TABLE: Final = "changes"
# The options that name other services than the public ones; those of an object store are beside.
ENDPOINT: Final = "bigquery.endpoint"
STORAGE_ENDPOINT: Final = "bigquery.storage.endpoint"
OPTIONS: Final = (ENDPOINT, STORAGE_ENDPOINT)
_PATH: Final = re.compile(rf"{SCHEME}://([a-z0-9.:-]+)/(\w+)(?:/([^/\\`]+))?/?")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table of BigQuery's.

    Attributes:
        project: the id of the project with the dataset.
        dataset, table: their ids.
    """

    project: str
    dataset: str
    table: str

    @property
    def id(self) -> str:
        """The id that SQL and the REST API have for it."""
        return f"{self.project}.{self.dataset}.{self.table}"

    @property
    def resource(self) -> str:
        """The name that the Storage Write API has for it."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{self.table}"


def parse_address(path: str) -> TableAddress:
    """Return the table of a path such as bq://project/dataset/table.

    A mark that a name can't have becomes an underscore: archive.Notes becomes archive_Notes.

    Raises:
        BigQueryError: the path has another form.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise BigQueryError(
            f"path is {path}, which is no address of BigQuery's:"
            f" {SCHEME}://PROJECT/DATASET, or {SCHEME}://PROJECT/DATASET/TABLE."
        )
    table = _NOT_IN_NAMES.sub("_", match[3] or DEFAULT_TABLE)
    return TableAddress(match[1], match[2], table)


def names_a_table(path: str) -> bool:
    """Return whether a path of BigQuery's names a table, not only a dataset."""
    match = _PATH.fullmatch(path)
    return match is not None and match[3] is not None


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return BigQuery's options, and those of an object store."""
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    return ours, {name: value for name, value in options.items() if name not in OPTIONS}
