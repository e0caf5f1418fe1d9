"""The histogram to which values are added with their counts, and the gauges of a status."""

from dataclasses import replace

from slackwater.monitoring.metrics import StatusCollector, WeightedHistogram
from slackwater.state.models import PipelineState
from tests.unit.monitoring.test_status import READY, RUNNING


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


def test_the_labels_of_states_have_no_spaces() -> None:
    failed = replace(RUNNING, state=PipelineState.FAILED_PERMANENTLY)
    families = StatusCollector(lambda: [replace(READY, pipeline=failed)]).collect()
    samples = [sample for family in families for sample in family.samples]
    states = {s.labels["state"]: s.value for s in samples if s.name == "slackwater_state"}
    assert states["failed_permanently"] == 1
    assert sum(states.values()) == 1
    assert not any(" " in value for s in samples for value in s.labels.values())
