"""Envelopes: the forms in which a change is written, one module each with its fields in Avro.

From a record's row to messages in Python. Neither Spark nor a schema registry is used here. A new
envelope is a new module: registry finds it, and no other code lists them.

- envelope: the base classes; messages, and their conversion to JSON.
- registry: finds the envelopes.
- record, flat, wrapped, row, key_only, enriched, datastream, debezium: the envelopes.
- changefeed: the common parts of the envelopes of CockroachDB's changefeeds.
- event, values: a record's mods as events, with values as their types say.
- avro_fields: the Avro schemas of an envelope's fields.
"""
