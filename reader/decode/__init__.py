"""Decoding: from the bytes of Spanner's PartialResultSets to change records and Arrow batches.

Only bytes come in here; calls, retries and threads are in reader.query and reader.transport.

There are two ways to decode, which must give the same rows for any message:

- records, one by one: the reference, which reads every message and names what is wrong with it. The
  rows are read in googlesql_records and postgresql_records, those of a stream with mutable key
  ranges in proto_records.
- googlesql_columns, postgresql_columns and proto_columns (with proto_mods), column by column for
  thousands of records: a fraction of the cost. They decode only records of the usual shape and name
  the other messages (fallback_messages), which are then decoded one by one.

Both use: result_rows (messages to rows, whose values may come in pieces), result_layout
(the order of a record's fields, from the result set's metadata), row_spans (where the rows lie),
protobuf_cursor (steps through protobuf's wire format in many rows at once), json_structure and
json_column_types (the same for PostgreSQL's JSON), and arrow (change records and texts to Arrow
arrays).

Spanner's types in Arrow: the fields of a record have the types of reader.schema. The values of the
changed columns, NUMERIC or any other type, stay in the JSON texts of a mod's keys, new_values and
old_values, digit for digit as Spanner wrote them; a column's type is Spanner's own JSON in
column_types. Both are converted only in slackwater.spark_sink: sql.types decides the type of a
typed table's column, envelopes.values and avro.types that of a message's value.
"""
