"""Avro: messages in it, for consumers that know a schema registry."""
