"""How a rescan makes mirrors equal to their tables again.

- chunk_comparison: in what a mirror's rows differ from a chunk of its table, at one cut.
- mirror_corrections: what corrects them: found after one epoch, merged with the next.
"""
