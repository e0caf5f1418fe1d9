"""Envelopes: the forms in which a change is written for those who read it."""
