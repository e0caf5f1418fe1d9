"""The rules by which each message is sent to Kafka once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.errors import ClientSettingError
from slackwater.spark_sink.kafka.client_settings import librdkafka_settings
from slackwater.spark_sink.kafka.positions import (
    Position,
    Positions,
    is_after,
    later,
    shards_to_use,
)

POSITIONS = st.builds(
    Position,
    st.integers(0, 2**62),
    st.integers(1, 9),
    st.none() | st.integers(0, 99),
    st.none() | st.integers(0, 99),
)


@given(POSITIONS)
def test_a_position_is_read_as_it_was_committed(position: Position) -> None:
    assert Position.parse(position.watermark_us, position.metadata()) == position


def test_an_offset_that_an_operator_has_set_is_a_position() -> None:
    assert Position.parse(17, "") == Position(17, 0)
    assert Position.parse(17, None) == Position(17, 0)
    assert Position.parse(17, "by hand") == Position(17, 0)
    assert Position.parse(-1001, None) is None


@given(POSITIONS, POSITIONS)
def test_one_of_two_positions_is_the_later(one: Position, other: Position) -> None:
    assert not is_after(one, one)
    assert not (is_after(one, other) and is_after(other, one))
    latest = later(one, other)
    assert latest in (one, other)
    assert not is_after(one, latest)
    assert not is_after(other, latest)
    assert later(one, None) == later(None, one) == one


def test_the_chunks_of_a_scan_come_before_the_scan_as_a_whole() -> None:
    whole, first, second = Position(5, 2), Position(5, 2, chunk=0), Position(5, 2, chunk=1)
    assert is_after(second, first)
    assert is_after(whole, second)
    assert is_after(first, Position(4, 2))


def test_another_number_of_shards_waits_for_the_end_of_an_epoch() -> None:
    whole = Position(10, 4)
    done = Positions(whole, {1: Position(10, 4), 2: Position(7, 4)})
    assert shards_to_use(done, 8) == 8
    assert shards_to_use(Positions(None, {}), 8) == 8
    begun = Positions(whole, {1: Position(10, 4), 2: Position(20, 4)})
    assert shards_to_use(begun, 8) == 4
    first = Positions(None, {1: Position(20, 4)})
    assert shards_to_use(first, 2) == 4


def test_the_settings_of_java_s_client_have_librdkafka_s_names() -> None:
    java = {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="ann" password="a \\"b\\" \\\\;c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/etc/client.pem",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
        "max.request.size": "5000000",
        "compression.type": "zstd",
    }
    assert librdkafka_settings(java) == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'a "b" \\;c',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.certificate.location": "/etc/client.pem",
        "ssl.key.location": "/etc/client.pem",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "none",
        "message.max.bytes": "5000000",
        "compression.type": "zstd",
    }


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ({"transactional.id": "mine"}, "kafka.transactional.id can't be set"),
        ({"ssl.truststore.location": "/ca.jks"}, "a truststore of type JKS can't be read"),
        ({"sasl.jaas.config": "Krb5LoginModule required;"}, "of mechanism GSSAPI can't be read"),
    ],
)
def test_what_librdkafka_can_t_do_is_refused(java: dict[str, str], said: str) -> None:
    with pytest.raises(ClientSettingError, match=said):
        librdkafka_settings(java)
