"""The delivery of messages to Kafka. Their content is decided in envelopes, their time in sinks.

- topics: the names of topics, and how a table's topic is named.
- written_topics: the topics that a pipeline has written to.
- delivery: the protocol of the ways of delivery; at_least_once, exactly_once.
- positions: the rules of sending each message once.
- transaction: one Kafka transaction; shard_sender: one for each shard, in Spark's tasks.
- client_settings: Java's names of the client's settings, in librdkafka's.
- broker_errors: the meaning of Kafka's errors; broker: whether one answers.

librdkafka, by confluent-kafka, sends transactions: Java's client can be reached from Python in the
driver only, one call a message, and Spark's own Kafka sink has no transactions.
"""
