"""Avro messages, for consumers with a schema registry.

From an epoch's records to binary keys and values. Where they are sent is decided in sinks, and what
an envelope says in envelopes.

- types: which Avro type a Spanner type becomes, and how its values are converted.
- schemas: the schemas of keys, rows and envelopes.
- registry: the client of the schema registry.
- wire_format: the bytes of a message.
- messages: the steps above for an epoch's rows.
"""
