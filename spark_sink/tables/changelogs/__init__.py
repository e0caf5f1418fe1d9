"""Typed changelogs: tables of all changes of one of Spanner's tables.

- changelog_table: which columns one has, and how rows get there.
"""
