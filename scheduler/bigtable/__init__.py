"""Epochs of a change stream of Cloud Bigtable: planned, read and sealed.

An epoch reads each partition from its position until Bigtable's stream has passed the epoch's end.
The positions at which its tasks stopped are sealed with their counts before the sink publishes, and
the commit makes them the next start. So each change is in one epoch, although two reads of the same
changes may end at different places, and Bigtable has no consistent cut.

- planner: which reads an epoch has, and which plan's positions count.
- tablet_task: a task's reads side by side, and the seal of what they have left.
- stored_positions: the positions in the metadata store.
- bigtable_source: the table as a source: its clock, its retention, its partitions.
"""
