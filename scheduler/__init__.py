"""Lineage rules, epochs, plans and claims, and the Spark source that is built of them."""
