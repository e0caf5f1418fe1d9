"""What docs/sizing.md says of costs follows from its own counts and prices.

`python -m tests.proofs.object_requests` compares the counts with those of a store.
"""

import pytest

from bench import cost
from tests.support import sizing_page

MONTH_S = 30 * 24 * 60 * 60


def dollars(requests: dict[str, float], prices: dict[str, float], trigger_s: int) -> float:
    """Return what a month costs in which each epoch has records."""
    of_epoch = sum(requests[kind] * prices[kind] / 1_000 for kind in sizing_page.KINDS)
    return of_epoch * MONTH_S / trigger_s


def as_on_page(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


@pytest.mark.parametrize("name", sizing_page.requests_of_an_epoch())
def test_the_kinds_of_requests_add_up(name: str) -> None:
    requests = sizing_page.requests_of_an_epoch()[name]
    together = sum(requests[kind] for kind in sizing_page.KINDS)
    assert together == pytest.approx(requests[sizing_page.TOGETHER], abs=1e-9)


def test_the_costs_are_those_of_the_requests_at_the_list_prices() -> None:
    requests, prices = sizing_page.requests_of_an_epoch(), sizing_page.prices()
    rows = sizing_page.table("dollars a month, an epoch every")
    assert rows == {
        name: {
            f"{trigger_s} s": as_on_page(dollars(of_epoch, prices["S3, Cloud Storage"], trigger_s))
            for trigger_s in (1, 10, 60)
        }
        for name, of_epoch in requests.items()
    }
    for kind, price in prices["S3, Cloud Storage"].items():
        assert prices["Azure"][kind] == pytest.approx(1.1 * price), "in Azure a tenth more"


def test_maintenance_costs_what_its_requests_cost() -> None:
    of_epochs = [{"PUT": 0.0, "LIST": 0.0, "GET, HEAD": gets, "DELETE": 1.0} for gets in (4.0, 1.0)]
    prices = sizing_page.prices()["S3, Cloud Storage"]
    delta, files = (dollars(requests, prices, 1) for requests in of_epochs)
    page = " ".join(sizing_page.PAGE.read_text().split())
    assert (round(delta), round(files)) == (4, 1)
    assert (
        "four GETs and a DELETE in Delta, and a GET and a DELETE in Parquet, JSON and ORC,"
        " if it is set there: 4 dollars a month or one," in page
    )


def test_the_cores_of_a_load_are_those_of_the_terms() -> None:
    seconds = []
    for row in sizing_page.table("CPU of").values():
        number, unit = row[""].split()
        seconds.append(float(number) * {"ms": 1e-3, "us": 1e-6}[unit])
    terms = dict(zip(cost.TERMS, [*seconds[:-1], seconds[-1] / 1_024], strict=True))
    page = sizing_page.PAGE.read_text()
    assert f"keep {cost.cores(terms, cost.LOAD, cost.EVERY_S):.0f} cores busy" in page
    # One for each partition, and one for the clock.
    assert f"gets {round((cost.LOAD.partitions + 1) / cost.EVERY_S):,} queries a second" in page


def test_the_terms_that_made_up_the_cpu_are_found() -> None:
    made = {"epochs": 0.08, "tasks": 0.02, "queries": 2e-4, "records": 1e-5, "wire_bytes": 3e-9}
    spent = []
    for case in cost.CASES:
        counts = {
            "epochs": 45,
            "tasks": 45 * case.tasks,
            "queries": 45 * case.partitions,
            "records": 45 * case.records_per_s,
            "wire_bytes": 45 * case.records_per_s * case.record_bytes,
        }
        spent.append(
            cost.Spent(**counts, cpu_s=sum(made[name] * count for name, count in counts.items()))
        )
    assert cost.terms_of(spent) == pytest.approx(made)
