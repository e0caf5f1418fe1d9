"""Messages and their topics, whichever service has them.

delivery: the protocol of a way to send. topics: the topics of tables, and those written to.
set_aside: records of messages that a service refuses.
"""
