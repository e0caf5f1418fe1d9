"""The histogram to which values are added with their counts."""

from __future__ import annotations

from slackwater.monitoring.metrics import WeightedHistogram


def test_a_value_counts_in_each_bucket_from_its_own_on() -> None:
    histogram = WeightedHistogram("freshness", "Freshness.", (1, 5))
    histogram.observe("orders", [(0.5, 10), (1.0, 1), (3.0, 100), (7.0, 1_000)])
    (family,) = histogram.collect()
    values = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert values["1.0"] == 11
    assert values["5.0"] == 111
    assert values["+Inf"] == values["freshness_count"] == 1_111
    assert values["freshness_sum"] == 0.5 * 10 + 1 + 300 + 7_000


def test_a_pipeline_without_values_is_shown_with_empty_buckets() -> None:
    histogram = WeightedHistogram("freshness", "Freshness.", (1,))
    histogram.begin("orders")
    (family,) = histogram.collect()
    assert {sample.value for sample in family.samples} == {0}
    assert {sample.labels["pipeline"] for sample in family.samples} == {"orders"}
