"""Slackwater: the changes of a Cloud Spanner database, each once, in consistent epochs."""
