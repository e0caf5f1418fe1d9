"""Migrations of the metadata store's schema, which state.schema runs with alembic.

One module in `versions` for each schema version; none is changed after a release. The newest must
agree with state.tables, which a test checks. In Spanner, state.spanner_dialect makes the tables.
"""
