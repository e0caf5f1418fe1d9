"""The parts of every output: staged epochs, visible epochs, watermarks and dead letters.

Files and their names only. What an epoch becomes (directories, messages, tables) is decided in
sinks and tables.

- staging: where an epoch waits for its audit, if it is not one of files.
- file_log: how an epoch in files becomes visible, by a commit.
- epoch_place: a folder of epochs, on a disk or in an object store.
- epoch_names: what epochs are called.
- watermark_log: up to when the output is complete, a line for each epoch.
- watermark_lines: the log's files and lines, and which files become one.
- small_files: files that are created once, on a disk or in a store.
- dead_letters: which records can't be converted, and what becomes of them.
"""
