"""Commits to several tables of a REST catalog, which become visible at one moment."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.iceberg.commit_once import commits_together
from slackwater.spark_sink.output.iceberg.pending_commits import CommitsAtOnce
from slackwater.spark_sink.output.iceberg.table_place import TablePlace
from tests.support.iceberg_owners import SCHEMA, Owner, Where, before, in_database
from tests.support.object_stores import ServedStore
from tests.support.rest_catalog import REST_SERVERS, ServedCatalog, rest_catalog

_TOGETHER = "transactions/commit"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", params=REST_SERVERS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("rest"), server=request.param) as catalog:
        yield catalog


@dataclass
class Tables:
    """Tables that one process owns, and commits to at once."""

    places: Sequence[Where]
    at_once: CommitsAtOnce
    owners: Sequence[Owner]
    store: ServedStore

    @classmethod
    def three_of(cls, conf: Mapping[str, str], store: ServedStore) -> "Tables":
        name = f"orders_{next(_NUMBERS)}"
        places = [Where(TablePlace(f"out/{name}_{n}", "lake.tables"), conf) for n in range(3)]
        at_once = CommitsAtOnce()
        tables = cls(places, at_once, [place.owner(at_once) for place in places], store)
        tables.add(1)
        return tables

    def add(self, number: int) -> list[bool]:
        with self.at_once.collecting():
            return [owner.add(number) for owner in self.owners]

    def numbers(self) -> list[list[int]]:
        return [place.numbers() for place in self.places]

    def requests(self) -> list[str]:
        """Return the changes that the catalog was asked for since the last call."""
        changes = [path for method, path in self.store.requests if method == "POST"]
        self.store.requests.clear()
        # The others are the store's.
        return [path for path in changes if "/v1/" in path]


@pytest.fixture
def tables(served: ServedCatalog) -> Tables:
    made = Tables.three_of(served.spark_conf, served.store)
    made.requests()
    return made


def test_an_epoch_of_all_tables_is_one_request(tables: Tables) -> None:
    assert tables.add(2) == [True] * 3
    [request] = tables.requests()
    assert request.endswith(_TOGETHER)
    assert tables.numbers() == [[1, 2]] * 3
    # What the tables have is known without another look, and the next epoch follows it.
    assert tables.add(2) == [False] * 3
    assert tables.requests() == []
    tables.add(3)
    assert tables.numbers() == [[1, 2, 3]] * 3


def test_no_table_has_an_epoch_before_all_have_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[list[int]]] = []
    post = f"{RestCatalog.__module__}.RestCatalog.url"
    url = RestCatalog.url

    def noted(self: RestCatalog, endpoint: str, *args: object, **more: object) -> str:
        if endpoint == _TOGETHER:
            seen.append(tables.numbers())
        return url(self, endpoint, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(post, noted)
    tables.add(2)
    assert seen == [[[1]] * 3]
    assert tables.numbers() == [[1, 2]] * 3


def test_after_a_conflict_only_what_has_changed_is_prepared_again(tables: Tables) -> None:
    data = pa.table({"number": [9], "kind": ["b"]}, SCHEMA)
    with tables.at_once.collecting():
        for owner in tables.owners:
            owner.add(2)
        tables.places[1].table().append(data)
        tables.requests()
    assert [path.endswith(_TOGETHER) for path in tables.requests()] == [True] * 2
    assert tables.numbers() == [[1, 2], [1, 2, 9], [1, 2]]


@pytest.mark.parametrize("is_made", [True, False])
def test_an_epoch_whose_answer_is_lost_lands_once_in_all(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    catalog = tables.places[0].catalog()
    assert isinstance(catalog, RestCatalog)
    post = catalog._session.post

    def lost(url: str, *args: object, **more: object) -> object:
        if is_made:
            post(url, *args, **more)  # type: ignore[arg-type]
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(catalog._session, "post", lost)
        with pytest.raises(PublishError):
            tables.add(2)
    assert tables.numbers() == [[1, 2] if is_made else [1]] * 3
    assert tables.add(2) == [not is_made] * 3
    tables.add(3)
    assert tables.numbers() == [[1, 2, 3]] * 3


@pytest.mark.parametrize("taken", [0, 2])
def test_nothing_lands_once_one_of_the_tables_has_another_owner(tables: Tables, taken: int) -> None:
    successor: list[Owner] = []

    def add_and_lose_one() -> None:
        with tables.at_once.collecting():
            for owner in tables.owners:
                owner.add(2)
            successor.append(tables.places[taken].owner())

    with pytest.raises(PublishError, match="another process"):
        add_and_lose_one()
    assert tables.numbers() == [[1]] * 3
    assert successor[0].add(2)
    with pytest.raises(PublishError, match="another process"):
        tables.add(2)
    assert [numbers == [1, 2] for numbers in tables.numbers()] == [n == taken for n in range(3)]


def test_nothing_lands_if_one_of_the_tables_can_t_be_prepared(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        before(patched, tables.owners[2].files, "writer", fail)
        with pytest.raises(OSError, match="the disk is full"):
            tables.add(2)
    assert tables.requests() == []
    assert tables.numbers() == [[1]] * 3
    tables.add(2)
    assert tables.numbers() == [[1, 2]] * 3


def test_a_catalog_without_that_request_has_one_for_each_table(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = tables.places[0].catalog()
    assert isinstance(catalog, RestCatalog)
    others = {e for e in catalog._supported_endpoints if not e.path.endswith(_TOGETHER)}
    monkeypatch.setattr(catalog, "_supported_endpoints", others)
    assert tables.add(2) == [True] * 3
    assert len(tables.requests()) == 3
    assert tables.numbers() == [[1, 2]] * 3


def test_catalogs_in_databases_change_one_table_at_a_time(tmp_path: Path) -> None:
    assert not commits_together(in_database(tmp_path).catalog())
