"""An epoch on its way: written and audited, seen as committed, recorded and reported.

Nothing here starts, stops or tries again, which query_runner does. writer decides that an epoch may
become visible (the lease, then audit); recorder records those that Spark has committed; report has
the reports to observers.

schema_watch inspects the schema before an epoch becomes visible, source_positions gives the sink
the positions that belong to it. After it rescanner reads a chunk of a table that is read again, of
as many rows as chunk_size says. new_tables finds the tables that the stream begins to watch.
"""
