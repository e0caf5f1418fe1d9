"""The demonstration of the program on the emulator.

- show: `slackwater demo`: load, churn, a kill halfway, the comparison.
- load: a mixed load of inserts, updates and deletes, which the tests use, too.
- service: a pipeline as a process of its own, to be killed and restarted.
- forever: a database with endless load, for the compose file.
"""
