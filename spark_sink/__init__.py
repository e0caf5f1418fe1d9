"""What becomes of an epoch's DataFrame."""
