"""Filters: which change records, and which of their columns, a pipeline writes.

Decisions only, the same for Python's rows and for Arrow's. Filters are applied in output (by tasks,
of pipelines) and in slackwater's tail.

- record_filter: whether a record is kept, by table, kind of change and transaction.
- change_filter: whether it is kept because of the columns that it changes.
- column_filter: which columns of a record are kept.
- globs: the patterns of all of them.
"""
