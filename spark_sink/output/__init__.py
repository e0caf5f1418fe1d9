"""The parts of every output: staged epochs, visible epochs, watermarks and dead letters.

Files and their names only. The form of an epoch (directories, messages, tables) is decided in sinks
and tables.

- staging: an epoch that waits for its audit, if its output is not files.
- file_log: the commit by which an epoch in files becomes visible.
- epoch_place: a folder of epochs, on a disk or in an object store.
- epoch_names: the names of epochs.
- watermark_log: the low watermark of the output, a line for each epoch.
- watermark_lines: the log's files and lines, and the merging of files.
- small_files: files that are created once, on a disk or in a store.
- dead_letters: records that can't be converted, set aside.
"""
