"""`slackwater tail`: changes to a terminal in commit order, without Spark.

- options: the options: which records, and from when to when.
- bigtable: the epochs and lines of a table of Bigtable's.
- tail: reads epochs and decides when a resolved line is due.
- line_format: text, JSON or CSV.
- terminal: whole lines, and a clean end on a signal or a closed pipe.

Epochs, plans and the audit are the scheduler's, as for any pipeline.
"""
