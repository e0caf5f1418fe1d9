"""Spark."""
