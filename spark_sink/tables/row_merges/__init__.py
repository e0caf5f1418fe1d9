"""What an epoch does to the rows of mirrors, and to their files.

- row_changes: what an epoch does to each row.
- small_epoch: the records of an epoch, and the rows that it changes in a table, in Arrow.
- file_merge: which files of a table change; merged_rows: what becomes of their rows.
- changed_rows: the rows that a merge changes, for readers of changes.
- corrections: what a rescan has to correct in a table, in Arrow, and what an epoch does after it.
"""
