"""A synthetic change-stream server, which stands in for a database too large to have."""
