"""Transport."""
