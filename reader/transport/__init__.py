"""Calls to Spanner: channels, credentials, sessions, statements and errors.

What the answers hold is decoded elsewhere; nothing here looks into a record.

- connection: decides how many channels and which session the calls use.
- statement: the SQL of a change stream query in both dialects.
- fast_stream: the only module that adapts to grpcio's internals.
- grpc_errors: decides which answers are worth another try, and which error of reader.errors every
  other answer becomes.
"""
