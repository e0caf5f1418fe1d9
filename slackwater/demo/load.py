"""A mixed load: inserts, updates and deletes in three tables, in transactions."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.cloud.spanner_v1 import KeySet

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator_database import database_of

CHANGE_STREAM: Final = "DemoStream"

_GOOGLESQL: Final = (
    "CREATE TABLE Customers (CustomerId INT64 NOT NULL, Name STRING(MAX), Balance NUMERIC,"
    " Tags ARRAY<STRING(MAX)>, Changed TIMESTAMP) PRIMARY KEY (CustomerId)",
    "CREATE TABLE Orders (CustomerId INT64 NOT NULL, OrderId INT64 NOT NULL, Item STRING(MAX),"
    " Details JSON) PRIMARY KEY (CustomerId, OrderId),"
    " INTERLEAVE IN PARENT Customers ON DELETE CASCADE",
    "CREATE TABLE Payments (PaymentId STRING(36) NOT NULL, Amount FLOAT64, Receipt BYTES(MAX))"
    " PRIMARY KEY (PaymentId)",
    f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL",
)
_POSTGRESQL: Final = (
    'CREATE TABLE "Customers" ("CustomerId" bigint PRIMARY KEY, "Name" varchar, "Balance" numeric,'
    ' "Tags" varchar[], "Changed" timestamptz)',
    'CREATE TABLE "Orders" ("CustomerId" bigint, "OrderId" bigint, "Item" varchar,'
    ' "Details" jsonb, PRIMARY KEY ("CustomerId", "OrderId"))'
    ' INTERLEAVE IN PARENT "Customers" ON DELETE CASCADE',
    'CREATE TABLE "Payments" ("PaymentId" varchar(36) PRIMARY KEY, "Amount" float8,'
    ' "Receipt" bytea)',
    f'CREATE CHANGE STREAM "{CHANGE_STREAM}" FOR ALL',
)
_CUSTOMERS: Final = ("CustomerId", "Name", "Balance", "Tags", "Changed")
_ORDERS: Final = ("CustomerId", "OrderId", "Item", "Details")
_PAYMENTS: Final = ("PaymentId", "Amount", "Receipt")
_CUSTOMERS_MAX: Final = 50


def ddl(dialect: Dialect) -> Sequence[str]:
    """Return the DDL of three tables, one of them interleaved, and a change stream for all."""
    return _POSTGRESQL if dialect is Dialect.POSTGRESQL else _GOOGLESQL


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The number of transactions written, and the seconds that they took."""

    transactions: int
    seconds: float


class Load:
    """A writer of transactions; the same seed gives the same ones.

    The emulator runs one read-write transaction at a time, so one writer is as fast as many.
    """

    def __init__(self, stream: ChangeStream, dialect: Dialect, *, seed: int) -> None:
        self._database = database_of(stream, dialect)
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._orders: dict[int, list[int]] = {}
        self._next = 0

    def run(
        self, *, transactions_per_second: float, seconds: float, stop: threading.Event | None = None
    ) -> LoadResult:
        """Write at a steady rate; after a slow transaction the next ones catch up."""
        began = time.monotonic()
        done = 0
        while (now := time.monotonic() - began) < seconds and not (stop and stop.is_set()):
            if done <= now * transactions_per_second:
                self.transaction()
                done += 1
            else:
                time.sleep(0.001)
        return LoadResult(done, time.monotonic() - began)

    def transaction(self) -> None:
        """Write one transaction that changes one to three tables."""
        with self._database.batch() as batch:
            kind = self._random.random()
            if kind < 0.45 or not self._orders:
                self._new_customer(batch)
            elif kind < 0.85:
                self._change(batch)
            else:
                self._remove(batch)

    def _new_customer(self, batch: Any) -> None:
        self._next += 1
        customer = self._next
        batch.insert("Customers", _CUSTOMERS, [self._customer(customer)])
        orders = list(range(self._random.randint(1, 4)))
        batch.insert("Orders", _ORDERS, [self._order(customer, order) for order in orders])
        batch.insert("Payments", _PAYMENTS, [self._payment(customer)])
        self._orders[customer] = orders

    def _change(self, batch: Any) -> None:
        customer = self._random.choice(list(self._orders))
        batch.update("Customers", _CUSTOMERS, [self._customer(customer)])
        if self._orders[customer] and self._random.random() < 0.5:
            order = self._random.choice(self._orders[customer])
            batch.update("Orders", _ORDERS, [self._order(customer, order)])
        if self._random.random() < 0.3:
            batch.insert_or_update("Payments", _PAYMENTS, [self._payment(customer)])

    def _remove(self, batch: Any) -> None:
        customer = self._random.choice(list(self._orders))
        orders = self._orders[customer]
        if orders and len(self._orders) < _CUSTOMERS_MAX:
            batch.delete("Orders", KeySet(keys=[[customer, orders.pop()]]))
        else:
            # The interleaved orders go with their customer.
            batch.delete("Customers", KeySet(keys=[[customer]]))
            del self._orders[customer]

    def _customer(self, customer: int) -> list[Any]:
        name = None if self._random.random() < 0.1 else f"customer {customer} é"
        tags = [f"t{self._random.randint(0, 9)}" for _ in range(self._random.randint(0, 3))]
        balance = f"{self._random.randint(0, 10**6)}.25"
        return [customer, name, balance, tags, "2026-01-31T09:00:00.123456789Z"]

    def _order(self, customer: int, order: int) -> list[Any]:
        details = f'{{"n": {self._random.randint(0, 99)}, "x": [1.5, null]}}'
        return [customer, order, f"item {self._random.randint(0, 999)}", details]

    def _payment(self, customer: int) -> list[Any]:
        return [f"{customer}-{self._random.randint(0, 10**9)}", self._random.random(), b"cGFpZA=="]
