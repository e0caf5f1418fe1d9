"""Spark SQL: expressions and statements made of Spanner's types and columns.

Text in, text or a lazy DataFrame out: nothing here writes a table or knows a table format.

- types: the Spark type of a Spanner type, such as DECIMAL(38,9) for a NUMERIC; Delta and Iceberg
  take their column types from it.
- columns: the columns of a table, from change records or from the information schema.
- latest_changes: the effect of an epoch on each row, for mirrors.
- rebuild_view: the view over a changelog that is the table.
- quoting: identifiers and string literals.
"""
