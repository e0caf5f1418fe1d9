"""The delivery of messages to Google's Pub/Sub, at least once.

- ordering: what messages share that are delivered in order.
- service: its address, and the calls to it. publisher: what tasks send, in order for each key.
- pubsub_delivery: the driver's side.
- topic_schema: a topic's schema, the commands for it. topic_messages: messages in Avro by it.
"""
