"""Changelogs in BigQuery: rows are appended to buffered streams, and shown by a commit of a log."""
