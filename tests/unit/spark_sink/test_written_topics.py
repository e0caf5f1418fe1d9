"""The topics that a pipeline has written to, as files that no process forgets."""

import pytest

from slackwater.spark_sink.messaging.topics import WrittenTopics
from tests.support.file_places import FilePlace, InMemory, OnDisk, Steps

# As long as Kafka has them, and with marks by which files are hidden.
NAMES = {"orders", "_cdc.orders", ".orders", "a" * 249}


@pytest.mark.parametrize("kind", [InMemory, OnDisk])
def test_a_topic_of_any_name_is_known_to_every_process(kind: type[FilePlace]) -> None:
    place = kind()
    topics = WrittenTopics(place.opened(Steps()))
    topics.add(NAMES)
    topics.add({"orders"})
    assert WrittenTopics(place.opened(Steps())).names() == NAMES
