"""Avro messages, for consumers with a schema registry.

From an epoch's records to keys and values in Avro. Their destination is decided in sinks, their
content in envelopes.

- types: the Avro type of a Spanner type, and the conversion of its values.
- schemas: the schemas of keys, rows and envelopes.
- encoding: the binary encoding. registry: the client of the schema registry.
- wire_format: the bytes of a message.
- revisions: whether a schema that is there fits messages, and the revision of it that does.
- messages: the steps above for an epoch's rows. registered_messages: those with a registry.
"""
