"""The metadata store: what is known of a change stream's partitions, plans and epochs."""
