"""The rescan, which makes mirrors equal to their tables again.

- chunk_comparison: the differences of a mirror's rows from a chunk of its table, at one cut.
- mirror_corrections: their corrections, found after one epoch and merged with the next.
"""
