"""Typed changelogs: tables of all changes of one of Spanner's tables.

- changelog_table: which columns one has, and how Spark writes it.
- delta_changelog: one in Delta, written by tasks and the driver, and committed by delta-rs.
"""
