"""Avro messages, for consumers with a schema registry.

From an epoch's records to binary keys and values. Their destination is decided in sinks, their
content in envelopes.

- types: the Avro type of a Spanner type, and the conversion of its values.
- schemas: the schemas of keys, rows and envelopes.
- registry: the client of the schema registry.
- wire_format: the bytes of a message.
- messages: the steps above for an epoch's rows.
"""
