"""Calls to Spanner: channels, credentials, sessions, statements and errors.

Answers are decoded elsewhere; nothing here reads a record.

- connection: the calls, and the session that they use; channels: the ways to a server.
- ddl_updates: the list of DDL statements, which is of another API.
- statement: the SQL of a change stream query in both dialects.
- quoting: names in SQL, in both dialects.
- receive_loop: one thread for many calls.
- transfers: what libcurl transfers for one thread; stream_call: one call, and its messages.
- open_streams: calls that stay open, for asyncio.
- answers: the table of gRPC codes and messages, which decides what is tried again, and how.
- grpc_errors: applies the table to the libraries' exceptions, and makes an error of reader.errors
  of each.
"""
