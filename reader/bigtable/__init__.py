"""Reading a change stream of Cloud Bigtable: from a continuation token to rows of Apache Arrow.

- positions: what a read of a partition leaves to be read, and which reads the positions of a table
  make. Pure rules.
- row_range: ranges of row keys, and whether some of them make up another. Pure rules.
- table: the table, and the options of its reads.
- service: calls of Bigtable's API, and the meaning of its errors.
- partition_read: when a read is opened again, and where it then starts; when it is over.
- changes: the changes as they are read, and the columns of their rows.
- change_rows: from the messages to the rows; assembly brings unusual messages into the usual form.
- records: those rows as data change records, with a column for each listed cell.

The words are those of Bigtable's documentation. Its change streams have no transactions over rows
and no order over partitions, so there is no consistent cut: a position is a token for each
partition.
"""
