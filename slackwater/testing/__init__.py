"""Support for the demo, the tests and the benchmarks; no pipeline uses it.

- emulator: finds, starts and stops the Cloud Spanner emulator.
- emulator_database: makes databases on it.
- plain_client: reads a change stream with none of our own code.
- compare: compares an output with what the plain client read, and checks that epochs are cuts.
"""
