"""An epoch on its way: written and audited, seen as committed, recorded and reported.

Nothing here starts, stops or tries again: that is query_runner's. writer decides that an epoch may
become visible (the lease, then audit); recorder records those that Spark has committed; report is
what observers are told.
"""
