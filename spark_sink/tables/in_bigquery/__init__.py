"""Typed changelogs and mirrors in a dataset of BigQuery's.

- dataset_log: the commits of all tables, of which each is an epoch.
- bigquery_access: one table; merge: the SQL by which an epoch becomes a mirror's.
- marks: the low watermarks, and when BigQuery had which of them.
- changelog_views: views over a typed changelog.
- upserted_mirror: a mirror whose rows BigQuery replaces; mirroring: which of both.
"""
