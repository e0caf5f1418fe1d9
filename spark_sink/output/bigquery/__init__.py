"""Changelogs in BigQuery: rows are appended to buffered streams, and shown by a commit of a log.

Of mirrors that are consistent each by itself, rows are appended to the stream of changes.
"""
