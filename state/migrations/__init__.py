"""Schema versions of the metadata store."""
