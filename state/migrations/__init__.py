"""Migrations of the metadata store's schema, run by alembic: see state.schema.

One module in `versions` for each schema version; none is changed after a release. The newest must
agree with state.tables, which a test checks. Spanner has no migrations: see state.spanner_dialect.
"""
