"""The merge of an epoch into the rows of mirrors, and into their files.

- row_changes: the effect of an epoch on each row.
- small_epoch: the records of an epoch, and the rows that it changes in a table, in Arrow.
- file_merge: the files of a table that change; merged_rows: their new rows.
- large_epoch: the rows of an epoch that Spark folds.
- changed_rows: the rows that a merge changes, for readers of changes.
- corrections: those of a rescan to a table, in Arrow, and an epoch's changes after them.
"""
