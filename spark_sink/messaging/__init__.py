"""Messages and their topics, whichever service has them.

delivery: the protocol of a way to send. topics, written_topics: the topics of tables. set_aside:
records of messages that a service refuses.
"""
