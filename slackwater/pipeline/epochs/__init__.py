"""An epoch on its way: written and audited, seen as committed, recorded and reported.

Nothing here starts, stops or tries again: that is query_runner's. writer decides that an epoch may
become visible (the lease, then audit); recorder records those that Spark has committed; report is
what observers are told.

schema_watch looks at the schema before an epoch becomes visible. After it rescanner reads a chunk
of a table that is read again, of as many rows as chunk_size says. new_tables finds the tables that
the stream begins to watch.
"""
